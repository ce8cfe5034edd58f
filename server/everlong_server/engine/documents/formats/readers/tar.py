"""Reads tar archives, compressed or not, and single compressed files (gzip, bzip2, xz)."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.archive import MAX_FILES, is_of_system

_MAX_BYTES = 256 << 20
"""Maximum number of unpacked bytes that are read of one file."""
_PIECE = 1 << 16
_DAMAGED = (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error, ValueError)


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the texts of the files in the archive, or of the one file that is compressed."""
    for name, data in files(file, notes):
        yield from notes.nested(data, name or "the compressed file", "File" if name else None)


def files(file: Path, notes: Notes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file in the archive, in its order, or of the one compressed file, whose name is ""."""
    if not tarfile.is_tarfile(file):
        yield from _single(file, notes)
        return
    with tarfile.open(file) as packed:
        count = 0
        try:
            for entry in packed:
                if not entry.isfile() or is_of_system(entry.name):
                    notes.left_out("links and devices in the archive", not entry.isfile() and not entry.isdir())
                    continue
                count += 1
                stream = packed.extractfile(entry) if count <= MAX_FILES else None
                if stream is not None:
                    if entry.size > _MAX_BYTES:
                        notes.add(f"only its first {_MAX_BYTES >> 20} MiB were read", part=entry.name)
                    yield entry.name, stream.read(_MAX_BYTES)
        except _DAMAGED as error:
            notes.add(f"the archive is damaged; what follows was left out ({error})")
        notes.left_out(f"files after the first {MAX_FILES}", max(0, count - MAX_FILES))


def _single(file: Path, notes: Notes) -> Iterator[tuple[str, bytes]]:
    for opener in (gzip.open, bz2.open, lzma.open):
        data = bytearray()
        try:
            with opener(file, "rb") as stream:
                while len(data) < _MAX_BYTES and (piece := stream.read1(_PIECE)):
                    data += piece
                if len(data) >= _MAX_BYTES and stream.read(1):
                    notes.add(f"only its first {_MAX_BYTES >> 20} MiB were read")
        except _DAMAGED:
            if not data:
                continue
            notes.add("the end of the file is missing or damaged; what was found before it was read")
        yield "", bytes(data)
        return
    raise Unreadable("the file is damaged")
