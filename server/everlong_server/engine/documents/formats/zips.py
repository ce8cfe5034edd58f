"""Opens ZIP files, also those whose end is missing or damaged."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Notes
from everlong_server.engine.documents.formats.charset import best_encoding, is_utf8

_OF_MAC = "__MACOSX/"
_OFFICE = ({"[content_types].xml", "_rels/.rels"}, {"content.xml", "meta-inf/manifest.xml"})
"""Parts that every file of an Office program has."""
_STEP = 1 << 16
_LOCAL = b"PK\x03\x04"
_MAX_BYTES = 256 << 20
"""Maximum number of unpacked bytes that are read of a damaged file."""
_UTF8 = 0x800
_LETTERS = {*range(0x80, 0x9B), *range(0xA0, 0xA6), 0xE1}
"""Letters of IBM 437, the encoding of names that declare none. Names with other signs are in another one."""


def open_zip(file: Path, notes: Notes | None = None) -> zipfile.ZipFile:
    """Open a ZIP file. If its directory, which is at the end, is missing, its entries are searched for, which is noted.

    Raises what `zipfile` raises if none is found.
    """
    try:
        packed = zipfile.ZipFile(file)
        _leave_folder(packed)
        return packed
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


def _leave_folder(packed: zipfile.ZipFile) -> None:
    """Rename the parts of an Office file if a folder contains them all, as when a program packs the folder of an unpacked file."""
    top, _, _ = next((name for name in packed.namelist() if not name.startswith(_OF_MAC)), "").partition("/")
    own = [entry for entry in packed.infolist() if not entry.filename.startswith(_OF_MAC)]
    inside = {entry.filename[len(top) + 1 :].lower() for entry in own}
    if all(entry.filename.startswith(f"{top}/") for entry in own) and any(parts <= inside for parts in _OFFICE):
        for entry in own:
            entry.filename = entry.filename[len(top) + 1 :]
        packed.NameToInfo = {entry.filename: entry for entry in own}


def entry_names(entries: Sequence[zipfile.ZipInfo]) -> list[str]:
    """Return the names of the entries. Old programs write them in the encoding of their computer, without saying so."""
    undeclared = [
        entry.filename.encode("cp437")
        for entry in entries
        if not entry.flag_bits & _UTF8 and not entry.filename.isascii()
    ]
    joined = b"\n".join(undeclared)
    encoding = "cp437"
    if not all(byte < 0x80 or byte in _LETTERS for byte in joined):
        encoding = "utf-8" if is_utf8(joined) else best_encoding(joined) or "cp437"
    return [
        entry.filename
        if entry.flag_bits & _UTF8 or entry.filename.isascii()
        else entry.filename.encode("cp437").decode(encoding, "replace")
        for entry in entries
    ]


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the entries, the last of which may be cut off."""
    at = total = 0
    while (at := data.find(_LOCAL, at)) >= 0 and len(data) >= at + 30 and total < _MAX_BYTES:
        flags, method, size, name_size, extra = struct.unpack_from("<2xHH8xI4xHH", data, at + 4)
        name = data[at + 30 : at + 30 + name_size].replace(b"\0", b"")
        start = at + 30 + name_size + extra
        at = start
        content = b""
        if method == zipfile.ZIP_STORED:
            content = data[start : start + size]
        elif method == zipfile.ZIP_DEFLATED:
            content, at = _inflated(data, start, _MAX_BYTES - total)
        total += len(content)
        if content and name:
            yield name.decode("utf-8" if flags & _UTF8 else "cp437", "replace"), content


def _inflated(data: bytes, start: int, limit: int) -> tuple[bytes, int]:
    """Unpack the data at `start`, at most about `limit` bytes. Return them and where the packed data end."""
    unpacker, out, at = zlib.decompressobj(-15), bytearray(), start
    try:
        while at < len(data) and not unpacker.eof and len(out) < limit:
            out += unpacker.decompress(data[at : at + _STEP], limit - len(out))
            at += _STEP
    except zlib.error:  # what was unpacked before the damage is kept
        return bytes(out), start
    return bytes(out), min(at, len(data)) - len(unpacker.unused_data)
