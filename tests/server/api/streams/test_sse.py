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

    sent = await messages(stream(events(), 60))
    first, last = (message["body"] for message in sent if message.get("body"))
    assert json.loads(first.partition(b"data: ")[2])["value"] == "ä"
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "internal_error"
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize(("stream", "end"), [(event_stream, 0), (data_stream, 1)])
async def test_an_event_is_one_line_of_data_and_ends_with_two_line_feeds(stream: Callable[..., Any], end: int) -> None:
    """As in OpenAI's streams. Many programs split a stream at two LF, or with Python's `splitlines`."""
    text = "a\r\nb\x85c\u2028d\u2029e"

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "a", "value": text}
        yield {"type": "b", "value": text}

    body = b"".join(message.get("body", b"") for message in await messages(stream(events(), 60))).decode()
    assert "\r" not in body
    *parts, rest = body.split("\n\n")
    assert rest == ""
    assert parts[2:] == ["data: [DONE]"] * end
    for part in parts[:2]:
        *_, data = part.splitlines()
        assert json.loads(data.removeprefix("data: "))["value"] == text


async def messages(response: Any) -> list[dict[str, Any]]:
    """Return the ASGI messages of a response."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False} if not sent else await forever()

    async def forever() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    await response({"type": "http", "method": "POST"}, receive, send)
    return sent
