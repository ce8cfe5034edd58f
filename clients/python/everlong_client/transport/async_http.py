"""`AsyncTransport`: sends calls over HTTP. `make_sync.py` makes `http.py`, for the blocking client, from this file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx

from everlong_client.errors import EverlongError
from everlong_client.transport.call import Call, Page
from everlong_client.transport.sse import ServerSentEvent, SSEDecoder
from everlong_client.transport.wire import Wire

T = TypeVar("T")


class AsyncTransport:
    """Sends calls and parses the responses, with retries."""

    def __init__(self, wire: Wire, http: httpx.AsyncClient) -> None:
        self.wire = wire
        self.http = http

    async def call(self, call: Call[T], read_timeout: float | None = None) -> T:
        """Send a call and return its parsed response. `read_timeout`: seconds, in place of the client's; None for the client's."""
        retrying = self.wire.retrying(call, read_timeout)
        while True:
            body = aiter(call.body) if call.body is not None else None
            try:
                with self.wire.http_errors():
                    response = await self.http.send(
                        self.wire.request(self.http, call, body, read_timeout, retrying.headers)
                    )
                return self.wire.result(call, response)
            except EverlongError as error:
                if retrying.already_done(error):
                    return call.parse(None)
                await asyncio.sleep(retrying.pause(error))

    async def pages(self, first: Call[Page[T]]) -> tuple[T, ...]:
        """Send a call for a page, and those for the pages after it. Return the items of all."""
        items: tuple[T, ...] = ()
        call: Call[Page[T]] | None = first
        while call is not None:
            page = await self.call(call)
            items += page.items
            call = page.next
        return items

    @asynccontextmanager
    async def stream(
        self, call: Call[T], read_timeout: float | None = None
    ) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
        """Send a call and return the events of its response. Leaving the context closes the response."""
        response = await self._open_stream(call, read_timeout)
        try:
            self.wire.check_stream(response)
            yield self._server_sent_events(response)
        finally:
            await response.aclose()

    async def _open_stream(self, call: Call[T], read_timeout: float | None) -> httpx.Response:
        """Return a successful response whose body is not read yet."""
        retrying = self.wire.retrying(call, read_timeout)
        while True:
            try:
                with self.wire.http_errors():
                    response = await self.http.send(
                        self.wire.request(self.http, call, None, read_timeout, retrying.headers), stream=True
                    )
                    if response.is_success:
                        return response
                    try:
                        await response.aread()
                    finally:
                        await response.aclose()
                self.wire.check(response)
            except EverlongError as error:
                await asyncio.sleep(retrying.pause(error))

    async def _server_sent_events(self, response: httpx.Response) -> AsyncIterator[ServerSentEvent]:
        decoder = SSEDecoder()
        with self.wire.http_errors(streaming=True):
            async for chunk in response.aiter_bytes():
                for event in decoder.feed(chunk):
                    yield event
