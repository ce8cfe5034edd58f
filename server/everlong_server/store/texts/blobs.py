"""`Blobs`: uploaded texts and what is made of them, on any file system that fsspec knows. What is acknowledged is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Self

import fsspec
from fsspec.implementations.local import LocalFileSystem

from everlong_server.errors import Damaged
from everlong_server.store.texts.local_copies import LocalCopies
from everlong_server.store.vault import Sealer, Vault

_OURS = re.compile(r"\.?((?:doc|upload)_[0-9a-f]{32})(\.[\w.]+)?")

_PIECE = 1 << 20


class Blobs:
    """Files under one fsspec URL, sealed by `vault`. Methods that are no coroutines block: they are for threads. A store that is
    away is an `OSError`.

    `private_dir`: where copies lie that are not sealed; None: as `LocalCopies` chooses.
    """

    STORE_ID_FILE = "everlong.store"
    """The file by which a Redis knows the store: see `pairing`."""

    def __init__(self, url: str, vault: Vault | None = None, private_dir: Path | None = None) -> None:
        self.url = url.rstrip("/")
        fs, self._root = fsspec.core.url_to_fs(self.url)
        # A listing that was kept would hide what other servers write. Not every file system takes this as an option.
        fs.invalidate_cache()
        fs.dircache.use_listings_cache = False
        self._local = isinstance(fs, LocalFileSystem)
        self._fs: Any = fs if self._local else _RemoteStore(fs)
        self._fs.makedirs(self._root, exist_ok=True)
        self._vault = vault or Vault()
        self._copies = None if self._local and not self._vault else LocalCopies(private_dir, secret=bool(self._vault))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    async def create(self, name: str) -> BlobWriter:
        """A writer whose content appears under `name` only when it is committed."""
        # A name of its own: of two servers that take one request for theirs, each writes its own file.
        partial = self._path(f".{name}.{uuid.uuid4().hex}.part")
        file = await asyncio.to_thread(self._fs.open, partial, "wb")
        return BlobWriter(self._fs, file, partial, self._path(name), self._vault.sealer(_what(name)), local=self._local)

    def open(self, name: str, offset: int = 0) -> IO[bytes]:
        """The blob for reading, from byte `offset` on. Raises `FileNotFoundError`, and `Damaged` or `KeyMissing`."""
        file: IO[bytes] = self._fs.open(self._path(name), "rb")
        try:
            file = self._vault.reader(file, _what(name))
            file.seek(offset)
        except BaseException:
            file.close()
            raise
        return file

    def exists(self, name: str) -> bool:
        """Whether there is such a blob."""
        return bool(self._fs.exists(self._path(name)))

    def check(self, name: str, size: int, digest: str | None) -> str | None:
        """What is wrong with the blob, which should have so many bytes and that SHA-256; None if nothing is."""
        found, length = hashlib.sha256(), 0
        try:
            with self.open(name) as file:
                while data := file.read(_PIECE):
                    length += len(data)
                    if digest is not None:
                        found.update(data)
        except Damaged as error:
            return error.message
        if length != size:
            return f"it has {length} bytes and should have {size}"
        return "its checksum is wrong" if digest is not None and found.hexdigest() != digest else None

    @contextlib.contextmanager
    def fill(self, name: str) -> Iterator[Path]:
        """The path of a new local file, which appears as the blob `name` at the end; an exception leaves nothing."""
        partial = self._path(f".{name}.{uuid.uuid4().hex}.part")
        path = Path(partial) if self._copies is None else self._copies.new(name)
        try:
            yield path
            if self._copies is None:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                _publish(self._fs, partial, self._path(name), local=True)
            else:
                with path.open("rb") as file:
                    self._write(partial, self._path(name), file, self._vault.sealer(_what(name)))
        finally:
            path.unlink(missing_ok=True)

    def _write(self, partial: str, final: str, content: IO[bytes], sealer: Sealer) -> None:
        """Writes all of `content` beside its place, durable, and then puts it there."""
        try:
            with self._fs.open(partial, "wb") as file:
                while data := content.read(_PIECE):
                    file.write(sealer.update(data))
                file.write(sealer.final())
                file.flush()
                if self._local:
                    os.fsync(file.fileno())
            _publish(self._fs, partial, final, local=self._local)
        except BaseException:
            if self._fs.exists(partial):
                self._fs.rm_file(partial)
            raise

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """The blob as a local file: itself, or a copy, which may go when the context has ended. For blobs that never
        change.

        Raises `FileNotFoundError`.
        """
        if self._copies is None:
            if not self.exists(name):
                raise FileNotFoundError(name)
            yield Path(self._path(name))
            return
        with self._copies.of(name, lambda: self.open(name)) as path:
            yield path

    def forget(self, name: str) -> None:
        """Removes our copy of the blob, if there is one."""
        if self._copies is not None:
            self._copies.drop(name)

    def store_id(self) -> str | None:
        """What stands in `WORD`; None if there is no such file."""
        try:
            return str(self._fs.cat_file(self._path(self.STORE_ID_FILE)).decode())
        except FileNotFoundError:
            return None

    def set_store_id(self, word: str) -> None:
        """Writes it, durable."""
        partial = self._path(f".{self.STORE_ID_FILE}.{uuid.uuid4().hex}")
        try:
            with self._fs.open(partial, "wb") as file:
                file.write(word.encode())
                file.flush()
                if self._local:
                    os.fsync(file.fileno())
            _publish(self._fs, partial, self._path(self.STORE_ID_FILE), local=self._local)
        except BaseException:
            if self._fs.exists(partial):
                self._fs.rm_file(partial)
            raise

    def names(self) -> list[str]:
        """Every blob of ours that is complete."""
        entries = self._fs.ls(self._root, detail=True)
        names = (entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file")
        return [name for name in names if _OURS.fullmatch(name) and not name.startswith(".")]

    def reseal(self, name: str) -> bool:
        """Seals the blob with the vault's first key; False if it was. One that was not sealed is. Raises
        `FileNotFoundError`."""
        with self._fs.open(self._path(name), "rb") as file:
            used = self._vault.seals_with(file.read(64))
        if used == self._vault.first:
            return False
        with self._fs.open(self._path(name), "rb") if used is None else self.open(name) as file:
            partial = self._path(f".{name}.{uuid.uuid4().hex}.part")
            self._write(partial, self._path(name), file, self._vault.sealer(_what(name)))
        return True

    async def delete(self, name: str) -> None:
        """Removes the blob; no error if there is none."""
        with contextlib.suppress(FileNotFoundError):  # never there, or another server is deleting it at this moment
            await asyncio.to_thread(self._fs.rm_file, self._path(name))
        await asyncio.to_thread(self.forget, name)  # no other is made any more

    async def sweep(self, keep: Callable[[set[str]], Awaitable[set[str]]], untouched: float = 0.0) -> list[str]:
        """Removes what was never completed, and what belongs to no document or upload; nothing but our own. Their names.
        Also our local copies of what is gone.

        `keep`: which of these ids are a document's or an upload's. `untouched`: only what has not been written for so many
        seconds, where others may be uploading. A file is listed before `keep` is asked, so that what becomes a document
        meanwhile is kept.
        """
        latest = await asyncio.to_thread(self._moment)
        old = await asyncio.to_thread(self._ours, latest - timedelta(seconds=untouched))
        copies = [] if self._copies is None else self._copies.names()
        ids = {match[1] for match in old} | {_what(name) for name in copies}
        kept = await keep(ids) if ids else set()
        lost = [match[0] for match in old if match[0].startswith(".") or match[1] not in kept]
        for name in lost:
            await self.delete(name)
        for name in copies:
            if _what(name) not in kept:  # another server has deleted it
                await asyncio.to_thread(self.forget, name)
        return lost

    def _moment(self) -> datetime:
        """Now, by the clock that the files' times are of: a server's own may be wrong, and take new files for old ones."""
        name = f".doc_{uuid.uuid4().hex}.part"
        self._fs.pipe_file(self._path(name), b"")  # there is room for that on a full disk, too
        try:
            return _in_utc(self._fs.modified(self._path(name)))
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _ours(self, latest: datetime) -> list[re.Match[str]]:
        """Our files that were written by then."""
        entries = self._fs.ls(self._root, detail=True)
        names = [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]
        return [match for name in names if (match := _OURS.fullmatch(name)) and self._written(name) <= latest]

    def _written(self, name: str) -> datetime:
        try:
            return _in_utc(self._fs.modified(self._path(name)))
        except FileNotFoundError:  # complete or deleted since it was listed
            return datetime.max.replace(tzinfo=UTC)

    async def delete_all(self, pattern: str) -> None:
        """Removes the blobs whose names match, with * for anything."""
        for path in await asyncio.to_thread(self._fs.glob, self._path(pattern)):
            await self.delete(path.rsplit("/", 1)[-1])

    async def delete_parts(self, upload: str) -> None:
        """Removes all that was received for an upload, also what is still being written."""
        await self.delete_all(f"*{upload}.*")


class _RemoteStore:
    """A file system that is not this machine's, or a file of it. Whatever its library raises is an `OSError`: each has errors
    of its own for a store that is away."""

    def __init__(self, what: Any) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._what, name)
        return functools.partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return _RemoteStore(result) if hasattr(result, "read") else result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self._what.__exit__, *error)


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class BlobWriter:
    """Writes one blob. `commit` makes it durable and visible; `abort` leaves nothing behind."""

    def __init__(self, fs: Any, file: IO[bytes], partial: str, final: str, sealer: Sealer, *, local: bool) -> None:
        self._fs = fs
        self._file = file
        self._partial = partial
        self._final = final
        self._sealer = sealer
        self._local = local
        self.bytes = 0

    async def write(self, data: bytes) -> None:
        """Appends `data`."""
        await asyncio.to_thread(self._write, data)
        self.bytes += len(data)

    def _write(self, data: bytes) -> None:
        self._file.write(self._sealer.update(data))

    async def commit(self, suffix: str = "") -> None:
        """Flushes to the disk, then puts the blob in its place; `suffix`: behind its name."""
        await asyncio.to_thread(self._commit, suffix)

    def _commit(self, suffix: str) -> None:
        self._file.write(self._sealer.final())
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


def _what(name: str) -> str:
    """What a blob is sealed as: the document or upload that it is of. What follows comes when it is complete."""
    return name.split(".", 1)[0]


def _publish(fs: Any, partial: str, final: str, *, local: bool) -> None:
    """Gives a complete file its name, for good."""
    fs.mv(partial, final)
    if local:
        folder = os.open(os.path.dirname(final), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
