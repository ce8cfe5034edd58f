"""Reads a file in this process, as the conversion process does under limits."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from everlong_server.engine.documents.formats import catalogue, worker
from everlong_server.engine.documents.formats.blocks import Notes
from everlong_server.engine.documents.formats.recognition import Recogniser
from everlong_server.engine.documents.text_checker import Declared, TextChecker
from everlong_server.store.texts.notes import Note


def read(
    data: bytes, filename: str | None = None, media_type: str | None = None, *, recogniser: Recogniser | None = None
) -> tuple[str, list[Note]]:
    """Return the text of a file, with a blank line between its blocks, and the notes on it."""
    text = TextChecker(len(data), Declared(filename, media_type))
    text.feed(data)
    text.finish()
    kind = text.foreign
    assert kind is not None, "the file was taken for text"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "file")
        file.write_bytes(data)
        format_id = catalogue.format_of(file, kind)
        assert format_id is not None
        notes = Notes(worker.read_nested, recogniser)
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(worker.MAX_CALLS)
        try:
            blocks = list(worker.read(file, format_id, notes))
        finally:
            sys.setrecursionlimit(limit)
    texts = (("" if block.joined else "\n\n") + block.text for block in blocks if block.text)
    return "".join(texts).removeprefix("\n\n"), notes.all()


def text_of(data: bytes, filename: str | None = None) -> str:
    """Return the text of a file."""
    return read(data, filename)[0]


def notes_of(data: bytes, filename: str | None = None) -> list[str]:
    """Return the notes on a file, each in one line."""
    return [
        ": ".join(filter(None, [note.page and f"page {note.page}", note.part, note.text]))
        for note in read(data, filename)[1]
    ]
