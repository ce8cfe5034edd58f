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

log = logging.getLogger(__name__)


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
        lambda event: ServerSentEvent(_data(event), event=event["type"]),
        lambda error: ServerSentEvent(json.dumps((error_form or error_event)(error)), event="error"),
    )
    return _EventStream(body, keepalive_seconds)


def data_stream(events: AsyncGenerator[dict[str, Any], None], keepalive_seconds: float) -> EventSourceResponse:
    """Return a response in the format of OpenAI's chat completions: events have no names, and `[DONE]` follows the last."""

    body = StreamBody(
        events,
        lambda event: ServerSentEvent(_data(event)),
        lambda error: ServerSentEvent(json.dumps(as_server_error(error).body())),
        end=ServerSentEvent("[DONE]"),
    )
    return _EventStream(body, keepalive_seconds)


def _data(event: dict[str, Any]) -> str:
    """Encode an event. Raises `ValueError` for one that cannot be sent, so that the stream ends with an error event instead
    of being cut off."""
    data = json.dumps(event, ensure_ascii=False, allow_nan=False)
    data.encode()
    return data


class _EventStream(EventSourceResponse):
    """Closes its body in any case."""

    def __init__(self, body: StreamBody[ServerSentEvent], keepalive_seconds: float) -> None:
        super().__init__(
            body,
            ping=keepalive_seconds,
            # A client that reads nothing for this long must not hold its session any longer.
            send_timeout=2 * keepalive_seconds,
            sep="\n",
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
