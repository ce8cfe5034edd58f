"""`/v1/responses` over a WebSocket, through OpenAI's own SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from websockets.sync.client import connect

from tests.process import Server, wait_for
from tests.server.api.openai.talk import MODEL, respond

HOW: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
LONG = 1_000_000
END = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
def ws(client: OpenAI) -> Iterator[Any]:
    with client.responses.connect() as connection:
        yield connection


def heard(connection: Any, *kinds: str) -> list[Any]:
    """The events up to one of `kinds`."""
    events = [connection.recv()]
    while events[-1].type not in (kinds or END):
        events.append(connection.recv())
    return events


def test_the_socket_sends_the_same_events_as_http(client: OpenAI, ws: Any) -> None:
    whole = respond(client, "Tell me of it. " * 40, extra_body={})
    streamed = [event.type for event in respond(client, "Tell me of it. " * 40, extra_body={}, stream=True)]
    ws.response.create(input="Tell me of it. " * 40, **HOW)
    events = heard(ws)
    assert [event.type for event in events] == streamed
    final = events[-1].response
    assert final.output_text == whole.output_text
    assert client.responses.retrieve(final.id).output_text == whole.output_text
    ws.response.create(input="And?", previous_response_id=final.id, **HOW)
    on = heard(ws)[-1].response
    assert on.previous_response_id == final.id
    assert on.output_text == respond(client, "And?", previous_response_id=whole.id, extra_body={}).output_text


def test_the_last_response_can_be_continued_although_it_is_not_stored(client: OpenAI, ws: Any) -> None:
    ws.response.create(input="Tell me of it. " * 40, store=False, **HOW)
    first = heard(ws)[-1].response
    ws.response.create(input="And?", previous_response_id=first.id, store=False, **HOW)
    second = heard(ws)[-1].response
    assert second.usage.input_tokens_details.cached_tokens > 0
    ws.response.create(input="Again?", previous_response_id=first.id, store=False, **HOW)
    error = heard(ws)[-1]
    assert (error.type, error.status, error.error.code) == ("error", 404, "previous_response_not_found")
    with client.responses.connect() as other:
        other.response.create(input="And?", previous_response_id=second.id, **HOW)
        assert heard(other)[-1].error.code == "previous_response_not_found"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "invalid_json"),
        ("[1]", "invalid_frame"),
        (b"\x00", "invalid_frame"),
        ("[" * 100_000, "invalid_json"),
        ({}, "unknown_type"),
        ({"type": "response.steer", "input": "x"}, "unknown_type"),
        ({"type": "response.create"}, "missing_parameter"),
        ({"type": "response.create", "input": "x", "stream_id": "1"}, "unknown_parameter"),
        ({"type": "response.create", "input": "x", "background": True}, "unknown_parameter"),
        ({"type": "response.create", "input": "x", "model": "gpt-5"}, "model_not_found"),
        ({"type": "response.create", "input": "x", "prompt": {"id": "x"}}, "unknown_parameter"),
        ({"type": "response.create", "input": "x" * 20_001}, "too_large"),
    ],
)
def test_an_invalid_frame_gets_an_error_and_the_socket_stays_open(ws: Any, frame: Any, code: str) -> None:
    ws.send_raw(frame if isinstance(frame, str | bytes) else json.dumps(frame))
    error = heard(ws)[-1]
    assert (error.type, error.error.code) == ("error", code)
    assert error.status in (404, 413, 422)
    ws.response.create(input="Hi.", **HOW)
    assert heard(ws)[-1].type in END[:2]


def test_one_at_a_time(ws: Any) -> None:
    long = {"type": "response.create", "input": "Talk.", **HOW, "max_output_tokens": 1000, "ignore_eos": True}
    ws.send_raw(json.dumps(long))
    heard(ws, "response.output_text.delta")
    ws.response.create(input="Me too.", **HOW)
    assert heard(ws, "error")[-1].error.code == "response_in_progress"
    heard(ws, *END[:2])
    ws.response.create(input="Now me.", **HOW)
    assert heard(ws)[-1].type in END[:2]


def test_a_disconnect_stops_the_answer(client: OpenAI, server: Server) -> None:
    before = set(server.redis.scan_iter("{everlong}:response:*"))
    with client.responses.connect() as connection:
        connection.response.create(
            input="Talk.", **{**HOW, "max_output_tokens": LONG}, text={"format": {"type": "text"}}
        )
        heard(connection, "response.output_text.delta", *END)
    wait_for(lambda: "everlong_answering 0.0" in server.http.get("/metrics").text, 30, "for the answer to stop")
    after = set(server.redis.scan_iter("{everlong}:response:*"))
    assert len(after - before) <= 1, "at most one that had come to its end"


def test_overload_has_retry_after(new_server: Any) -> None:
    server = new_server(max_streams=1, max_queued=0).start()
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    with connect(url) as one, connect(url) as two:
        long = {"type": "response.create", "input": "Talk.", "max_output_tokens": LONG, "ignore_eos": True}
        one.send(json.dumps(long))
        while json.loads(one.recv(timeout=60))["type"] != "response.output_text.delta":
            pass
        two.send(json.dumps(long))
        error = json.loads(two.recv(timeout=60))
        assert (error["status"], error["error"]["code"]) == (429, "overloaded")
        assert int(error["error"]["headers"]["retry-after"]) == error["error"]["retry_after"] >= 1
        one.close()
        wait_for(lambda: "everlong_answering 0.0" in server.http.get("/metrics").text, 30, "for the answer to stop")
        two.send(json.dumps({**long, "max_output_tokens": 2}))
        while (event := json.loads(two.recv(timeout=60)))["type"] != "response.incomplete":
            assert event["type"] != "error", event
