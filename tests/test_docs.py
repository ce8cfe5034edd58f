"""What README and ARCHITECTURE say is so: commands run, links and files exist, keys and settings are the real ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from everlong_server.store.keys import KEYS
from tests.process import Server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_curl_commands_of_the_readme(server: Server) -> None:
    commands = [line for line in README.splitlines() if line.startswith("curl ")]
    assert len(commands) == 3
    ids: dict[str, str] = {}
    for command in commands:
        for placeholder, identifier in ids.items():
            command = command.replace(placeholder, identifier)  # noqa: PLW2901
        command = command.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")  # noqa: PLW2901
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True
        )
        (identifier,) = re.findall(r'^\{"id":"((?:doc|ses|msg)_\w+)"', done.stdout)
        ids[f"{identifier[:3]}_…"] = identifier
        if identifier.startswith("doc"):
            server.wait_read(identifier)
    assert ids.keys() == {"doc_…", "ses_…", "msg_…"}


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL), ids=["client", "openai"])
def test_the_python_examples_of_the_readme(server: Server, code: str) -> None:
    code = code.replace("http://127.0.0.1:8080", server.url)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


DOCUMENTS = [
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md", "deploy/kubernetes/README.md",
]  # fmt: skip


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md")))]
)
def test_links_lead_somewhere(document: str) -> None:
    """In the repository, as its pages are read there."""
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{document} links to {target}"


def test_every_key_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for key in KEYS:
        name = re.sub(r"(jobs|responses):\*", r"\1:MODEL", key.pattern).replace("*", "ID")
        assert f"`{name}`" in text, name


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:api|engine|store)/\w+\.py)`", text):
        assert (ROOT / "server" / "everlong_server" / name).is_file(), name
