"""`LocalCopies`: local copies of blobs, for libraries that only read or write local files, in a folder that only this user can read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

_MOST_BYTES = 1 << 30
_PREFIX, _LOCK = "everlong-copies-", "alive"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own in it


class LocalCopies:
    """Keeps at most 1 GiB of copies besides those in use, and evicts the least recently used.

    `folder`: where to keep them; None: `default_folder`. `secret`: whether the copies are decrypted data.
    """

    def __init__(self, folder: Path | None, *, secret: bool) -> None:
        parent = folder or default_folder(secret=secret)
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        # Removed when this process ends. If it is killed, the next process sweeps the folder.
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent)
        unlocked = Path(self._folder.name, "unlocked")
        self._alive = unlocked.open("x")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        unlocked.rename(unlocked.with_name(_LOCK))
        self._used: dict[str, int] = {}
        """The bytes of each copy, the most recently used last."""
        self._readers: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """The folder of the copies."""
        return Path(self._folder.name)

    def new(self, name: str) -> Path:
        """Return the path for a new file. Its creator removes it."""
        return Path(self._folder.name, f"{uuid.uuid4().hex}.{name}")

    @contextlib.contextmanager
    def of(self, name: str, open_blob: Callable[[], IO[bytes]]) -> Iterator[Path]:
        """Yield the path of a copy of the blob `name`, which is kept while the context lasts."""
        copy = Path(self._folder.name, name)
        with self._lock:
            self._readers[name] += 1
        try:
            if not copy.exists():
                partial = self.new(name)
                try:
                    with open_blob() as source, partial.open("xb") as file:
                        shutil.copyfileobj(source, file, 1 << 20)
                    partial.rename(copy)
                finally:
                    partial.unlink(missing_ok=True)
            with self._lock:
                self._used[name] = self._used.pop(name, 0) or copy.stat().st_size
            yield copy
        finally:
            with self._lock:
                self._readers[name] -= 1
                self._evict()

    def names(self) -> list[str]:
        """Return the names of the blobs that have copies."""
        with self._lock:
            return list(self._used)

    def drop(self, name: str) -> None:
        """Remove the copy. Does nothing if there is none."""
        with self._lock:
            self._used.pop(name, None)
            Path(self._folder.name, name).unlink(missing_ok=True)

    def _evict(self) -> None:
        self._readers = +self._readers
        total = sum(self._used.values())
        for name in [name for name in self._used if name not in self._readers]:
            if total <= _MOST_BYTES:
                return
            total -= self._used.pop(name)
            Path(self._folder.name, name).unlink(missing_ok=True)


def default_folder(*, secret: bool) -> Path:
    """Return the folder for temporary files; for secret copies shared memory, where the system has it."""
    if secret and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that were killed: their locks are free."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / _LOCK).open() as alive:  # in use, another user's, or gone
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
