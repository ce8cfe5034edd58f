"""`Pool`: threads for long work. Keeps the threads of `asyncio.to_thread`, which every answer needs, free. `SharedPool`: a pool
with a limit for each tenant."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


LOW_PRIORITY = 10
"""Niceness of threads whose work can wait, below the threads that answer."""


class Pool:
    """Runs at most `threads` functions at once and queues the others. Starts threads on demand.

    `niceness`: priority of the threads, 0 (that of the process) to 19 (lowest), where the system has such priorities.
    """

    def __init__(self, name: str, threads: int, *, niceness: int = 0) -> None:
        self._executor = ThreadPoolExecutor(threads, name, _set_niceness, (niceness,))

    def begin(self, do: Callable[..., T], *arguments: object) -> Future[T]:
        """Start `do` in the caller's context and return its future. A future can be cancelled until it runs."""
        return self._executor.submit(contextvars.copy_context().run, do, *arguments)

    async def run(self, do: Callable[..., T], *arguments: object) -> T:
        """Run `do` in the caller's context and return its result. Cancellation does not stop a function that runs already."""
        return await asyncio.wrap_future(self.begin(do, *arguments))


class SharedPool(Pool):
    """A pool that runs at most `each` functions of one tenant at once."""

    def __init__(self, name: str, threads: int, *, each: int) -> None:
        super().__init__(name, threads)
        self._each = each
        self._tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run_for(self, tenant: str, do: Callable[[], T]) -> T:
        """Run `do` in the caller's context and return its result. If cancelled while `do` runs, waits until it ends: a thread cannot be stopped."""
        async with self._tenants.setdefault(tenant, asyncio.Semaphore(self._each)):
            future = self.begin(do)
            running = asyncio.wrap_future(future)
            try:
                return await asyncio.shield(running)
            except BaseException:
                if not future.cancel():
                    await asyncio.wait([running])
                raise


def _set_niceness(niceness: int) -> None:
    """Lower the priority of the current thread."""
    if niceness:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
