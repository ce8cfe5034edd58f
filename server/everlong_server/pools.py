"""`Pool`: threads for work that takes long, apart from those of `asyncio.to_thread`, which every answer waits for."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Pool:
    """At most `threads` at once; what is more waits in line. They are made when they are needed."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def begin(self, do: Callable[..., T], *arguments: object) -> Future[T]:
        """What `do` will return, in the caller's context. Cancelling it succeeds unless it has begun."""
        return self._executor.submit(contextvars.copy_context().run, do, *arguments)

    async def run(self, do: Callable[..., T], *arguments: object) -> T:
        """What `do` returns, in the caller's context. Cancelling ends the waiting only, unless it has not begun."""
        return await asyncio.wrap_future(self.begin(do, *arguments))
