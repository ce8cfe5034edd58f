"""`Idempotency-Key`: a retry gets the first result and repeats no work, also after kill -9."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from everlong_server.store.redis import keys
from tests.process import Server, wait_for

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


def key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def test_an_upload(server: Server) -> None:
    headers, documents = {"content-type": "text/plain", **key()}, "/v1/documents"
    one = server.http.post(documents, content=b"words", headers=headers, params={"filename": "a"})
    server.wait_read(one.json()["id"])
    two = server.http.post(documents, content=iter([b"wo", b"rds"]), headers=headers, params={"filename": "a"})
    assert (two.status_code, two.json()) == (202, one.json())
    for content, name in ((b"others", "a"), (b"words", "b"), (b"word", "a")):
        refused = server.http.post(documents, content=content, headers=headers, params={"filename": name})
        server.error(refused, 422, "idempotency_key_reused", "Idempotency-Key")
    assert server.http.get(f"/v1/files/{one.json()['id']}/content").content == b"words"
    files = {"file": ("a", b"words")}
    refused = server.http.post(
        "/v1/files", files=files, data={"purpose": "user_data"}, headers=headers | {"content-type": ""}
    )
    assert refused.status_code in (415, 422)  # without its type it is no form


@pytest.mark.parametrize(("path", "kind"), [("/v1/documents", "text/plain"), ("/v1/sessions", "application/json")])
def test_a_stalled_upload_releases_the_key(new_server: Callable[..., Server], path: str, kind: str) -> None:
    server = new_server(keepalive_seconds=0.25).start()
    named = key()["Idempotency-Key"]
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\nIdempotency-Key: {named}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        peer.sendall(head.encode() + b'{"a": 1,')
        answer = b"".join(iter(lambda: peer.recv(4096), b""))  # to the end of the connection
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    again = server.http.post(path, content=b"{}", headers={"content-type": kind, "Idempotency-Key": named})
    assert again.status_code in (201, 202), again.text


@pytest.mark.long
def test_a_slow_upload_is_accepted(new_server: Callable[..., Server]) -> None:
    server = new_server(keepalive_seconds=0.25).start()

    def pieces() -> Iterator[bytes]:
        for _ in range(4):
            time.sleep(0.4)  # less than it may stand still, and more together
            yield b"A word. " * 100

    answer = server.http.post("/v1/documents", content=pieces(), headers={"content-type": "text/plain"})
    assert answer.status_code == 202, answer.text


def test_a_form(server: Server) -> None:
    """Clients use a new boundary for each try."""
    headers = key()
    for path, data in (("/v1/documents", {}), ("/v1/files", {"purpose": "user_data"})):
        headers = key()
        made = [
            server.http.post(path, files={"file": ("a.txt", b"words")}, data=data, headers=headers) for _ in range(2)
        ]
        assert made[0].request.headers["content-type"] != made[1].request.headers["content-type"]
        assert made[0].is_success, made[0].text
        assert made[0].json() == made[1].json()
        other = server.http.post(path, files={"file": ("b.txt", b"words")}, data=data, headers=headers)
        server.error(other, 422, "idempotency_key_reused")


def test_a_refused_upload_can_be_corrected(server: Server) -> None:
    headers = {"content-type": "text/plain", **key()}
    server.error(server.http.post("/v1/documents", content=b"", headers=headers), 422, "empty_document")
    assert server.http.post("/v1/documents", content=b"words", headers=headers).status_code == 202


def test_a_session_and_a_fork(server: Server) -> None:
    headers = key()
    one, two = (server.http.post("/v1/sessions", json={"documents": []}, headers=headers) for _ in range(2))
    assert (one.status_code, two.status_code, two.json()) == (201, 201, one.json())
    refused = server.http.post("/v1/sessions", json={"model": "tiny-rmt"}, headers=headers)
    server.error(refused, 422, "idempotency_key_reused")
    path, headers = f"/v1/sessions/{one.json()['id']}/fork", key()
    one, two = (server.http.post(path, headers=headers) for _ in range(2))
    assert (one.status_code, two.json()) == (201, one.json())
    refused = server.http.post(f"/v1/sessions/{one.json()['id']}/fork", headers=headers)
    server.error(refused, 422, "idempotency_key_reused")


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_a_message(server: Server) -> None:
    session, headers = server.session()["id"], key()
    path, body = f"/v1/sessions/{session}/messages", {"content": "Hello", "logprobs": True, **GREEDY}
    one, two = (server.http.post(path, json=body, headers=headers) for _ in range(2))
    assert one.status_code == 200, one.text
    assert two.json() == one.json()
    assert server.get_session(session)["messages"] == 2
    server.error(server.http.post(path, json=body | {"content": "Bye"}, headers=headers), 422, "idempotency_key_reused")
    server.error(server.http.post(path, json=body | {"stream": True}, headers=headers), 422, "idempotency_key_reused")
    third = server.http.post(path, json=body, headers=key())
    assert third.json()["id"] != one.json()["id"]
    assert server.get_session(session)["messages"] == 4


def test_a_retried_stream_is_replayed_at_once(server: Server) -> None:
    session, headers = server.session()["id"], key()
    path, body = f"/v1/sessions/{session}/messages", {"content": "Hello", "stream": True, **GREEDY}
    one, two = (events(server.http.post(path, json=body, headers=headers)) for _ in range(2))
    assert two[-1] == one[-1]
    assert [event["type"] for event in two] == [
        "response.created", "response.evidence", "response.output_text.delta", "response.completed",
    ]  # fmt: skip
    assert two[1] == one[1]
    text = "".join(event["delta"] for event in one if event["type"] == "response.output_text.delta")
    assert next(event for event in two if "delta" in event)["delta"] == text
    assert two[0] == one[0]
    assert server.get_session(session)["messages"] == 2


ASKED = {"input": "Hello", "max_output_tokens": 16, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("more", [{}, {"store": False}, {"background": True}], ids=str)
def test_a_response(server: Server, more: dict[str, Any]) -> None:
    headers, path = key(), "/v1/responses"
    one, two = (server.http.post(path, json=ASKED | more, headers=headers) for _ in range(2))
    assert one.status_code == 200, one.text
    assert two.json() == one.json()
    for other in ({"input": "Bye"}, {"stream": True}):
        refused = server.http.post(path, json=ASKED | more | other, headers=headers)
        server.error(refused, 422, "idempotency_key_reused", "Idempotency-Key")
    assert server.http.post(path, json=ASKED | more, headers=key()).json()["id"] != one.json()["id"]
    if "background" in more:
        answered = f"{path}/{one.json()['id']}"
        wait_for(lambda: server.http.get(answered).json()["status"] == "incomplete")
        assert server.http.post(path, json=ASKED | more, headers=headers).json() == one.json()


def test_a_retried_stream_of_a_response_is_replayed(server: Server) -> None:
    headers = key()
    one, two = (
        events(server.http.post("/v1/responses", json=ASKED | {"stream": True}, headers=headers)) for _ in range(2)
    )
    assert one[-1]["type"] == "response.incomplete"
    assert two[-1]["response"] == one[-1]["response"]
    kinds = [event["type"] for event in one]
    assert [event["type"] for event in two] == sorted(set(kinds), key=kinds.index)
    assert [event["sequence_number"] for event in two] == list(range(len(two)))
    for replayed in two:
        if "delta" not in replayed:
            first = next(event for event in one if event["type"] == replayed["type"])
            assert replayed | {"sequence_number": 0} == first | {"sequence_number": 0}
    assert "".join(event.get("delta", "") for event in one) == "".join(event.get("delta", "") for event in two)


@pytest.mark.parametrize("background", [False, True])
def test_a_response_whose_server_died_before_the_record(server: Server, background: bool) -> None:
    """It was stored: it is not made again."""
    headers, asked = key(), ASKED | {"background": background}
    one = server.http.post("/v1/responses", json=asked, headers=headers).json()
    orphan(server, one["id"])
    two = server.http.post("/v1/responses", json=asked, headers=headers).json()
    assert (two["id"], two["created_at"]) == (one["id"], one["created_at"])
    assert background or two == one


def test_a_refused_response_can_be_corrected(server: Server) -> None:
    headers = key()
    server.error(
        server.http.post("/v1/responses", json=ASKED | {"model": "x"}, headers=headers), 404, "model_not_found"
    )
    assert server.http.post("/v1/responses", json=ASKED, headers=headers).status_code == 200


def test_a_message_in_progress(server: Server) -> None:
    session, headers = server.session()["id"], key()
    path = f"/v1/sessions/{session}/messages"
    endless = {"content": "Talk", "stream": True, "ignore_eos": True, "max_tokens": 100_000}
    with server.http.stream("POST", path, json=endless, headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines)
        refused = server.http.post(path, json=endless, headers=headers)
        error = server.error(refused, 409, "idempotency_in_progress", "Idempotency-Key")
        assert "running" in error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        server.error(server.http.post(path, json={"content": "Hi"}, headers=key()), 409, "session_busy")
    # The caller has left: nothing has happened, and the key is free, for the same message.
    from tests.process import wait_for

    def over() -> httpx.Response | None:
        with server.http.stream("POST", path, json=endless, headers=headers) as again:
            return again if again.status_code == 200 else None

    assert wait_for(over)
    assert server.get_session(session)["messages"] == 0


@pytest.mark.parametrize("bad", ["", "a b", "x" * 256, "é".encode()])
def test_invalid_keys(server: Server, bad: str | bytes) -> None:
    answer = server.http.post("/v1/sessions", json={}, headers=[("Idempotency-Key", bad)])
    assert answer.status_code == 422
    assert "dempotency" in answer.json()["error"]["param"]


def orphan(server: Server, name: str) -> None:
    """Set the record to the state that kill -9 leaves between the effect and the answer."""
    for record in server.redis.scan_iter("{everlong}:attempt:*"):
        if name.encode() in (server.redis.hget(record, "answer") or b""):
            server.redis.hdel(record, "answer")
            server.redis.hset(record, "owner", "dead|1")
            return
    raise AssertionError("no record has the answer")


def test_killed_between_the_effect_and_the_answer(server: Server) -> None:
    """Nothing is done twice, and a retry returns the first result."""
    headers = {"content-type": "text/plain", **key()}
    document = server.http.post("/v1/documents", content=b"some words", headers=headers).json()["id"]
    orphan(server, document)
    count = server.redis.zcard(keys.documents("default"))
    server.error(
        server.http.post("/v1/documents", content=b"other words", headers=headers), 422, "idempotency_key_reused"
    )
    again = server.http.post("/v1/documents", content=b"some words", headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, document)
    assert server.redis.zcard(keys.documents("default")) == count
    assert server.http.get(f"/v1/files/{document}/content").content == b"some words"

    headers = key()
    session = server.http.post("/v1/sessions", json={}, headers=headers).json()["id"]
    orphan(server, session)
    assert server.http.post("/v1/sessions", json={}, headers=headers).json()["id"] == session

    headers, path = key(), f"/v1/sessions/{session}/messages"
    one = server.http.post(path, json={"content": "Hello", **GREEDY}, headers=headers).json()
    orphan(server, one["id"])
    server.say(session, "Something else meanwhile.", **GREEDY)
    two = server.http.post(path, json={"content": "Hello", **GREEDY}, headers=headers).json()
    assert two == one
    assert server.get_session(session)["messages"] == 4


def test_kill_9(new_server: Callable[..., Server]) -> None:
    server = new_server(lease_seconds=2).start()
    upload, talk, headers = key(), key(), {"content-type": "text/plain"}
    document = server.http.post("/v1/documents", content=b"some words", headers=headers | upload).json()
    session = server.session()["id"]
    path, endless = f"/v1/sessions/{session}/messages", {"content": "Talk", "ignore_eos": True, "max_tokens": 400}
    with server.http.stream("POST", path, json=endless | {"stream": True}, headers=talk) as stream:
        lines = stream.iter_lines()
        assert next(lines)
        server.kill9()
    server.http.close()
    server.http = httpx.Client(base_url=server.url, timeout=120)
    server.start()
    again = server.http.post("/v1/documents", content=b"some words", headers=headers | upload)
    assert (again.status_code, again.json()) == (202, document)
    said = [server.http.post(path, json=endless | {"stream": True}, headers=talk) for _ in range(2)]
    one, two = (events(answer)[-1] for answer in said)
    assert one["type"] == "response.completed"
    assert one == two
    assert server.get_session(session)["messages"] == 2
