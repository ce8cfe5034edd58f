"""Reads ZIP archives of documents: a section for each file in it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes
from everlong_server.engine.documents.formats.charset import best_encoding
from everlong_server.engine.documents.formats.zips import open_zip

MAX_FILES = 1000
_SYSTEM = ("__macosx/", ".ds_store", "thumbs.db")
_UTF8 = 0x800
_LETTERS = {*range(0x80, 0x9B), *range(0xA0, 0xA6), 0xE1}
"""Letters of IBM 437, the encoding of names that declare none. Names with other signs are in another one."""


def is_of_system(name: str) -> bool:
    """Whether an operating system adds files of this name to archives."""
    return any(part in name.lower() for part in _SYSTEM)


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the files of the archive in the order of their names."""
    with open_zip(file, notes) as packed:
        entries = [entry for entry in packed.infolist() if not entry.is_dir() and not is_of_system(entry.filename)]
        named = sorted(zip(_names(entries), entries, strict=True), key=lambda pair: pair[0])
        notes.left_out(f"files after the first {MAX_FILES}", max(0, len(named) - MAX_FILES))
        for name, entry in named[:MAX_FILES]:
            try:
                data = packed.read(entry)
            except DAMAGED_ENTRY as error:
                notes.add(f"it cannot be unpacked and was left out ({error})", part=name)
                continue
            yield from notes.nested(data, name, "File")


def _names(entries: Sequence[zipfile.ZipInfo]) -> list[str]:
    """Return the names of the entries. Old programs write them in the encoding of their computer, without saying so."""
    undeclared = [
        entry.filename.encode("cp437")
        for entry in entries
        if not entry.flag_bits & _UTF8 and not entry.filename.isascii()
    ]
    joined = b"\n".join(undeclared)
    encoding = "cp437"
    if not all(byte < 0x80 or byte in _LETTERS for byte in joined):
        encoding = "utf-8" if _is_utf8(joined) else best_encoding(joined) or "cp437"
    return [
        entry.filename
        if entry.flag_bits & _UTF8 or entry.filename.isascii()
        else entry.filename.encode("cp437").decode(encoding, "replace")
        for entry in entries
    ]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
