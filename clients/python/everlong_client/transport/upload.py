"""The body of an upload: splits a path, bytes, a file or an iterator into chunks, and counts the bytes sent."""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import IO, Protocol, TypeAlias, runtime_checkable

from everlong_client.errors import NotSentError

CHUNK = 256 * 1024  # bytes
PART = 8 * 1024 * 1024
"""Bytes. A longer source is sent in parts of this size, so that a lost connection costs at most one part."""

Source: TypeAlias = str | os.PathLike[str] | bytes | IO[bytes] | IO[str] | Iterable[bytes] | Iterable[str]
AnySource: TypeAlias = Source | AsyncIterable[bytes] | AsyncIterable[str]
UploadProgress: TypeAlias = Callable[[int, int | None], object]


class Upload:
    """The source of an upload. Iterate over it, with `for` or `async for`, to get its chunks.

    `source` is a path, bytes, an open file, or an iterator of bytes or text. A string is always a path; text is sent as
    UTF-8. `total` is the length in bytes, or None if it is unknown; if the file grows during the upload, only `total`
    bytes are sent. `progress` is called with the bytes sent so far and the total. `repeatable` says whether the source
    can be read a second time. Raises `OSError` if the path cannot be read, and while sending `NotSentError` if the file
    was truncated.
    """

    def __init__(self, source: AnySource, filename: str | None = None, progress: UploadProgress | None = None) -> None:
        self._source = Path(source) if isinstance(source, str | os.PathLike) else source
        self._progress = progress or (lambda sent, total: None)
        self._sent = 0
        self.filename = filename or _name(self._source)
        # A pipe, an open file and an iterator can be read only once.
        self.repeatable = isinstance(self._source, bytes) or (isinstance(self._source, Path) and self._source.is_file())
        self.total = _size(self._source)

    @property
    def in_parts(self) -> bool:
        """Whether to send it in parts: its length is known and above `PART`."""
        return self.total is not None and self.total > PART

    def parts(self) -> Generator[bytes]:
        """Yield the parts. A part counts as sent when the next one is requested."""
        self._sent = 0
        self._progress(0, self.total)
        source = self._source
        with source.open("rb") if isinstance(source, Path) else nullcontext(source) as opened:
            file = io.BytesIO(opened) if isinstance(opened, bytes) else opened
            assert isinstance(file, _File)  # no other source has a known length
            for part in self._whole(_read(file, PART)):
                yield part
                self._count(part)

    def __iter__(self) -> Iterator[bytes]:
        self._sent = 0
        self._progress(0, self.total)
        with closing(self._chunks()) as chunks:
            for chunk in chunks:
                yield chunk
                self._count(chunk)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._sent = 0
        self._progress(0, self.total)
        async for chunk in self._achunks():
            yield chunk
            self._count(chunk)

    def _count(self, chunk: bytes) -> None:
        self._sent += len(chunk)
        self._progress(self._sent, self.total)

    def _whole(self, pieces: Iterator[bytes]) -> Generator[bytes]:
        """Yield the pieces up to `total` bytes. Raises `NotSentError` if there are fewer."""
        if self.total is None:
            yield from pieces
            return
        left = self.total
        while left > 0:
            piece = next(pieces, b"")[:left]
            if not piece:
                missing = f"{left:,} of its {self.total:,} bytes are missing"
                raise NotSentError(f"{self.filename or 'the file'} was truncated during the upload: {missing}")
            left -= len(piece)
            yield piece

    def _chunks(self) -> Generator[bytes]:
        with closing(self._pieces()) as pieces:
            yield from self._whole(pieces)

    def _pieces(self) -> Generator[bytes]:
        source = self._source
        if isinstance(source, Path):
            with source.open("rb") as file:
                yield from _read(file, CHUNK)
        elif isinstance(source, bytes):
            yield from (source[start : start + CHUNK] for start in range(0, len(source), CHUNK))
        elif isinstance(source, AsyncIterable):
            raise TypeError("only AsyncEverlong can upload an async iterator")
        elif isinstance(source, _File):
            yield from _read(source, CHUNK)
        else:
            buffer = _ChunkBuffer()
            for piece in source:
                if chunk := buffer.add(piece):
                    yield chunk
            if chunk := buffer.flush():
                yield chunk

    async def _achunks(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, AsyncIterable):
            buffer = _ChunkBuffer()
            async for piece in self._source:
                if chunk := buffer.add(piece):
                    yield chunk
            if chunk := buffer.flush():
                yield chunk
            return
        with closing(self._chunks()) as chunks:
            # In a thread, so that a slow disk or a slow generator does not block the event loop.
            while chunk := await asyncio.to_thread(next, chunks, b""):
                yield chunk


class _ChunkBuffer:
    """Joins small pieces into chunks, so that an iterator of lines is not sent in one packet per line."""

    def __init__(self) -> None:
        self._held = bytearray()

    def add(self, piece: bytes | str) -> bytes:
        """Return the chunk that `piece` completes, or empty bytes."""
        self._held += _bytes(piece)
        return self.flush() if len(self._held) >= CHUNK else b""

    def flush(self) -> bytes:
        """Return the buffered bytes and clear the buffer."""
        chunk = bytes(self._held)
        self._held.clear()
        return chunk


@runtime_checkable
class _File(Protocol):
    def read(self, size: int, /) -> bytes | str: ...


def _read(file: _File, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield _bytes(piece)


def _bytes(piece: bytes | str) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece


def _name(source: object) -> str | None:
    name = source.name if isinstance(source, Path) else getattr(source, "name", None)
    # The name of a file on a pipe or descriptor is a number, or something like "<stdin>".
    if not isinstance(name, str) or name.startswith("<"):
        return None
    # Replaces bytes of the name that are not valid Unicode, which cannot be sent.
    return Path(name).name.encode(errors="replace").decode()


def _size(source: object) -> int | None:
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, Path):
        info = source.stat()
        # The virtual files in /proc report size 0: treat their length as unknown.
        return info.st_size or None if stat.S_ISREG(info.st_mode) else None
    if isinstance(source, io.RawIOBase | io.BufferedIOBase) and source.seekable():
        here = source.tell()
        with suppress(OSError):  # virtual files such as those in /proc cannot seek to the end
            end = source.seek(0, io.SEEK_END)
            source.seek(here)
            return end - here
    return None
