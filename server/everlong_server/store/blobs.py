"""`Blobs`: uploaded texts and what is made of them, on any file system that fsspec knows. What is acknowledged is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_OURS = re.compile(r"\.?((?:doc|upload)_[0-9a-f]{32})(\.[\w.]+)?")

_PIECE = 1 << 20


class Blobs:
    """Files under one fsspec URL. Methods that are no coroutines block: they are for threads."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = fsspec.core.url_to_fs(self.url)
        self._fs.makedirs(self._root, exist_ok=True)
        local = isinstance(self._fs, LocalFileSystem)
        self._copies = None if local else tempfile.TemporaryDirectory(prefix="everlong")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    async def create(self, name: str) -> BlobWriter:
        """A writer whose content appears under `name` only when it is committed."""
        # A name of its own: of two servers that take one request for theirs, each writes its own file.
        partial = self._path(f".{name}.{uuid.uuid4().hex}.part")
        file = await asyncio.to_thread(self._fs.open, partial, "wb")
        return BlobWriter(self._fs, file, partial, self._path(name), local=self._copies is None)

    def open(self, name: str, offset: int = 0) -> IO[bytes]:
        """The blob for reading, from byte `offset` on. Raises `FileNotFoundError`."""
        file: IO[bytes] = self._fs.open(self._path(name), "rb")
        file.seek(offset)
        return file

    def exists(self, name: str) -> bool:
        """Whether there is such a blob."""
        return bool(self._fs.exists(self._path(name)))

    def check(self, name: str, size: int, digest: str | None) -> str | None:
        """What is wrong with the blob, which should have so many bytes and that SHA-256; None if nothing is."""
        found, length = hashlib.sha256(), 0
        with self.open(name) as file:
            while data := file.read(_PIECE):
                length += len(data)
                if digest is not None:
                    found.update(data)
        if length != size:
            return f"it has {length} bytes and should have {size}"
        return "its checksum is wrong" if digest is not None and found.hexdigest() != digest else None

    @contextlib.contextmanager
    def fill(self, name: str) -> Iterator[Path]:
        """The path of a new local file, which appears as the blob `name` at the end; an exception leaves nothing."""
        partial = self._path(f".{name}.{uuid.uuid4().hex}.part")
        path = Path(partial) if self._copies is None else Path(self._copies.name, Path(partial).name)
        try:
            yield path
            if self._copies is None:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            else:
                self._fs.put_file(str(path), partial)
            _publish(self._fs, partial, self._path(name), local=self._copies is None)
        finally:
            path.unlink(missing_ok=True)

    def local(self, name: str) -> Path:
        """The blob as a local file: itself, or a copy that lives as long as this process. For blobs that never change.

        Raises `FileNotFoundError`.
        """
        if self._copies is None:
            if not self.exists(name):
                raise FileNotFoundError(name)
            return Path(self._path(name))
        copy = Path(self._copies.name, name)
        if not copy.exists():
            partial = copy.with_suffix(f".{uuid.uuid4().hex}")
            self._fs.get_file(self._path(name), str(partial))
            partial.rename(copy)
        return copy

    async def delete(self, name: str) -> None:
        """Removes the blob; no error if there is none."""
        if self._copies is not None:
            await asyncio.to_thread(Path(self._copies.name, name).unlink, missing_ok=True)
        with contextlib.suppress(FileNotFoundError):  # never there, or another server is deleting it at this moment
            await asyncio.to_thread(self._fs.rm_file, self._path(name))

    async def sweep(self, keep: Callable[[], Awaitable[set[str]]], untouched: float = 0.0) -> list[str]:
        """Removes what was never completed, and what belongs to no document or upload in `keep`; nothing but our own.
        Their names.

        `untouched`: only what has not been written for so many seconds, where others may be uploading. A file is listed
        before `keep` is asked, so that what becomes a document meanwhile is in it.
        """
        latest = datetime.now(UTC) - timedelta(seconds=untouched)
        old = await asyncio.to_thread(self._ours, latest)
        kept = await keep() if old else set()
        lost = [match[0] for match in old if match[0].startswith(".") or match[1] not in kept]
        for name in lost:
            await self.delete(name)
        return lost

    def _ours(self, latest: datetime) -> list[re.Match[str]]:
        """Our files that were written by then."""
        entries = self._fs.ls(self._root, detail=True)
        names = [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]
        return [match for name in names if (match := _OURS.fullmatch(name)) and self._written(name) <= latest]

    def _written(self, name: str) -> datetime:
        try:
            moment: datetime = self._fs.modified(self._path(name))
        except FileNotFoundError:  # complete or deleted since it was listed
            return datetime.max.replace(tzinfo=UTC)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    async def delete_parts(self, upload: str) -> None:
        """Removes all that was received for an upload, also what is still being written."""
        for path in await asyncio.to_thread(self._fs.glob, self._path(f"*{upload}.*")):
            await self.delete(path.rsplit("/", 1)[-1])


class BlobWriter:
    """Writes one blob. `commit` makes it durable and visible; `abort` leaves nothing behind."""

    def __init__(self, fs: Any, file: IO[bytes], partial: str, final: str, *, local: bool) -> None:
        self._fs = fs
        self._file = file
        self._partial = partial
        self._final = final
        self._local = local
        self.bytes = 0

    async def write(self, data: bytes) -> None:
        """Appends `data`."""
        await asyncio.to_thread(self._file.write, data)
        self.bytes += len(data)

    async def commit(self, suffix: str = "") -> None:
        """Flushes to the disk, then puts the blob in its place; `suffix`: behind its name."""
        await asyncio.to_thread(self._commit, suffix)

    def _commit(self, suffix: str) -> None:
        self._file.flush()
        if self._local:
            os.fsync(self._file.fileno())
        self._file.close()
        _publish(self._fs, self._partial, self._final + suffix, local=self._local)

    async def abort(self) -> None:
        """Throws away what was written."""
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses
            self._file.close()
        if await asyncio.to_thread(self._fs.exists, self._partial):
            await asyncio.to_thread(self._fs.rm_file, self._partial)


def _publish(fs: Any, partial: str, final: str, *, local: bool) -> None:
    """Gives a complete file its name, for good."""
    fs.mv(partial, final)
    if local:
        folder = os.open(os.path.dirname(final), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
