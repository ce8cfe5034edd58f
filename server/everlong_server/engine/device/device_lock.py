"""`DeviceLock`: lets the device threads of several models compute in turn.

Kernels use all cores of a CPU, and wait for each other's parts by spinning: two models that computed at once would each be many
times slower.
"""

from __future__ import annotations

import threading
import time
from collections import deque


class DeviceLock:
    """A lock that waiting threads get in the order in which they came. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        """Wait for the lock, behind all threads that wait already."""
        with self._guard:
            if not self._held:
                self._held = True
                return
            self._waiting.append(handed_over := threading.Event())
        handed_over.wait()

    def __exit__(self, *_: object) -> None:
        """Hand the lock to the thread that has waited longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def pass_on(self) -> float:
        """Let every thread that waits have the lock once, and return the seconds until this thread had it back. The caller holds it."""
        if not self._waiting:
            return 0.0
        start = time.perf_counter()
        self.__exit__()
        self.__enter__()
        return time.perf_counter() - start
