"""Files after public bug reports of other readers are read as a person would read them."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tests.server.engine.documents.formats import reports
from tests.server.engine.documents.formats.reading import read
from tests.server.engine.documents.formats.reports import Report

pytestmark = pytest.mark.long

REPORTS = {
    f"{module.name}-{report.name}": report
    for module in pkgutil.iter_modules(reports.__path__)
    for report in getattr(importlib.import_module(f"{reports.__name__}.{module.name}"), "REPORTS", ())
}
"""By module and name. The modules with parts of files have none."""


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_file_after_a_bug_report(report: Report) -> None:
    text, notes = read(report.data, report.filename)
    flat = " ".join(text.split())
    said = [f"{note.part}: {note.text}" for note in notes]
    assert [words for words in report.holds if " ".join(words.split()) not in flat] == []
    assert [words for words in report.lacks if words in flat] == []
    assert [words for words in report.notes if not any(words in note for note in said)] == []
