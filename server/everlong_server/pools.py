"""`Pool`: threads for long work. Keeps the threads of `asyncio.to_thread`, which every answer needs, free."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Pool:
    """Runs at most `threads` functions at once and queues the others. Starts threads on demand."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def begin(self, do: Callable[..., T], *arguments: object) -> Future[T]:
        """Start `do` in the caller's context and return its future. A future can be cancelled until it runs."""
        return self._executor.submit(contextvars.copy_context().run, do, *arguments)

    async def run(self, do: Callable[..., T], *arguments: object) -> T:
        """Run `do` in the caller's context and return its result. Cancellation does not stop a function that runs already."""
        return await asyncio.wrap_future(self.begin(do, *arguments))
