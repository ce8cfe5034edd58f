"""Server-sent events: JSON objects that name their type, keep-alive comments on the clock, an error event at a bad end."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

from everlong_server.api.errors import as_server_error

log = logging.getLogger(__name__)


def event_stream(events: AsyncGenerator[dict[str, Any], None], keepalive_seconds: float) -> EventSourceResponse:
    """The response that sends `events`; the generator is closed when the client goes away."""

    async def body() -> AsyncGenerator[ServerSentEvent, None]:
        async with contextlib.aclosing(events):
            try:
                async for event in events:
                    yield ServerSentEvent(_data(event), event=event["type"])
            except Exception as error:
                yield ServerSentEvent(json.dumps(error_event(error)), event="error")

    return _response(body(), keepalive_seconds)


def data_stream(events: AsyncGenerator[dict[str, Any], None], keepalive_seconds: float) -> EventSourceResponse:
    """The same as OpenAI's chat completions do it: events have no names, and behind the last stands `[DONE]`."""

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
    """Raises `ValueError` here, where it ends the stream with an error, for what cannot be sent: the stream would be cut off."""
    data = json.dumps(event, ensure_ascii=False, allow_nan=False)
    data.encode()
    return data


def _response(body: AsyncGenerator[ServerSentEvent, None], keepalive_seconds: float) -> EventSourceResponse:
    return EventSourceResponse(
        body,
        ping=keepalive_seconds,
        # A client that reads nothing for so long is gone: it must not hold its session any longer.
        send_timeout=2 * keepalive_seconds,
        sep="\n",
        headers={"Cache-Control": "no-store"},
    )


def error_event(error: Exception) -> dict[str, Any]:
    """`error` as an event. What HTTP says with a header, `retry_after` says here, in seconds."""
    known = as_server_error(error)
    later = {} if known.retry_after is None else {"retry_after": known.retry_after}
    return {"type": "error", "error": known.body()["error"] | later}
