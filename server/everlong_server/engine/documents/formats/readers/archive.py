"""Reads ZIP archives of documents: a section for each file in it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes

_MAX_FILES = 1000
_SYSTEM = ("__macosx/", ".ds_store", "thumbs.db")


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the files of the archive in the order of their names."""
    with zipfile.ZipFile(file) as packed:
        entries = [
            entry
            for entry in sorted(packed.infolist(), key=lambda entry: entry.filename)
            if not entry.is_dir() and not any(name in entry.filename.lower() for name in _SYSTEM)
        ]
        notes.left_out(f"files after the first {_MAX_FILES}", max(0, len(entries) - _MAX_FILES))
        for entry in entries[:_MAX_FILES]:
            try:
                data = packed.read(entry)
            except DAMAGED_ENTRY as error:
                notes.add(f"it cannot be unpacked and was left out ({error})", part=entry.filename)
                continue
            yield from notes.nested(data, entry.filename, "File")
