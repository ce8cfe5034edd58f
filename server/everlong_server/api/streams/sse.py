"""Server-sent events: JSON objects with a type, keep-alive comments, and an error event if the stream fails."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

from everlong_server.api.errors import as_server_error

log = logging.getLogger(__name__)


def event_stream(
    events: AsyncGenerator[dict[str, Any], None],
    keepalive_seconds: float,
    error_form: Callable[[Exception], dict[str, Any]] | None = None,
) -> EventSourceResponse:
    """Return a response that sends `events`. Closes the generator when the client disconnects.

    `error_form`: returns the last event of a stream that fails; by default, that of the native API.
    """

    async def body() -> AsyncGenerator[ServerSentEvent, None]:
        async with contextlib.aclosing(events):
            try:
                async for event in events:
                    yield ServerSentEvent(_data(event), event=event["type"])
            except Exception as error:
                yield ServerSentEvent(json.dumps((error_form or error_event)(error)), event="error")

    return _response(body(), keepalive_seconds)


def data_stream(events: AsyncGenerator[dict[str, Any], None], keepalive_seconds: float) -> EventSourceResponse:
    """Return a response in the format of OpenAI's chat completions: events have no names, and `[DONE]` follows the last."""

    async def body() -> AsyncGenerator[ServerSentEvent, None]:
        async with contextlib.aclosing(events):
            try:
                async for event in events:
                    yield ServerSentEvent(_data(event))
                yield ServerSentEvent("[DONE]")
            except Exception as error:
                yield ServerSentEvent(json.dumps(as_server_error(error).body()))

    return _response(body(), keepalive_seconds)


def _data(event: dict[str, Any]) -> str:
    """Encode an event. Raises `ValueError` for one that cannot be sent, so that the stream ends with an error event instead
    of being cut off."""
    data = json.dumps(event, ensure_ascii=False, allow_nan=False)
    data.encode()
    return data


def _response(body: AsyncGenerator[ServerSentEvent, None], keepalive_seconds: float) -> EventSourceResponse:
    return EventSourceResponse(
        body,
        ping=keepalive_seconds,
        # A client that reads nothing for this long must not hold its session any longer.
        send_timeout=2 * keepalive_seconds,
        sep="\n",
        headers={"Cache-Control": "no-store"},
    )


def error_event(error: Exception) -> dict[str, Any]:
    """Return `error` as an event. `retry_after`, in seconds, replaces HTTP's `Retry-After` header."""
    known = as_server_error(error)
    retry = {} if known.retry_after is None else {"retry_after": known.retry_after}
    return {"type": "error", "error": known.body()["error"] | retry}
