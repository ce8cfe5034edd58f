"""Messages with `on_disconnect` "finish": their answers are completed without their client."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.process import Server, wait_for

QUESTION = {"content": "Talk.", "on_disconnect": "finish", "temperature": 0, "ignore_eos": True}
LONG = {**QUESTION, "max_tokens": 1_000_000}
FULL = {**QUESTION, "max_tokens": 1500}


def leave_during_answer(server: Server, session: str, body: dict[str, Any], way: str) -> None:
    """Send a message and disconnect once the answer has begun."""
    path = f"/v1/sessions/{session}/messages"
    if way == "sse":
        with server.http.stream("POST", path, json={**body, "stream": True}) as response:
            next(line for line in response.iter_lines() if "delta" in line)
    elif way == "websocket":
        with connect(f"ws://127.0.0.1:{server.port}/v1/sessions/{session}/stream") as ws:
            ws.send(json.dumps({"type": "message.create", **body}))
            while "delta" not in str(ws.recv(timeout=60)):
                pass
    else:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + content)
            wait_for(lambda: server.get_session(session)["answering"], 60, "for the answer to begin")


def messages(server: Server, session: str) -> dict[str, Any]:
    return server.http.get(f"/v1/sessions/{session}/messages").json()


@pytest.mark.parametrize(
    "way", ["websocket", pytest.param("sse", marks=pytest.mark.long), pytest.param("json", marks=pytest.mark.long)]
)
def test_the_answer_is_completed_without_its_client(server: Server, way: str) -> None:
    session = server.session()["id"]
    assert server.get_session(session)["answering"] is False
    leave_during_answer(server, session, FULL, way)
    seen = wait_for(lambda: messages(server, session), 60)
    if "running" in seen:  # the answer may be complete by now
        assert seen["running"]["question"] == "Talk."
        assert seen["data"] == []
    wait_for(lambda: not server.get_session(session)["answering"], 120, "for the end of the answer")
    stored = messages(server, session)
    assert "running" not in stored
    question, answer = stored["data"]
    assert (question["content"], answer["finish_reason"]) == ("Talk.", "length")
    assert answer["usage"]["completion_tokens"] == 1500
    assert answer["content"] == server.say(server.session()["id"], **FULL)["content"]


def test_another_client_sees_the_answer_grow_and_cancels_it(server: Server) -> None:
    session = server.session()["id"]
    leave_during_answer(server, session, LONG, "websocket")
    running = wait_for(lambda: (now := messages(server, session).get("running")) and now["text"] and now, 60)
    assert running["question"] == "Talk."
    grown = wait_for(
        lambda: (now := messages(server, session)["running"]) and now["text"] != running["text"] and now, 60
    )
    assert grown["text"].startswith(running["text"])
    assert server.get_session(session)["answering"] is True
    server.error(server.http.post(f"/v1/sessions/{session}/messages", json={"content": "Me too."}), 409, "session_busy")
    assert server.http.post(f"/v1/sessions/{session}/cancel").json()["id"] == session
    wait_for(lambda: not server.get_session(session)["answering"], 60, "for the end of the answer")
    _, answer = messages(server, session)["data"]
    assert (answer["id"], answer["finish_reason"]) == (running["id"], "cancelled")
    assert answer["content"].startswith(grown["text"])
    before = server.get_session(session)
    assert server.http.post(f"/v1/sessions/{session}/cancel").json() == before, "there was nothing to cancel"


def test_deleting_the_session_ends_the_answer(server: Server) -> None:
    session = server.session()["id"]
    leave_during_answer(server, session, LONG, "sse")
    assert server.http.delete(f"/v1/sessions/{session}").status_code == 200
    wait_for(lambda: "everlong_answering 0.0" in server.http.get("/metrics").text, 60, "for the answer to end")


def test_a_retry_with_the_same_key_gets_the_answer_that_was_completed_meanwhile(server: Server) -> None:
    session = server.session()["id"]
    path, key = f"/v1/sessions/{session}/messages", {"Idempotency-Key": f"finish-{session}"}
    body = FULL | {"stream": True}
    with server.http.stream("POST", path, json=body, headers=key) as response:
        next(line for line in response.iter_lines() if "delta" in line)

    def retried() -> dict[str, Any] | None:
        answer = server.http.post(path, json=body, headers=key)
        if answer.status_code == 409:
            server.error(answer, 409, "idempotency_in_progress")
            return None
        *_, last = (json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: "))
        return last["message"]

    assert wait_for(retried, 120)["content"] == messages(server, session)["data"][1]["content"]
    assert server.get_session(session)["messages"] == 2


@pytest.mark.parametrize("value", ["continue", True, None])
def test_another_value_is_refused(server: Server, value: object) -> None:
    session = server.session()["id"]
    answer = server.http.post(f"/v1/sessions/{session}/messages", json={"content": "Hi", "on_disconnect": value})
    server.error(answer, 422, "invalid_value", "on_disconnect")
