"""Server-sent events as they go out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from everlong_server.api.streams.sse import data_stream, event_stream


@pytest.mark.parametrize("stream", [event_stream, data_stream])
@pytest.mark.parametrize("value", ["\ud800", float("nan")])
async def test_an_event_that_cannot_be_encoded_ends_the_stream_with_an_error(
    stream: Callable[..., Any], value: object
) -> None:
    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "a", "value": "ä"}
        yield {"type": "b", "value": value}

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False} if not sent else await forever()

    async def forever() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    await stream(events(), 60)({"type": "http", "method": "POST"}, receive, send)
    first, last = (message["body"] for message in sent if message.get("body"))
    assert json.loads(first.partition(b"data: ")[2])["value"] == "ä"
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "internal_error"
    assert sent[-1]["more_body"] is False
