"""The WebSocket of a session: messages, answers, and invalid frames."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.process import Server, wait_for

GREEDY = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


class Socket:
    """A WebSocket client that sends and receives JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, message: Any) -> None:
        self.connection.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def next(self) -> dict[str, Any]:
        return json.loads(self.connection.recv(timeout=60))

    def until(self, *kinds: str) -> list[dict[str, Any]]:
        events = [self.next()]
        while events[-1]["type"] not in kinds:
            events.append(self.next())
        return events


def opened(server: Server, session: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}/v1/sessions/{session}/stream", max_size=None)


@pytest.fixture
def session(server: Server) -> str:
    return server.session()["id"]


@pytest.fixture
def ws(server: Server, session: str) -> Iterator[Socket]:
    with opened(server, session) as connection:
        yield Socket(connection)


def test_a_conversation(server: Server, session: str, ws: Socket) -> None:
    for n in (1, 2):
        ws.send({"type": "message.create", "content": f"Hello {n}.", **GREEDY})
        events = ws.until("response.completed")
        assert events[0]["type"] == "response.created"
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        message = events[-1]["message"]
        assert message["content"] == text
        assert message["usage"]["completion_tokens"] == 20
        assert server.get_session(session)["messages"] == 2 * n
    other = server.session()["id"]
    assert server.say(other, "Hello 1.", **GREEDY)["content"]


def test_cancel_ends_the_answer_and_keeps_it(server: Server, session: str, ws: Socket) -> None:
    ws.send({"type": "message.create", "content": "Talk.", "max_tokens": 1_000_000, "ignore_eos": True})
    ws.until("response.output_text.delta")
    ws.send({"type": "response.cancel"})
    message = ws.until("response.completed")[-1]["message"]
    assert message["finish_reason"] == "cancelled"
    assert message["content"]
    assert server.get_session(session)["messages"] == 2
    ws.send({"type": "message.create", "content": "Go on.", **GREEDY})
    assert ws.until("response.completed")[-1]["message"]["finish_reason"] == "length"


def test_cancel_means_one_answer(ws: Socket) -> None:
    """A cancel for an answer that has just ended does not cancel the next one."""
    ws.send({"type": "message.create", "content": "Hi.", **GREEDY})
    first = ws.until("response.completed")[0]["response"]["id"]
    ws.send({"type": "message.create", "content": "Talk.", "max_tokens": 1_000_000, "ignore_eos": True})
    second = ws.until("response.output_text.delta")[0]["response"]["id"]
    ws.send({"type": "response.cancel", "response_id": first})
    ws.send({"type": "response.cancel", "response_id": 7})
    assert ws.until("error", "response.completed")[-1]["error"]["param"] == "response_id"
    assert ws.next()["type"] == "response.output_text.delta"
    ws.send({"type": "response.cancel", "response_id": second})
    assert ws.until("response.completed")[-1]["message"]["finish_reason"] == "cancelled"


def test_cancel_with_nothing_to_cancel_is_no_error(ws: Socket) -> None:
    ws.send({"type": "response.cancel"})
    ws.send({"type": "message.create", "content": "Hi.", **GREEDY})
    assert ws.until("response.completed", "error")[-1]["type"] == "response.completed"


def test_a_second_message_is_refused_during_an_answer(ws: Socket) -> None:
    ws.send({"type": "message.create", "content": "Talk.", "max_tokens": 2000, "ignore_eos": True})
    ws.until("response.output_text.delta")
    ws.send({"type": "message.create", "content": "Me too."})
    assert ws.until("error")[-1]["error"]["code"] == "session_busy"
    ws.send({"type": "response.cancel"})
    ws.until("response.completed")


def test_a_second_socket_is_refused_while_the_session_answers(server: Server, session: str, ws: Socket) -> None:
    ws.send({"type": "message.create", "content": "Talk.", "max_tokens": 100_000, "ignore_eos": True})
    ws.until("response.output_text.delta")
    with opened(server, session) as other:
        second = Socket(other)
        second.send({"type": "message.create", "content": "Me too."})
        assert second.until("error")[-1]["error"]["code"] == "session_busy"
    ws.send({"type": "response.cancel"})
    ws.until("response.completed")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "invalid_json"),
        ("garbage", "invalid_json"),
        ("[1]", "invalid_frame"),
        ("null", "invalid_frame"),
        (b"\x00\x01", "invalid_frame"),
        ("[" * 100_000, "invalid_json"),
        ({}, "unknown_type"),
        ({"type": "session.update"}, "unknown_type"),
        ({"type": ["x"]}, "unknown_type"),
        ({"type": "message.create"}, "missing_parameter"),
        ({"type": "message.create", "content": ""}, "invalid_value"),
        ({"type": "message.create", "content": "x", "temperature": -1}, "invalid_value"),
        ({"type": "message.create", "content": "x", "model": "y"}, "model_of_session"),
        ({"type": "message.create", "content": "x", "colour": "y"}, "unknown_parameter"),
        ({"type": "message.create", "content": "x", "logit_bias": {"99999": 1}}, "invalid_value"),
        ({"type": "message.create", "content": "x" * 200_001}, "too_large"),
        ({"type": "response.cancel", "id": 1}, "unknown_parameter"),
    ],
)
def test_an_invalid_frame_gets_an_error_and_the_socket_stays_open(ws: Socket, frame: Any, code: str) -> None:
    ws.send(frame)
    event = ws.next()
    assert event["type"] == "error", event
    assert event["error"]["code"] == code
    assert event["error"].keys() == {"message", "type", "param", "code"}
    ws.send({"type": "message.create", "content": "Hi.", **GREEDY})
    assert ws.until("response.completed", "error")[-1]["type"] == "response.completed"


def test_an_unknown_session_is_a_policy_violation(server: Server) -> None:
    with opened(server, "ses_" + "0" * 32) as connection:
        assert json.loads(connection.recv(timeout=60))["error"]["code"] == "session_not_found"
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_a_frame_that_is_too_large_closes_the_socket(server: Server, session: str) -> None:
    with opened(server, session) as connection, pytest.raises(ConnectionClosed) as closed:
        # Its announcement is enough. What follows would meet a socket that is closed, and the reset can overtake the reason.
        connection.socket.sendall(struct.pack("!BBQ4s", 0x81, 0x80 | 127, 2 << 20, b"mask"))
        connection.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_disconnect_stops_the_answer_and_changes_nothing(server: Server, session: str) -> None:
    before = server.get_session(session)
    with opened(server, session) as connection:
        socket = Socket(connection)
        socket.send({"type": "message.create", "content": "Talk.", "max_tokens": 1_000_000, "ignore_eos": True})
        socket.until("response.output_text.delta")
    wait_for(lambda: "everlong_answering 0.0" in server.http.get("/metrics").text, 10, "for the answer to stop")
    assert server.get_session(session) == before


@pytest.mark.long
def test_a_silent_client_is_let_go(new_server) -> None:
    server = new_server(websocket_idle_seconds=0.3).start()
    with opened(server, server.session()["id"]) as connection, pytest.raises(ConnectionClosed) as closed:
        connection.recv(timeout=20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    # Not while it is answered, however long that takes.
    with opened(server, server.session()["id"]) as connection:
        socket = Socket(connection)
        socket.send({"type": "message.create", "content": "Talk.", "max_tokens": 2000, "ignore_eos": True})
        assert socket.until("response.completed")[-1]["message"]["usage"]["completion_tokens"] == 2000
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=20)


def test_overload_closes_the_socket_with_1013(new_server) -> None:
    server = new_server(max_streams=1, max_queued=0).start()
    with opened(server, server.session()["id"]) as first, opened(server, server.session()["id"]) as second:
        Socket(first).send({"type": "message.create", "content": "Talk.", "max_tokens": 1_000_000, "ignore_eos": True})
        Socket(first).until("response.output_text.delta")
        Socket(second).send({"type": "message.create", "content": "Me too."})
        error = Socket(second).next()["error"]
        assert error["code"] == "overloaded"
        assert error["retry_after"] >= 1
        with pytest.raises(ConnectionClosed) as closed:
            second.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013
