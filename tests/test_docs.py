"""Links and files that the pages name exist, and ARCHITECTURE lists every Redis key. test_pages.py runs the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everlong_server.store.redis.keys import KEYS

ROOT = Path(__file__).parents[1]


DOCUMENTS = [
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md",
    "deploy/README.md", "deploy/kubernetes/README.md", "examples/README.md",
]  # fmt: skip


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md")))]
)
def test_links_resolve(document: str) -> None:
    """Relative links resolve in the repository."""
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{document} links to {target}"


def test_architecture_lists_every_redis_key() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for key in KEYS:
        name = re.sub(r"(jobs|responses):\*", r"\1:MODEL", key.pattern).replace("*", "ID")
        assert f"`{name}`" in text, name


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:api|engine|store)/\w+\.py)`", text):
        assert (ROOT / "server" / "everlong_server" / name).is_file(), name
