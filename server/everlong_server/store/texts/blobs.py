"""`Blobs`: uploaded texts and their sidecar files, on any file system that fsspec supports. A committed blob is durable."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import functools
import hashlib
import io
import os
import re
import tempfile
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

_BLOB = re.compile(r"\.?((?:doc|upload|file|batch)_[0-9a-f]{32})(\.[\w.]+)?")

_PIECE = 1 << 20


class BlobStoreError(ValueError):
    """The URL of the blob store names no store that this installation can open. The message says why, without the URL, which may hold a
    password."""


class Blobs:
    """Files under one fsspec URL, encrypted by `vault`. Methods that are not coroutines block: call them in a thread.

    A store that cannot be reached raises `OSError`, a URL that cannot be opened `BlobStoreError`. `private_dir`: the folder for unencrypted local copies; None: chosen by
    `LocalCopies`.
    """

    STORE_ID_FILE = "everlong.store"
    """The file that holds the store ID: see `store/store_id.py`."""

    def __init__(self, url: str, vault: Vault | None = None, private_dir: Path | None = None) -> None:
        self.url = url.rstrip("/")
        try:
            fs, self._root = fsspec.core.url_to_fs(self.url)
        except (
            ImportError,
            ValueError,
        ) as error:  # the package for this kind of store is missing, or there is no such kind
            scheme = self.url.partition(":")[0]
            raise BlobStoreError(
                f"--blob-url (EVERLONG_BLOB_URL): cannot open a URL that begins with {scheme!r}: {error}"
            ) from error
        # A cached listing would hide what other servers write. Not every file system takes this as an option.
        fs.invalidate_cache()
        fs.dircache.use_listings_cache = False
        self._local = isinstance(fs, LocalFileSystem)
        self._fs: Any = fs if self._local else _RemoteStore(fs)
        try:
            self._fs.makedirs(self._root, exist_ok=True)
        except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
            raise BlobStoreError(
                f"--blob-url (EVERLONG_BLOB_URL): the folder {self._root} cannot be created: {error.strerror or error}"
            ) from error
        self._vault = vault or Vault()
        self._copies = None if self._local and not self._vault else LocalCopies(private_dir, secret=bool(self._vault))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    async def create(self, name: str) -> BlobWriter:
        """Return a writer for a new blob, which becomes visible when it is committed."""
        return await asyncio.to_thread(self._writer, name, self._vault)

    def _writer(self, name: str, vault: Vault) -> BlobWriter:
        partial = self._partial(name)
        file = self._fs.open(partial, "wb")
        return BlobWriter(self._fs, file, partial, self._path(name), vault.sealer(_owner_id(name)), local=self._local)

    def _partial(self, name: str) -> str:
        """Return a path for an incomplete blob. Its name is unique: two servers may work on the same request at once, and each must
        write its own file."""
        return self._path(f".{name}.{uuid.uuid4().hex}.part")

    def open(self, name: str, offset: int = 0) -> IO[bytes]:
        """Open the blob for reading, at byte `offset`. Raises `FileNotFoundError`, `Damaged` and `KeyMissing`."""
        file: IO[bytes] = self._fs.open(self._path(name), "rb")
        try:
            file = self._vault.reader(file, _owner_id(name))
            file.seek(offset)
        except BaseException:
            file.close()
            raise
        return file

    def open_stored(self, name: str) -> tuple[IO[bytes], int]:
        """Open the blob as it is stored, encrypted or not, and return it with its size. Raises `FileNotFoundError`."""
        file: IO[bytes] = self._fs.open(self._path(name), "rb")
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return file, size

    def put_stored(self, name: str, content: IO[bytes]) -> None:
        """Store a blob as `open_stored` returned it, durably. Raises `ValueError` if `name` is no blob's name."""
        if not _BLOB.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is not the name of a stored file")
        self._write(name, content, Vault())

    def exists(self, name: str) -> bool:
        """Whether the blob exists."""
        return bool(self._fs.exists(self._path(name)))

    def check(self, name: str, size: int, digest: str | None) -> str | None:
        """Return what is wrong with the blob, or None. `size`: its expected bytes. `digest`: its expected SHA-256, as hex."""
        actual, length = hashlib.sha256(), 0
        try:
            with self.open(name) as file:
                while data := file.read(_PIECE):
                    length += len(data)
                    if digest is not None:
                        actual.update(data)
        except Damaged as error:
            return error.message
        if length != size:
            return f"it has {length} bytes, {size} are expected"
        return "its checksum is wrong" if digest is not None and actual.hexdigest() != digest else None

    @contextlib.contextmanager
    def fill(self, name: str) -> Iterator[Path]:
        """Yield the path of a new local file, which becomes the blob `name` at the end. After an exception nothing is left."""
        partial = self._partial(name)
        path = Path(partial) if self._copies is None else self._copies.new(name)
        try:
            yield path
            if self._copies is None:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                _publish(self._fs, partial, self._path(name), local=True)
            else:
                with path.open("rb") as file:
                    self._write(name, file, self._vault)
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a new local folder for working files, as private as they must be. It is deleted at the end. Blocks."""
        with tempfile.TemporaryDirectory(dir=None if self._copies is None else self._copies.folder) as folder:
            yield Path(folder)

    def _write(self, name: str, content: IO[bytes], vault: Vault) -> None:
        """Store `content` as the blob `name`, durably, encrypted by `vault`."""
        writer = self._writer(name, vault)
        try:
            while data := content.read(_PIECE):
                writer.write_now(data)
            writer.commit_now()
        except BaseException:
            writer.abort_now()
            raise

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Yield the path of a local file with the blob's content: the blob itself, or a copy that is kept while the context lasts.

        Use it only for blobs that never change. Raises `FileNotFoundError`.
        """
        if self._copies is None:
            if not self.exists(name):
                raise FileNotFoundError(name)
            yield Path(self._path(name))
            return
        with self._copies.of(name, lambda: self.open(name)) as path:
            yield path

    def forget(self, name: str) -> None:
        """Remove the local copy of the blob, if there is one."""
        if self._copies is not None:
            self._copies.drop(name)

    def store_id(self) -> str | None:
        """Return the store ID; None if the store has none."""
        try:
            return str(self._fs.cat_file(self._path(self.STORE_ID_FILE)).decode())
        except FileNotFoundError:
            return None

    def set_store_id(self, store_id: str) -> None:
        """Write the store ID, durably."""
        self._write(self.STORE_ID_FILE, io.BytesIO(store_id.encode()), Vault())

    def names(self) -> list[str]:
        """Return the names of all complete blobs."""
        return [name for name in self._files() if _BLOB.fullmatch(name) and not name.startswith(".")]

    def _files(self) -> list[str]:
        entries = self._fs.ls(self._root, detail=True)
        return [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]

    def reseal(self, name: str) -> bool:
        """Encrypt the blob with the vault's first key. Returns False if it is already. Raises `FileNotFoundError`."""
        with self._fs.open(self._path(name), "rb") as file:
            used = self._vault.seals_with(file.read(64))
        if used == self._vault.first:
            return False
        with self._fs.open(self._path(name), "rb") if used is None else self.open(name) as file:
            self._write(name, file, self._vault)
        return True

    async def delete(self, name: str) -> None:
        """Delete the blob and its local copy. Does nothing if it does not exist."""
        with contextlib.suppress(
            FileNotFoundError
        ):  # it never existed, or another server is deleting it at this moment
            await asyncio.to_thread(self._fs.rm_file, self._path(name))
        await asyncio.to_thread(self.forget, name)  # after the blob, so that no new copy can be made

    async def sweep(self, keep: Callable[[set[str]], Awaitable[set[str]]], untouched: float = 0.0) -> list[str]:
        """Delete incomplete files and blobs that belong to no document, upload, file or batch, and return their names. Touches no other files.

        Also removes local copies of blobs that no longer have an owner.

        `keep`: returns those of the given ids that have an owner in Redis. `untouched`: only files that were last written
        at least that many seconds ago, where other servers may be writing. Files are listed before `keep` is called, so that the
        text of a document that is created meanwhile is kept.
        """
        current = await asyncio.to_thread(self._current_time)
        old = await asyncio.to_thread(self._written_by, current - timedelta(seconds=untouched))
        copies = [] if self._copies is None else self._copies.names()
        ids = {match[1] for match in old} | {_owner_id(name) for name in copies}
        kept = await keep(ids) if ids else set()
        orphans = [match[0] for match in old if match[0].startswith(".") or match[1] not in kept]
        for name in orphans:
            await self.delete(name)
        for name in copies:
            if _owner_id(name) not in kept:  # another server has deleted its document
                await asyncio.to_thread(self.forget, name)
        return orphans

    def _current_time(self) -> datetime:
        """Return the time by the file system's clock. By a wrong clock of this server, new files could look old."""
        name = f".doc_{uuid.uuid4().hex}.part"
        self._fs.pipe_file(self._path(name), b"")  # an empty file can be written even on a full disk
        try:
            return _in_utc(self._fs.modified(self._path(name)))
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _written_by(self, latest: datetime) -> list[re.Match[str]]:
        """Return everlong's files, complete or not, that were last written at that time or before."""
        found = map(_BLOB.fullmatch, self._files())
        return [match for match in found if match and self._modified(match[0]) <= latest]

    def _modified(self, name: str) -> datetime:
        try:
            return _in_utc(self._fs.modified(self._path(name)))
        except FileNotFoundError:  # committed or deleted since it was listed
            return datetime.max.replace(tzinfo=UTC)

    async def delete_all(self, pattern: str) -> None:
        """Delete the files whose names match a pattern, in which * matches anything."""
        # Not the file system's `glob`, which would also take brackets in the path of the folder as a pattern.
        with contextlib.suppress(FileNotFoundError):  # there is no folder, so there are no files
            for name in fnmatch.filter(await asyncio.to_thread(self._files), pattern):
                await self.delete(name)

    async def delete_parts(self, upload: str) -> None:
        """Delete all parts of an upload, including those that are still being written."""
        await self.delete_all(f"*{upload}.*")


class _RemoteStore:
    """A remote file system, or an open file of one, whose errors are all `OSError`. Each fsspec library has errors of its own for
    a store that cannot be reached."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._wrapped, name)
        return functools.partial(self._call, attribute) if callable(attribute) else attribute

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
        self._call(self._wrapped.__exit__, *error)


def _in_utc(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class BlobWriter:
    """Writes one blob. `commit` makes it durable and visible; `abort` discards it, as does an error in `async with`."""

    def __init__(self, fs: Any, file: IO[bytes], partial: str, final: str, sealer: Sealer, *, local: bool) -> None:
        self._fs = fs
        self._file = file
        self._partial = partial
        self._final = final
        self._sealer = sealer
        self._local = local
        self.bytes = 0

    async def write(self, data: bytes) -> None:
        """Append `data`."""
        await asyncio.to_thread(self.write_now, data)

    def write_now(self, data: bytes) -> None:
        """Append `data`. Blocks."""
        self._file.write(self._sealer.update(data))
        self.bytes += len(data)

    async def commit(self, suffix: str = "") -> None:
        """Flush the blob to the disk and make it visible. `suffix`: is appended to its name."""
        await asyncio.to_thread(self.commit_now, suffix)

    def commit_now(self, suffix: str = "") -> None:
        """Do what `commit` does. Blocks."""
        self._file.write(self._sealer.final())
        self._file.flush()
        if self._local:
            os.fsync(self._file.fileno())
        self._file.close()
        _publish(self._fs, self._partial, self._final + suffix, local=self._local)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            await self.abort()

    async def abort(self) -> None:
        """Discard what was written."""
        await asyncio.to_thread(self.abort_now)

    def abort_now(self) -> None:
        """Discard what was written. Blocks."""
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses
            self._file.close()
        if self._fs.exists(self._partial):
            self._fs.rm_file(self._partial)


class DiscardingWriter:
    """Takes the place of a `BlobWriter` for a blob that is stored already: discards the data."""

    async def write(self, data: bytes) -> None:
        """Discard `data`."""

    async def commit(self, suffix: str = "") -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""


def _owner_id(name: str) -> str:
    """Return the id of the document or upload that owns a blob; also the purpose that it is sealed for.

    The rest of the name is no part of the purpose: a suffix may be known only when the blob is complete.
    """
    return name.split(".", 1)[0]


def _publish(fs: Any, partial: str, final: str, *, local: bool) -> None:
    """Move a complete file to its final name, durably."""
    fs.mv(partial, final)
    if local:
        sync_folder(Path(final).parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
