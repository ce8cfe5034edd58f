"""WebSockets: keys, tickets, and objects of other tenants."""

from __future__ import annotations

import json
import socket
import time
import uuid
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from everlong_server.store.redis import keys
from tests.process import Server, wait_for
from tests.server.tenants import MODEL, UNKNOWN, Tenant, client, credentials, new_key


def opened(server: Server, session: str, query: str = "", key: str | None = None) -> ClientConnection:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return connect(f"ws://127.0.0.1:{server.port}/v1/sessions/{session}/stream{query}", additional_headers=headers)


def say(socket: ClientConnection) -> str:
    """Return the type of the last event of an answer."""
    socket.send(json.dumps({"type": "message.create", "content": "Hi", "max_tokens": 2}))
    while (event := json.loads(socket.recv(timeout=60)))["type"] not in ("response.completed", "error"):
        pass
    return event["type"]


def refused(server: Server, *arguments: Any, **named: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        opened(server, *arguments, **named)
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]["code"]


def test_a_socket_with_a_key(locked: Server, alice: Tenant, bad_keys: dict, lacking: dict[str, str]) -> None:
    session = alice.ids["session_id"]
    with opened(locked, session, key=alice.key) as socket:
        assert say(socket) == "response.completed"
    for (kind, code), headers in bad_keys.items():
        bearer = headers[0][1].removeprefix("Bearer ") if headers else None
        if kind not in ("empty", "another scheme", "two"):
            assert refused(locked, session, key=bearer) == (401, code), kind
    assert refused(locked, session, key=lacking["write"]) == (403, "missing_scope")


@pytest.mark.parametrize("path", ["v1/sessions/ses_1/stream", "v1/responses", "v1/nothing", "assets/nothing"])
@pytest.mark.parametrize("kind", ["no key", "bad key", "bad ticket", "good key"])
def test_a_refused_handshake_is_one_line_of_the_log(locked: Server, alice: Tenant, path: str, kind: str) -> None:
    query, headers, code = {
        "no key": ("", {}, "missing_api_key"),
        "bad key": ("", {"Authorization": "Bearer evl_0_1"}, "invalid_api_key"),
        "bad ticket": ("?ticket=tkt_1", {}, "invalid_ticket"),
        "good key": ("", {"Authorization": f"Bearer {alice.key}"}, "path_not_found"),
    }[kind]
    if (kind == "good key" and "nothing" not in path) or (kind != "good key" and path.startswith("assets")):
        return
    id = f"handshake-{uuid.uuid4().hex}"
    before = len(locked.log.read_text())
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{locked.port}/{path}{query}", additional_headers=headers | {"x-request-id": id})
    response = caught.value.response
    assert response.status_code == (404 if kind == "good key" else 401)
    assert json.loads(response.body)["error"]["code"] == code
    assert response.headers["x-request-id"] == id
    wait_for(lambda: id in locked.log.read_text())
    (line,) = [line for line in locked.log.read_text()[before:].splitlines() if "andshake" in line or id in line]
    assert line == f"INFO everlong_server.api.request_context: WebSocket handshake refused: {code}, request {id}"
    assert "ERROR" not in locked.log.read_text()[before:]


def test_a_handshake_that_is_too_long_is_answered_and_closed(locked: Server) -> None:
    for head in (f"GET /{'x' * 9000} HTTP/1.1", "GET /v1/responses HTTP/1.1\r\n" + "\r\n".join(["a: b"] * 200)):
        with socket.create_connection(("127.0.0.1", locked.port), timeout=60) as peer:
            lines = f"{head}\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
            peer.sendall(lines.encode())
            answer = b"".join(iter(lambda peer=peer: peer.recv(4096), b""))
        assert answer.split()[1] in (b"414", b"431"), answer[:200]


def test_another_tenants_socket_is_unknown(locked: Server, alice: Tenant, bob: Tenant) -> None:
    said = []
    for session in (alice.ids["session_id"], UNKNOWN["session_id"]):
        with opened(locked, session, key=bob.key) as socket:
            said.append(socket.recv(timeout=60).replace(session, "…"))
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=60)
            assert closed.value.rcvd.code == 1008
    assert said[0] == said[1]
    assert json.loads(said[0])["error"]["code"] == "session_not_found"
    url, headers = f"ws://127.0.0.1:{locked.port}/v1/responses", {"Authorization": f"Bearer {bob.key}"}
    with connect(url, additional_headers=headers) as socket:
        said = []
        for response in (alice.ids["response_id"], UNKNOWN["response_id"]):
            asked = {"type": "response.create", "model": MODEL, "input": "Hi", "previous_response_id": response}
            socket.send(json.dumps(asked))
            said.append(socket.recv(timeout=60).replace(response, "…"))
    assert said[0] == said[1]
    assert json.loads(said[0])["error"]["code"] == "previous_response_not_found"


def test_a_ticket_opens_one_socket(locked: Server, alice: Tenant, bob: Tenant) -> None:
    session = alice.ids["session_id"]
    made = alice.http.post("/v1/tickets")
    assert made.status_code == 201
    ticket = made.json()["ticket"]
    assert 0 < made.json()["expires_at"] - time.time() <= 30
    (stored,) = locked.redis.scan_iter(keys.ticket("*"))
    assert ticket.encode() not in stored
    assert 0 < locked.redis.pttl(stored) <= 30_000
    with opened(locked, session, f"?ticket={ticket}") as socket:
        assert say(socket) == "response.completed"
    assert refused(locked, session, f"?ticket={ticket}") == (401, "invalid_ticket")
    for wrong in ("", "tkt_", "tkt_" + "A" * 43, alice.key):
        assert refused(locked, session, f"?ticket={wrong}") == (401, "invalid_ticket")
    # It stands for its tenant, and only for a socket.
    with opened(locked, session, f"?ticket={bob.http.post('/v1/tickets').json()['ticket']}") as socket:
        assert json.loads(socket.recv(timeout=60))["error"]["code"] == "session_not_found"
    ticket = alice.http.post("/v1/tickets").json()["ticket"]
    locked.error(locked.http.get(f"/v1/sessions?ticket={ticket}"), 401, "missing_api_key")
    locked.redis.delete(*locked.redis.scan_iter(keys.ticket("*")))


def test_revoking_a_key_ends_its_tickets_and_sockets(locked: Server, alice: Tenant) -> None:
    key, session = new_key(locked, "alice"), alice.ids["session_id"]
    ticket = client(locked, key).post("/v1/tickets").json()["ticket"]
    with opened(locked, session, key=key) as socket:
        assert say(socket) == "response.completed"
        credentials(locked, lambda c: c.revoke(key.split("_")[1]))
        assert say(socket) == "error"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
    assert refused(locked, session, f"?ticket={ticket}") == (401, "api_key_revoked")


def test_the_socket_of_responses(locked: Server, alice: Tenant, bob: Tenant) -> None:
    """It needs a key, and closes when the key is revoked."""
    url = f"ws://127.0.0.1:{locked.port}/v1/responses"
    with pytest.raises(InvalidStatus) as closed, connect(url):
        pass
    assert closed.value.response.status_code == 401
    key = new_key(locked, "bob")
    with connect(url, additional_headers={"Authorization": f"Bearer {key}"}) as socket:

        def hear(**fields: Any) -> dict[str, Any]:
            socket.send(json.dumps({"type": "response.create", "input": "Hi.", "max_output_tokens": 2, **fields}))
            while (event := json.loads(socket.recv(timeout=60)))["type"] not in ("response.incomplete", "error"):
                pass
            return event

        assert hear(previous_response_id=bob.ids["response_id"])["type"] == "response.incomplete"
        credentials(locked, lambda c: c.revoke(key.split("_")[1]))
        assert hear()["error"]["code"] == "api_key_revoked"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
