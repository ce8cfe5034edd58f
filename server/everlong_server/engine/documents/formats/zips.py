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
_LOCAL, _AFTER, _END = b"PK\x03\x04", b"PK\x07\x08", b"PK\x05\x06"
"""The beginnings of an entry, of the sizes after an entry, and of the last record of a file."""
_MAX_END = 22 + (1 << 16)
"""Maximum number of bytes of the last record, with its comment."""
_IN_EXTRA = 0xFFFFFFFF
"""Stands for a size that is in the extra fields (ZIP64)."""
_MAX_BYTES = 256 << 20
"""Maximum number of unpacked bytes that are read of a damaged file."""
_UTF8, _SIZE_FOLLOWS = 0x800, 0x8
"""Flags of entries."""
_LETTERS = {*range(0x80, 0x9B), *range(0xA0, 0xA6), 0xE1}
"""Letters of IBM 437, the encoding of names that declare none. Names with other signs are in another one."""


def open_zip(file: Path, notes: Notes | None = None) -> zipfile.ZipFile:
    """Open a ZIP file. If its directory, which is at the end, is missing, its entries are searched for, which is noted.

    Raises what `zipfile` raises if none is found.
    """
    try:
        packed = zipfile.ZipFile(file)
        if _is_of_inner_file(packed, file):
            packed.close()
            raise zipfile.BadZipFile("its directory is missing")
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


def _is_of_inner_file(packed: zipfile.ZipFile, file: Path) -> bool:
    """Whether the directory belongs to a ZIP file that is stored inside this one, whose own directory is missing.

    In that case the directory's offset is not the one in the last record. A self-extracting program also shifts it, but such a file does
    not begin with an entry.
    """
    with file.open("rb") as stream:
        head = stream.read(len(_LOCAL))
        stream.seek(max(0, file.stat().st_size - _MAX_END))
        tail = stream.read()
    offset = struct.unpack_from("<I", tail, tail.rfind(_END) + 16)[0]
    return head == _LOCAL and offset not in (packed.start_dir, _IN_EXTRA)


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
    sizes = _sizes_after(data)
    while (at := data.find(_LOCAL, at)) >= 0 and len(data) >= at + 30 and total < _MAX_BYTES:
        flags, method, size, name_size, extra_size = struct.unpack_from("<2xHH8xI4xHH", data, at + 4)
        name = data[at + 30 : at + 30 + name_size].replace(b"\0", b"")
        start = at + 30 + name_size + extra_size
        at = start
        content = b""
        if method == zipfile.ZIP_STORED:
            if flags & _SIZE_FOLLOWS:
                size = sizes[start] if start in sizes else _size_to_next(data, start)
            elif size == _IN_EXTRA:
                size = _size_in(data[start - extra_size : start])
            content, at = data[start : start + size], _end_of_stored(data, start, size)
        elif method == zipfile.ZIP_DEFLATED:
            content, at = _inflated(data, start, _MAX_BYTES - total)
        total += len(content)
        if content and name:
            yield name.decode("utf-8" if flags & _UTF8 else "cp437", "replace"), content


def _sizes_after(data: bytes) -> dict[int, int]:
    """Return the sizes of stored entries that are written after them, by the beginning of the entry."""
    sizes: dict[int, int] = {}
    at = 0
    while (at := data.find(_AFTER, at)) >= 0 and len(data) >= at + 12:
        size = struct.unpack_from("<I", data, at + 8)[0]
        sizes.setdefault(at - size, size)
        at += len(_AFTER)
    return sizes


def _size_to_next(data: bytes, start: int) -> int:
    """Return the size of an entry at `start` that goes on to the next one."""
    following = data.find(_LOCAL, start)
    return (following if following >= 0 else len(data)) - start


def _end_of_stored(data: bytes, start: int, size: int) -> int:
    """Return where to search for the next entry after a stored one. Entries inside it are those of another file.

    Return its beginning if no entry follows it: its size is damaged.
    """
    end = start + size
    is_followed = end == len(data) or data.startswith(b"PK", end)
    is_cut = end > len(data) and data.startswith(_LOCAL, start)
    return end if is_followed or is_cut else start


def _size_in(extra: bytes) -> int:
    """Return the size that the extra fields of an entry contain; 0 if it is missing."""
    at = 0
    while len(extra) >= at + 12:
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            return int.from_bytes(extra[at + 4 : at + 12], "little")
        at += 4 + length
    return 0


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
