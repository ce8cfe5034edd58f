"""`run_unless_disconnected`: work for a caller who waits for the whole answer, and may go away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def run_unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None if the caller goes away, upon which `work` is cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, left = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        left.cancel()
        answer.cancel()
        await asyncio.gather(answer, left, return_exceptions=True)
