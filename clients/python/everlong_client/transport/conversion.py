"""Reports how far the server is with the conversion of an upload, while the upload waits for its answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeAlias

from everlong_client.errors import EverlongError
from everlong_client.transport import call as calls

if TYPE_CHECKING:
    from everlong_client.transport.async_http import AsyncTransport
    from everlong_client.transport.http import Transport

ConversionProgress: TypeAlias = Callable[[int, int], object]
INTERVAL = 1.0
"""Seconds between two requests for the progress."""
_TIMEOUT = 10.0  # seconds


class ConversionWatch:
    """Calls `report` with the page that is being converted, and the number of pages, each time that the page changes.

    `key`: the `Idempotency-Key` of the upload. Use it with `with` around the upload. Reports from a thread of its own, and
    nothing while the server does not answer. `report`: None reports nothing.
    """

    def __init__(self, transport: Transport, key: str, report: ConversionProgress | None) -> None:
        self._transport, self._key, self._report = transport, key, report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._report is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._report is not None:
            self._thread.join()

    def _watch(self) -> None:
        last = None
        while not self._ended.wait(INTERVAL):
            with suppress(EverlongError):
                page = self._transport.call(calls.conversion(self._key), _TIMEOUT)
                if page is not None and page != last and self._report is not None and not self._ended.is_set():
                    last = page
                    self._report(*page)


class AsyncConversionWatch:
    """As `ConversionWatch`, for the asyncio client: reports from a task of its own."""

    def __init__(self, transport: AsyncTransport, key: str, report: ConversionProgress | None) -> None:
        self._transport, self._key, self._report = transport, key, report
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._report is not None:
            self._task = asyncio.create_task(self._watch(self._report))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self, report: ConversionProgress) -> None:
        last = None
        while True:
            await asyncio.sleep(INTERVAL)
            with suppress(EverlongError):
                page = await self._transport.call(calls.conversion(self._key), _TIMEOUT)
                if page is not None and page != last:
                    last = page
                    report(*page)
