"""`SharedCall`: calls that arrive while one is running share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SharedCall(Generic[_T]):
    """Calls `function` for all who wait for it. The result is never older than the call that gets it."""

    def __init__(self, function: Callable[[], Awaitable[_T]]) -> None:
        self._function = function
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Task[_T] | None = None

    async def call(self) -> _T:
        """Return the result of a call that begins after this one did. Raises what `function` raises."""
        if self._next is None or self._next.done():  # done: it was cancelled before it began
            self._next = asyncio.create_task(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> _T:
        async with self._one_at_a_time:
            self._next = None
            return await self._function()
