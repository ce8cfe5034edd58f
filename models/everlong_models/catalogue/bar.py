"""`Bar`: the progress of a download, as a bar on a terminal, else as a line for every tenth."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tqdm import tqdm

_SECONDS = 0.2
Progress = Callable[[str], None]
"""Shows a line of progress to the user."""


class Bar:
    """Shows how many of `total` bytes are here."""

    def __init__(self, name: str, total: int, progress: Progress) -> None:
        # disable=None: only if stderr is no terminal
        self._tqdm = tqdm(total=total, desc=name, unit="B", unit_scale=True, disable=None, leave=False)
        self._name, self._total, self._progress = name, total, progress
        self._tenths = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tqdm.close()

    def at(self, done: int) -> None:
        """Show that `done` bytes are here."""
        if not self._tqdm.disable:
            self._tqdm.update(done - self._tqdm.n)
        elif (tenths := 10 * done // self._total) > self._tenths:
            self._tenths = tenths
            self._progress(f"{self._name}: {10 * tenths} % of {self._total / 1e6:,.0f} MB")

    @contextmanager
    def watching(self, folder: Path, base: int, most: int) -> Iterator[None]:
        """While the block downloads a file into `folder`, show `base` plus the file's size, at most `most`, as done."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_SECONDS):
                self.at(base + min(most, _largest(folder)))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _largest(folder: Path) -> int:
    """Return the size of the largest file in `folder`. A download may move or delete files and folders meanwhile."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # skips a folder that is gone, unlike `rglob` of Python 3.11
        for name in names:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes)
