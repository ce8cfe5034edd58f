"""`EventLoopBridge`: what the device's thread has to say to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

Letter = tuple[Callable[[Any], None], Any]


class EventLoopBridge:
    """Thread-safe. What is put in comes to its loop in that order: at once, or, while it is `buffered`, together."""

    def __init__(self) -> None:
        self._letters: deque[tuple[asyncio.AbstractEventLoop, Letter]] = deque()
        self._flushing = threading.Lock()
        self._buffering = False

    def call_soon(self, loop: asyncio.AbstractEventLoop, call: Callable[[Any], None], argument: Any) -> None:
        """`call(argument)` on the loop's thread; a loop that has closed no longer wants to know."""
        self._letters.append((loop, (call, argument)))
        if not self._buffering:
            self.flush()

    @contextmanager
    def buffered(self) -> Iterator[None]:
        """Within it no loop is woken but by `flush`: it would take Python's lock from who has work to make ready. One thread's."""
        self._buffering = True
        try:
            yield
        finally:
            self._buffering = False
            self.flush()

    def flush(self) -> None:
        """Wakes the loops."""
        if not self._letters:
            return
        with self._flushing:  # or what was put in later may come first
            there = [self._letters.popleft() for _ in range(len(self._letters))]
            for loop, letters in groupby(there, lambda pair: pair[0]):
                try:
                    loop.call_soon_threadsafe(_open, loop, [letter for _, letter in letters])
                except RuntimeError:
                    if not loop.is_closed():
                        raise


def _open(loop: asyncio.AbstractEventLoop, letters: Sequence[Letter]) -> None:
    """Each by itself, so that one that fails keeps no other from its own."""
    for call, argument in letters:
        loop.call_soon(call, argument)
