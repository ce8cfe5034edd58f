"""`run_unless_disconnected`: cancels work when its caller disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from everlong_server.tasks import cancel

T = TypeVar("T")


async def run_unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the caller disconnects first, cancel `work` and raise `ClientDisconnect`."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    result, disconnected = asyncio.create_task(work), asyncio.create_task(disconnect())
    try:
        await asyncio.wait((result, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return await result
    finally:
        await cancel(result, disconnected)
