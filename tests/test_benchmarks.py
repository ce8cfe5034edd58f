"""docs/research/performance.md shows the tables of benchmarks/*.json."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "benchmarks").rglob("*.json"))
PAGE = (ROOT / "docs" / "research" / "performance.md").read_text()


def test_there_are_benchmarks() -> None:
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_page_has_the_tables_of_a_file_and_its_command(file: Path) -> None:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = json.loads(file.read_text())
    assert found["command"] in PAGE
    assert str(file.relative_to(ROOT)) in PAGE
    for table in module.tables(found):
        assert table in PAGE
