"""Server-sent events: JSON objects with a type, keep-alive comments, and an error event if the stream fails."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from everlong_server.api.errors import as_server_error
from everlong_server.api.streams.body import StreamBody
from everlong_server.api.streams.json_line import json_line

log = logging.getLogger(__name__)

_LINE_END = "\n"


def event_stream(
    events: AsyncGenerator[dict[str, Any], None],
    keepalive_seconds: float,
    error_form: Callable[[Exception], dict[str, Any]] | None = None,
) -> EventSourceResponse:
    """Return a response that sends `events`. Closes the generator when the client disconnects.

    `error_form`: returns the last event of a stream that fails; by default, that of the native API.
    """

    body = StreamBody(
        events,
        lambda event: _sent(json_line(event), event["type"]),
        lambda error: _sent(json.dumps((error_form or error_event)(error)), "error"),
    )
    return _EventStream(body, keepalive_seconds)


def data_stream(events: AsyncGenerator[dict[str, Any], None], keepalive_seconds: float) -> EventSourceResponse:
    """Return a response in the format of OpenAI's chat completions: events have no names, and `[DONE]` follows the last."""

    body = StreamBody(
        events,
        lambda event: _sent(json_line(event)),
        lambda error: _sent(json.dumps(as_server_error(error).body())),
        end=_sent("[DONE]"),
    )
    return _EventStream(body, keepalive_seconds)


def _sent(data: str, name: str | None = None) -> ServerSentEvent:
    """Return an event. Its lines end with LF alone, as those of OpenAI's API: many programs take two LF for the end of an event."""
    return ServerSentEvent(data, event=name, sep=_LINE_END)


class _EventStream(EventSourceResponse):
    """Closes its body in any case."""

    def __init__(self, body: StreamBody[ServerSentEvent], keepalive_seconds: float) -> None:
        super().__init__(
            body,
            ping=keepalive_seconds,
            # A client that reads nothing for this long must not hold its session any longer.
            send_timeout=2 * keepalive_seconds,
            sep=_LINE_END,
            headers={"Cache-Control": "no-store"},
        )
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._body):
            await super().__call__(scope, receive, send)


def error_event(error: Exception) -> dict[str, Any]:
    """Return `error` as an event. `retry_after`, in seconds, replaces HTTP's `Retry-After` header."""
    known = as_server_error(error)
    retry = {} if known.retry_after is None else {"retry_after": known.retry_after}
    return {"type": "error", "error": known.body()["error"] | retry}
