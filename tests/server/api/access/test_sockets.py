"""WebSockets: keys, tickets, and objects of other tenants."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from everlong_server.store.redis import keys
from tests.process import Server
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
