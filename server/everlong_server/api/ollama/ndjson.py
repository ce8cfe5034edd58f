"""Streams of JSON objects, one a line (NDJSON). If the stream fails, its last line is the error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from everlong_server.api.error_forms import ollama_error
from everlong_server.api.errors import as_server_error
from everlong_server.api.streams.body import StreamBody
from everlong_server.api.streams.json_line import json_line
from everlong_server.services import Services


class _NdjsonResponse(StreamingResponse):
    """Ends if the client reads nothing for `seconds`, so that it does not hold an answer for ever."""

    def __init__(self, lines: StreamBody[bytes], seconds: float) -> None:
        super().__init__(lines, media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})
        self._lines = lines
        self._seconds = seconds

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._seconds):
                await send(message)

        with contextlib.suppress(TimeoutError):
            await super().stream_response(send_in_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._lines):
            await super().__call__(scope, receive, send)


def ndjson_stream(objects: AsyncGenerator[dict[str, Any], None], services: Services) -> StreamingResponse:
    """Return a response that sends `objects`. Closes the generator when the client disconnects."""

    lines = StreamBody(objects, _line, lambda error: _line(ollama_error(as_server_error(error))))
    return _NdjsonResponse(lines, 2 * services.shared.settings.keepalive_seconds)


def _line(value: dict[str, Any]) -> bytes:
    """Encode a line. Raises `ValueError` for an object that cannot be sent."""
    return json_line(value).encode() + b"\n"
