"""Reads files that are embedded in other files, also inside an OLE object (MS-OLEDS)."""

from __future__ import annotations

import io
import posixpath
import struct
from collections.abc import Iterable, Iterator, Sequence

import olefile

from everlong_server.engine.documents.formats.blocks import Block, Notes

_PLAIN_STREAMS = ("Package", "EmbeddedOdf", "CONTENTS", "Contents")
"""Streams that hold a file unchanged."""
_NATIVE = "\x01Ole10Native"


def embedded_blocks(data: bytes, name: str, notes: Notes) -> Iterator[Block]:
    """Yield the text of an embedded file. `name`: of the part that is the file, or an OLE object with it."""
    unwrapped, inner_name = _unwrapped(data)
    yield from notes.nested(unwrapped, inner_name or posixpath.basename(name), "Embedded file")


def storages(ole: olefile.OleFileIO, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the storages directly inside a storage, of those that are not empty. (`listdir` would follow a damaged
    directory that contains itself.)"""
    inside = ole.root
    for name in path:
        inside = next((each for each in inside.kids if each.name == name), None)
        if inside is None:
            return
    for each in inside.kids:
        if each.entry_type == olefile.STGTY_STORAGE and each.kids:
            yield (*path, each.name)


def embedded_files(
    ole: olefile.OleFileIO, storages: Iterable[tuple[str, ...]], notes: Notes
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of the file in each of these storages."""
    for storage in sorted(storages):
        try:
            found = file_in(ole, storage)
        except (OSError, ValueError):  # it is damaged
            found = None
        if found is None:
            notes.left_out("embedded objects")
        else:
            yield found[1] or storage[-1], found[0]


def _unwrapped(data: bytes) -> tuple[bytes, str]:
    """Return the file inside an OLE object and its name ("" if it has none). Another file is returned unchanged."""
    if not data.startswith(olefile.MAGIC):
        return data, ""
    try:
        with olefile.OleFileIO(io.BytesIO(data)) as ole:
            return file_in(ole, ()) or (data, "")
    except (OSError, ValueError, IndexError, struct.error):
        return data, ""


def file_in(ole: olefile.OleFileIO, storage: Sequence[str]) -> tuple[bytes, str] | None:
    """Return the file inside the OLE object in a storage, and its name, "" if it has none; None if no file is in it.

    Raises `ValueError` or `OSError` if it is damaged.
    """
    for name in (_NATIVE, *_PLAIN_STREAMS):
        if ole.exists([*storage, name]):
            stream = ole.openstream([*storage, name]).read()
            return _native_file(stream) if name == _NATIVE else (stream, "")
    return None


def _native_file(stream: bytes) -> tuple[bytes, str]:
    """Return the file and its name in the stream of a "package", an object for files of any program (MS-OLEDS, 2.3.6).

    Raises `ValueError` for another stream.
    """
    parts = stream[6:].split(b"\0", 2)  # its title, its path, the rest
    if len(parts) < 3:
        raise ValueError("the object has no name")
    path, rest = parts[1] or parts[0], parts[2]
    size_at = 8 + int.from_bytes(rest[4:8], "little")
    size = int.from_bytes(rest[size_at : size_at + 4], "little")
    data = rest[size_at + 4 : size_at + 4 + size]
    if not data:
        raise ValueError("the object has no file")
    name = path.decode("cp1252", "replace").replace("\\", "/").rpartition("/")[2]
    return data, name
