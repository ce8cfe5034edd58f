"""Opens ZIP files, also those whose end is missing or damaged."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Notes

_LOCAL = b"PK\x03\x04"
_MAX_BYTES = 256 << 20
"""Unpacked bytes of a damaged file that are read."""
_UTF8 = 0x800


def open_zip(file: Path, notes: Notes | None = None) -> zipfile.ZipFile:
    """Open a ZIP file. If its directory, which is at the end, is missing, its entries are searched for, which is noted.

    Raises what `zipfile` raises if none is found.
    """
    try:
        return zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        found = dict(_entries(file.read_bytes()))
        if not found:
            raise
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, content in found.items():
            made.writestr(name, content)
    if notes is not None:
        notes.add("the end of the file is missing or damaged; what was found before it was read")
    return zipfile.ZipFile(out)


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the entries, the last of which may be cut off."""
    at = total = 0
    while (at := data.find(_LOCAL, at)) >= 0 and len(data) >= at + 30 and total < _MAX_BYTES:
        flags, method, size, name_size, extra = struct.unpack_from("<2xHH8xI4xHH", data, at + 4)
        name = data[at + 30 : at + 30 + name_size]
        start = at + 30 + name_size + extra
        at = start
        content = b""
        if method == zipfile.ZIP_STORED:
            content = data[start : start + size]
        elif method == zipfile.ZIP_DEFLATED:
            unpacker = zlib.decompressobj(-15)
            try:
                content = unpacker.decompress(data[start:], _MAX_BYTES - total)
            except zlib.error:
                continue
            at = max(at, len(data) - len(unpacker.unused_data)) if unpacker.eof else at
        total += len(content)
        if content:
            yield name.decode("utf-8" if flags & _UTF8 else "cp437", "replace"), content
