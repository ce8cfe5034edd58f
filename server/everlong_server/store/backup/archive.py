"""The file of a backup: a tar archive of Redis' snapshot and the blobs, with a manifest of their sizes and SHA-256 at its end."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from everlong_server.store.backup.running import BackupError
from everlong_server.store.texts.blobs import sync_folder

FORMAT = 1
REDIS = "redis.rdb"
FILES = "files/"
_MANIFEST = "manifest.json"
_PIECE = 1 << 20

Progress = Callable[[int], None]
"""Called with the number of bytes that were handled since the last call."""


@dataclass(slots=True)
class Manifest:
    """What a backup contains. `schema`: version of the stored data's layout; `database`: number of Redis' database; `members`: size
    and SHA-256 of each member."""

    everlong: str
    schema: int
    database: int
    created_at: float
    members: dict[str, tuple[int, str]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """The size of all members."""
        return sum(size for size, _ in self.members.values())

    @property
    def files(self) -> int:
        """The number of blobs."""
        return sum(name.startswith(FILES) for name in self.members)


class ArchiveWriter:
    """Writes an archive. It has its name only once it is complete and on disk.

    As a context, it removes an incomplete archive. Raises `BackupError` if the file exists, and `OSError`.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        _require_new(path)
        self._path = path
        self._partial = path.with_name(f".{path.name}.part")
        self._manifest = manifest
        # Only for its owner: it has what users wrote.
        self._file = os.fdopen(os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, name: str, content: IO[bytes], size: int, progress: Progress) -> None:
        """Add `size` bytes of `content`. Raises `BackupError` if there are fewer."""
        reader = _Hashing(content, progress)
        info = tarfile.TarInfo(name)
        info.size = size
        try:
            self._tar.addfile(info, reader)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno is not None:
                raise
            raise BackupError(f"{name} changed while it was copied: {error}") from None  # "unexpected end of data"
        self._manifest.members[name] = (size, reader.digest.hexdigest())

    def finish(self) -> None:
        """Add the manifest, make the archive durable and give it its name."""
        text = json.dumps(asdict(self._manifest)).encode()
        text += b"\n" + hashlib.sha256(text).hexdigest().encode()
        info = tarfile.TarInfo(_MANIFEST)
        info.size = len(text)
        self._tar.addfile(info, io.BytesIO(text))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _require_new(self._path)
        self._partial.rename(self._path)
        sync_folder(self._path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


def _require_new(path: Path) -> None:
    if path.exists():
        raise BackupError(f"{path} exists: choose another name")


def verify(path: Path, progress: Progress) -> Manifest:
    """Read the whole archive and compare it with its manifest. Raises `BackupError` and `OSError`."""
    found: dict[str, tuple[int, str]] = {}
    manifest: Manifest | None = None
    with opened(path) as contents:
        for name, content in contents:
            if name == _MANIFEST:
                manifest = _parse(content.read(), path)
                break
            reader, size = _Hashing(content, progress), 0
            while data := reader.read(_PIECE):
                size += len(data)
            found[name] = (size, reader.digest.hexdigest())
    if manifest is None:
        raise BackupError(f"{path} is truncated or damaged: its end, with the manifest, is missing")
    for name, stored in manifest.members.items():
        if found.get(name) != stored:
            raise BackupError(f"{path} is damaged: {name} does not have the SHA-256 and size of the manifest")
    if found.keys() != manifest.members.keys() or REDIS not in found:
        raise BackupError(f"{path} is damaged: its files are not those that its manifest lists")
    return manifest


@contextmanager
def opened(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Yield the name and the content of each member, in order. Raises `BackupError`, also while a content is read, and `OSError`."""
    try:
        with tarfile.open(path, mode="r:") as tar:
            yield _members(tar, path)
    except tarfile.TarError as error:
        raise BackupError(f"{path} is no backup of everlong, or it is truncated or damaged: {error}") from None


def _members(tar: tarfile.TarFile, path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    for info in tar:
        content = tar.extractfile(info)
        if content is None:
            raise BackupError(f"{path} is damaged: {info.name[:100]!r} is not a file")
        yield info.name, content


def _parse(text: bytes, path: Path) -> Manifest:
    body, _, digest = text.rpartition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise BackupError(f"{path} is damaged: its manifest does not have its own SHA-256")
    fields: dict[str, Any] = json.loads(body)
    if fields["format"] > FORMAT:
        raise BackupError(
            f"{path} was made by a newer everlong ({fields['everlong']}): its format is {fields['format']}, and this version reads "
            f"up to {FORMAT}. Restore it with the newer version"
        )
    return Manifest(**fields | {"members": {name: tuple(stored) for name, stored in fields["members"].items()}})


class _Hashing:
    """A file whose SHA-256 is computed while it is read."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        data = self._file.read(size)
        self.digest.update(data)
        self._progress(len(data))
        return data
