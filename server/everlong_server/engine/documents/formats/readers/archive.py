"""Reads ZIP archives of documents: a section for each file in it, or the files themselves."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes
from everlong_server.engine.documents.formats.zips import entry_names, open_zip

MAX_FILES = 1000
_ENCRYPTED = 0x1
"""Flag of entries with a password."""
_DIGITS = re.compile(r"([0-9]+)")
_SYSTEM = ("__macosx/", ".ds_store", "thumbs.db")


def is_of_system(name: str) -> bool:
    """Whether an operating system adds files of this name to archives."""
    return any(part in name.lower() for part in _SYSTEM)


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the texts of the files in the archive."""
    for name, data in files(file, notes):
        yield from notes.nested(data, name, "File")


def files(file: Path, notes: Notes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file in the archive, in the order of their names; numbers in them count as numbers."""
    with open_zip(file, notes) as packed:
        entries = [
            entry
            for entry in packed.infolist()
            if not entry.filename.endswith("/") and not is_of_system(entry.filename)
        ]
        named = sorted(zip(entry_names(entries), entries, strict=True), key=lambda pair: _place(pair[0]))
        notes.left_out(f"files after the first {MAX_FILES}", max(0, len(named) - MAX_FILES))
        for name, entry in named[:MAX_FILES]:
            if entry.flag_bits & _ENCRYPTED:
                notes.add("it is protected by a password and was left out", part=name)
                continue
            try:
                data = packed.read(entry)
            except DAMAGED_ENTRY as error:
                notes.add(f"it cannot be unpacked and was left out ({error})", part=name)
                continue
            yield name, data


def _place(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return what a name is sorted by: "part2" precedes "part10", and "part" precedes both, as well as the files of a folder "part"."""
    parts = _DIGITS.split(posixpath.splitext(name)[0].replace("/", "\0"))
    parts[1::2] = [digits.lstrip("0") for digits in parts[1::2]]
    return [(len(part) if at % 2 else 0, part) for at, part in enumerate(parts)], name
