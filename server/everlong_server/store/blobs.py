"""`Blobs`: uploaded texts, on any file system that fsspec knows. What is acknowledged is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_OURS = re.compile(r"doc_[0-9a-f]{32}|\.doc_[0-9a-f]{32}\.part")


class Blobs:
    """Files under one fsspec URL. All methods but `open` are blocking and run in threads."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = fsspec.core.url_to_fs(self.url)
        self._fs.makedirs(self._root, exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    async def create(self, name: str) -> BlobWriter:
        """A writer whose content appears under `name` only when it is committed."""
        partial = self._path(f".{name}.part")
        return BlobWriter(self._fs, await asyncio.to_thread(self._fs.open, partial, "wb"), partial, self._path(name))

    def open(self, name: str, offset: int = 0) -> IO[bytes]:
        """The blob for reading, from byte `offset` on. Raises `FileNotFoundError`."""
        file: IO[bytes] = self._fs.open(self._path(name), "rb")
        file.seek(offset)
        return file

    async def delete(self, name: str) -> None:
        """Removes the blob; no error if there is none."""
        if await asyncio.to_thread(self._fs.exists, self._path(name)):
            await asyncio.to_thread(self._fs.rm_file, self._path(name))

    async def sweep(self, keep: set[str]) -> list[str]:
        """Removes the rests of uploads that were never acknowledged: blobs of ours that are not in `keep`. Their names."""
        entries = await asyncio.to_thread(self._fs.ls, self._root, detail=True)
        names = [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]
        lost = [name for name in names if _OURS.fullmatch(name) and name not in keep]
        for name in lost:
            await self.delete(name)
        return lost


class BlobWriter:
    """Writes one blob. `commit` makes it durable and visible; `abort` leaves nothing behind."""

    def __init__(self, fs: Any, file: IO[bytes], partial: str, final: str) -> None:
        self._fs = fs
        self._file = file
        self._partial = partial
        self._final = final
        self.bytes = 0

    async def write(self, data: bytes) -> None:
        """Appends `data`."""
        await asyncio.to_thread(self._file.write, data)
        self.bytes += len(data)

    async def commit(self) -> None:
        """Flushes to the disk, then puts the blob in its place."""
        await asyncio.to_thread(self._commit)

    def _commit(self) -> None:
        self._file.flush()
        local = isinstance(self._fs, LocalFileSystem)
        if local:
            os.fsync(self._file.fileno())
        self._file.close()
        self._fs.mv(self._partial, self._final)
        if local:
            folder = os.open(os.path.dirname(self._final), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    async def abort(self) -> None:
        """Throws away what was written."""
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses
            self._file.close()
        if await asyncio.to_thread(self._fs.exists, self._partial):
            await asyncio.to_thread(self._fs.rm_file, self._partial)
