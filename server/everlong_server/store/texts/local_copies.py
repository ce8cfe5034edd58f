"""`LocalCopies`: blobs as local files, for what can only read or write these, in a folder that only this process can read."""

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
    """At most 1 GiB of them, beside those in use: the ones that were not used for longest go.

    `folder`: None is the system's for temporary files; if they are `secret`, one in memory if there is one.
    """

    def __init__(self, folder: Path | None, *, secret: bool) -> None:
        parent = folder or place(secret=secret)
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        # Removed when this process ends; what one that was killed has left, the next one sweeps.
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent)
        unlocked = Path(self._folder.name, "unlocked")
        self._alive = unlocked.open("x")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        unlocked.rename(unlocked.with_name(_LOCK))
        self._used: dict[str, int] = {}
        """Bytes of each copy, the one used last at the end."""
        self._readers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def new(self, name: str) -> Path:
        """The path of a file that is not there yet. Whoever makes it removes it."""
        return Path(self._folder.name, f"{uuid.uuid4().hex}.{name}")

    @contextlib.contextmanager
    def of(self, name: str, opened: Callable[[], IO[bytes]]) -> Iterator[Path]:
        """A copy of the blob `name`, which is there as long as the context lasts."""
        copy = Path(self._folder.name, name)
        with self._lock:
            self._readers[name] += 1
        try:
            if not copy.exists():
                partial = self.new(name)
                try:
                    with opened() as source, partial.open("xb") as file:
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
                self._make_room()

    def names(self) -> list[str]:
        """Of which blobs there are copies."""
        with self._lock:
            return list(self._used)

    def drop(self, name: str) -> None:
        """Removes the copy; no error if there is none."""
        with self._lock:
            self._used.pop(name, None)
            Path(self._folder.name, name).unlink(missing_ok=True)

    def _make_room(self) -> None:
        self._readers = +self._readers
        total = sum(self._used.values())
        for name in [name for name in self._used if name not in self._readers]:
            if total <= _MOST_BYTES:
                return
            total -= self._used.pop(name)
            Path(self._folder.name, name).unlink(missing_ok=True)


def place(*, secret: bool) -> Path:
    """Where copies lie unless it is said."""
    if secret and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _sweep(parent: Path) -> None:
    """Removes what processes have left that were killed: nobody holds their locks any more."""
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (left / _LOCK).open() as alive:  # in use, somebody else's, or gone
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
