"""Files after public bug reports of other readers are read as a person would read them."""

from __future__ import annotations

import pytest

from tests.server.engine.documents.formats.reading import read
from tests.server.engine.documents.formats.reports import (
    Report,
    archives,
    encodings,
    messages,
    mistakes,
    mixed,
    opendocument,
    pages,
    places,
    portable,
    presentations,
    words,
)

pytestmark = pytest.mark.long

REPORTS = [
    (f"{module.__name__.rpartition('.')[2]}-{report.name}", report)
    for module in (
        archives,
        encodings,
        messages,
        mistakes,
        mixed,
        opendocument,
        pages,
        places,
        portable,
        presentations,
        words,
    )
    for report in module.REPORTS
]


@pytest.mark.parametrize("report", [report for _, report in REPORTS], ids=[name for name, _ in REPORTS])
def test_a_file_after_a_bug_report(report: Report) -> None:
    text, notes = read(report.data, report.filename)
    flat = " ".join(text.split())
    said = [f"{note.part}: {note.text}" for note in notes]
    assert [words for words in report.holds if " ".join(words.split()) not in flat] == []
    assert [words for words in report.lacks if words in flat] == []
    assert [words for words in report.notes if not any(words in note for note in said)] == []
