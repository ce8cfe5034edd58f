"""`EventLoopBridge`: passes calls from the device thread to event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

Call = tuple[Callable[[Any], None], Any]
"""A function and its one argument."""


class EventLoopBridge:
    """Runs calls on their event loop in the order they were made: at once or, while `buffered`, in batches. Thread-safe."""

    def __init__(self) -> None:
        self._calls: deque[tuple[asyncio.AbstractEventLoop, Call]] = deque()
        self._flushing = threading.Lock()
        self._buffering = False

    def call_soon(self, loop: asyncio.AbstractEventLoop, call: Callable[[Any], None], argument: Any) -> None:
        """Run `call(argument)` on the loop's thread. A loop that is closed drops the call."""
        self._calls.append((loop, (call, argument)))
        if not self._buffering:
            self.flush()

    @contextmanager
    def buffered(self) -> Iterator[None]:
        """Collect calls until `flush` or the end of the block. For one thread at a time.

        Waking a loop takes the GIL from the device thread while it prepares work for the device.
        """
        self._buffering = True
        try:
            yield
        finally:
            self._buffering = False
            self.flush()

    def flush(self) -> None:
        """Hand all collected calls to their loops, and wake these."""
        if not self._calls:
            return
        with self._flushing:  # a second thread could otherwise deliver later calls first
            calls = [self._calls.popleft() for _ in range(len(self._calls))]
            for loop, batch in groupby(calls, lambda pair: pair[0]):
                try:
                    loop.call_soon_threadsafe(_run_calls, loop, [call for _, call in batch])
                except RuntimeError:
                    if not loop.is_closed():
                        raise


def _run_calls(loop: asyncio.AbstractEventLoop, calls: Sequence[Call]) -> None:
    """Schedule each call separately, so that one that fails does not prevent the others."""
    for call, argument in calls:
        loop.call_soon(call, argument)
