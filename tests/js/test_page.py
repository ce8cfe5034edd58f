"""The page that the server serves at / is the one that clients/web builds."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from everlong_server.api.page import FOLDER
from tests.js.conftest import run


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_the_built_page_is_fresh(npm: Path, tmp_path: Path) -> None:
    run(npm / "web", "npm", "run", "build", EVERLONG_PAGE=str(tmp_path / "web"))
    built, served = files(tmp_path / "web"), files(FOLDER)
    stale = [name for name in built.keys() | served.keys() if built.get(name) != served.get(name)]
    assert stale == [], "the page in server/everlong_server/web is stale: run `make page`"


def test_the_page_is_small_and_self_contained() -> None:
    scripts = [text.encode() for name, text in files(FOLDER).items() if name.endswith(".js")]
    assert sum(len(gzip.compress(script)) for script in scripts) < 150_000
    asked = re.findall(r'(?:src|href)="([^"]*)"', files(FOLDER)["index.html"])
    assert asked
    assert all(path == "/docs" or (FOLDER / path.removeprefix("/")).is_file() for path in asked), asked
