"""Links and files that the pages name exist, and the site lists every Redis key. test_pages.py runs the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everlong_models.backbone.recurrent.families import FAMILIES
from everlong_server.store.redis.keys import KEYS
from tests.pages import docs_module

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


def test_the_glossary_names_files_and_folders_that_exist() -> None:
    """Every path in backticks in ARCHITECTURE.md is the end of a path in the repository."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for short, folder in {"S": "server/everlong_server", "M": "models/everlong_models"}.items():
        assert re.search(f"`{short}/`( stands)? for `{folder}/`", text)
        text = text.replace(f"`{short}/", f"`{folder}/")
    packages = [ROOT / folder for folder in ("server", "models", "lab", "clients/python", "clients/web/src", "tests")]
    inside = [path.relative_to(ROOT) for package in packages for path in [package, *package.rglob("*")]]
    # An environment that other tests have left beside their requirements has files of any name.
    paths = [path for path in inside if not any(part == "node_modules" or part.startswith(".") for part in path.parts)]
    ends = {"/".join(path.parts[-length:]) for path in paths for length in range(1, 8)}
    named = re.findall(r"`((?:\w+/)*\w+(?:\.py|/))`", text)
    assert len(named) > 40
    missing = [name for name in named if name.rstrip("/") not in ends and not (ROOT / name).exists()]
    assert missing == []


def test_the_site_lists_every_redis_key() -> None:
    text = "\n".join(docs_module("hooks").redis())
    for key in KEYS:
        assert f"| {key.type} | {key.holds}" in text, key.pattern


def test_the_models_page_lists_every_family_with_a_memory_of_its_own() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \| ([^|]+) \|", (ROOT / "docs/guide/models.md").read_text(), re.M)
    assert [(kind, name, recurrence) for name, kind, recurrence in rows] == [
        (kind, family.name, family.recurrence) for kind, family in FAMILIES.items()
    ]
