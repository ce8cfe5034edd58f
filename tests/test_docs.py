"""What README and ARCHITECTURE say is so: links and files exist, keys are the real ones. Commands: test_pages.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everlong_server.store.redis.keys import KEYS

ROOT = Path(__file__).parents[1]


DOCUMENTS = [
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md", "deploy/kubernetes/README.md",
]  # fmt: skip


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md")))]
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
