"""Who gets in: keys, scopes, tickets; and two tenants who try every endpoint on each other's ids.

Endpoints come from the OpenAPI document and the app's routes: one that is new is tried too, or fails here for want of
a request to try it with.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import openai
import pytest
from fastapi.routing import iter_route_contexts
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from everlong_server.api.access import OPEN, scope_of
from everlong_server.app import create_app
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.openapi import openapi
from everlong_server.services import NoKeys, require_keys
from everlong_server.settings import Settings
from everlong_server.store import connection, keys
from everlong_server.store.credentials import SCOPES, Credentials
from tests.process import Server, free_port

T = TypeVar("T")

TEXT = "Alice has a secret: the combination of the safe is four, eight, fifteen. " * 30


class Tenant(NamedTuple):
    """A tenant's way in, and what it has."""

    name: str
    key: str
    http: httpx.Client
    ids: dict[str, str]


def credentials(server: Server, work: Callable[[Credentials], Awaitable[T]]) -> T:
    """What `work` does with the server's credentials."""

    async def run() -> T:
        redis = connection.connect(f"unix://{server._link}/redis/redis.sock")
        try:
            return await work(Credentials(redis))
        finally:
            await redis.aclose()

    return asyncio.run(run())


def new_key(server: Server, tenant: str, *scopes: str) -> str:
    return credentials(server, lambda c: c.create(tenant, scopes=scopes or SCOPES))[1]


def client(server: Server, key: str | None) -> httpx.Client:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def locked(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for keys, with its metrics on a port of their own."""
    with Server(tiny_model, tmp_path_factory.mktemp("data"), auth="keys", metrics_port=free_port()) as server:
        server.start()
        yield server
        server.check_keys()


def tenant(server: Server, name: str) -> Tenant:
    key = new_key(server, name)
    http = client(server, key)
    document = http.post("/v1/documents", content=TEXT.encode(), headers={"content-type": "text/plain"}).json()["id"]
    while http.get(f"/v1/documents/{document}").json()["status"] != "ready":
        time.sleep(0.02)
    session = http.post("/v1/sessions", json={"documents": [document]}).json()["id"]
    said = http.post(f"/v1/sessions/{session}/messages", json={"content": "Which secret?", "max_tokens": 3})
    assert said.status_code == 200, said.text
    response = http.post(
        "/v1/responses", json={"model": MODEL, "input": "Which secret?", "max_output_tokens": 16}
    ).json()
    facts = {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    upload = http.post("/v1/uploads", json=facts).json()["id"]
    part = http.post(f"/v1/uploads/{upload}/parts", files={"data": b"half a te"}).json()["id"]
    ids = {"document_id": document, "file_id": document, "session_id": session, "response_id": response["id"],
           "upload_id": upload, "part_id": part, "key_id": new_key(server, name).split("_")[1]}  # fmt: skip
    return Tenant(name, key, http, ids)


@pytest.fixture(scope="module")
def alice(locked: Server) -> Tenant:
    return tenant(locked, "alice")


@pytest.fixture(scope="module")
def bob(locked: Server) -> Tenant:
    return tenant(locked, "bob")


# Every endpoint

KINDS = {"document": "doc", "file": "doc", "session": "ses", "response": "resp", "upload": "upload", "part": "part"}
UNKNOWN = {f"{kind}_id": f"{prefix}_{'0' * 32}" for kind, prefix in KINDS.items()} | {"key_id": "0" * 16}
MODEL = "tiny-rmt"


def about(file: str) -> dict[str, Any]:
    parts = [{"type": "file", "file": {"file_id": file}}, {"type": "text", "text": "Which secret?"}]
    return {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": parts}]}


BODIES: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
    "POST /v1/documents": lambda ids: {"content": b"words", "headers": {"content-type": "text/plain"}},
    "POST /v1/documents/fetch": lambda ids: {"json": {"url": "http://example.org/"}},
    "POST /v1/files": lambda ids: {"files": {"file": b"words"}, "data": {"purpose": "user_data"}},
    "POST /v1/sessions": lambda ids: {"json": {"documents": [ids["document_id"]]}},
    "POST /v1/sessions/{session_id}/messages": lambda ids: {"json": {"content": "Hi", "max_tokens": 2}},
    "POST /v1/keys": lambda ids: {"json": {}},
    "POST /v1/chat/completions": lambda ids: {"json": about(ids["file_id"])},
    "POST /v1/responses": lambda ids: {
        "json": {"model": MODEL, "input": "Hi", "max_output_tokens": 16, "previous_response_id": ids["response_id"]}
    },
    "POST /v1/uploads": lambda ids: {
        "json": {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    },
    "POST /v1/uploads/{upload_id}/parts": lambda ids: {"files": {"data": b"x"}},
    "POST /v1/uploads/{upload_id}/complete": lambda ids: {"json": {"part_ids": [ids["part_id"]]}},
}
"""What is sent to endpoints that take a body, with the ids that it names."""


class Endpoint(NamedTuple):
    method: str
    path: str
    operation: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def parameters(self) -> list[str]:
        return [p["name"] for p in self.operation.get("parameters", []) if p["in"] == "path"]

    def request(self, ids: dict[str, str]) -> tuple[str, str, dict[str, Any]]:
        """Method, path and arguments, naming `ids`."""
        ids = {"model_id": MODEL, **ids}
        missing = [parameter for parameter in self.parameters if parameter not in ids]
        assert not missing, f"{self.name} is new: say whose {missing} are, in tests/server/test_access.py"
        body = {}
        if "requestBody" in self.operation:
            assert self.name in BODIES, f"{self.name} is new: say in BODIES what is sent to it"
            body = BODIES[self.name](ids)
        return self.method, self.path.format(**ids), body

    @property
    def names_an_object(self) -> bool:
        """Whether the request names something that belongs to somebody."""
        return self.request(UNKNOWN)[1:] != self.request(dict.fromkeys(UNKNOWN, "other"))[1:]


ENDPOINTS = [
    Endpoint(method.upper(), path, operation)
    for path, operations in openapi()["paths"].items()
    for method, operation in operations.items()
]
LOCKED = [endpoint for endpoint in ENDPOINTS if endpoint.path not in OPEN]
SOCKETS = ["/v1/sessions/{session_id}/stream", "/v1/responses"]
NAMES = {"argnames": "endpoint", "ids": lambda endpoint: endpoint.name}


def test_every_route_is_tried() -> None:
    app = create_app(Settings(), "unix:///dev/null", lambda: None)
    routes = [(type(context.original_route).__name__, context.path)
              for context in iter_route_contexts(app.routes)]  # fmt: skip
    known = {endpoint.path for endpoint in ENDPOINTS} | OPEN
    assert {path for kind, path in routes if "WebSocket" in kind} == set(SOCKETS)
    # A mount of files that are the page's own.
    assert {path for kind, path in routes if "WebSocket" not in kind} - known == {"/assets"}


def test_what_is_open_holds_nothing_of_anybodys() -> None:
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.path in OPEN} == {"/livez", "/readyz", "/metrics"}
    assert all(not path.startswith("/v1") for path in OPEN)
    for path in OPEN:
        assert scope_of("POST", path) == "write"
    assert scope_of("GET", "/v1/nothing") == "read"
    assert scope_of("GET", "/nothing") == "read"


@pytest.mark.parametrize(**NAMES, argvalues=LOCKED)
def test_a_request_without_a_good_key(locked: Server, alice: Tenant, endpoint: Endpoint, bad_keys: dict) -> None:
    method, path, body = endpoint.request(alice.ids)
    for (kind, code), headers in bad_keys.items():
        given = [*body.get("headers", {}).items(), *headers]
        answer = locked.http.request(method, path, **body | {"headers": given})
        error = locked.error(answer, 401, code)
        assert answer.headers["www-authenticate"] == "Bearer"
        secrets = [value.rpartition("_")[2] for _, value in headers if "evl_" in value]
        assert not any(secret in answer.text for secret in secrets), (kind, error)
    assert scope_of(method, path) in SCOPES
    assert endpoint.operation["security"] == [{"key": [scope_of(method, path)]}]
    assert {"401", "403"} <= endpoint.operation["responses"].keys()


@pytest.fixture(scope="module")
def bad_keys(locked: Server) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Headers that do not open: by what is wrong with them, and the error's code."""
    good, expired, revoked = (new_key(locked, "alice") for _ in range(3))
    locked.redis.hset(keys.api_key(expired.split("_")[1]), "expires_at", time.time() - 1)
    credentials(locked, lambda c: c.revoke(revoked.split("_")[1]))
    identifier, other = good.split("_", 2)[1], expired.split("_", 2)[2]
    given = {
        ("none", "missing_api_key"): None,
        ("malformed", "invalid_api_key"): "Bearer none",
        ("empty", "invalid_api_key"): "Bearer",
        ("another scheme", "invalid_api_key"): f"Basic {good}",
        ("unknown", "invalid_api_key"): f"Bearer evl_{'0' * 16}_{other}",
        ("wrong", "invalid_api_key"): f"Bearer evl_{identifier}_{other}",
        ("cut", "invalid_api_key"): f"Bearer {good[:-1]}",
        ("expired", "api_key_expired"): f"Bearer {expired}",
        ("revoked", "api_key_revoked"): f"Bearer {revoked}",
    }
    headers = {kind: [] if value is None else [("Authorization", value)] for kind, value in given.items()}
    return headers | {("two", "invalid_api_key"): [("Authorization", f"Bearer {good}")] * 2}


@pytest.mark.parametrize(**NAMES, argvalues=LOCKED)
def test_a_key_without_the_scope(locked: Server, alice: Tenant, endpoint: Endpoint, lacking: dict[str, str]) -> None:
    method, path, body = endpoint.request(alice.ids)
    needed = scope_of(method, path)
    answer = client(locked, lacking[needed]).request(method, path, **body)
    assert f"'{needed}'" in locked.error(answer, 403, "missing_scope")["message"]


@pytest.fixture(scope="module")
def lacking(locked: Server) -> dict[str, str]:
    """For each scope a key that has all others."""
    return {scope: new_key(locked, "alice", *(other for other in SCOPES if other != scope)) for scope in SCOPES}


def everything(tenant: Tenant) -> list[str]:
    """All that a tenant can see of its own."""
    ids = tenant.ids
    paths = ("/v1/keys", "/v1/documents", "/v1/sessions", "/v1/files", f"/v1/documents/{ids['document_id']}",
             f"/v1/files/{ids['file_id']}/content", f"/v1/sessions/{ids['session_id']}",
             f"/v1/sessions/{ids['session_id']}/messages", f"/v1/sessions/{ids['session_id']}/memory",
             f"/v1/responses/{ids['response_id']}", f"/v1/responses/{ids['response_id']}/input_items")  # fmt: skip
    answers = [tenant.http.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200] * len(paths)
    return [answer.text for answer in answers]


def test_another_tenants_ids_are_unknown(locked: Server, alice: Tenant, bob: Tenant) -> None:
    """To each endpoint: Bob's request with Alice's ids is answered as one with ids that there are not."""
    before, tried = everything(alice), 0
    for endpoint in sorted(LOCKED, key=lambda endpoint: endpoint.method == "DELETE"):
        if not endpoint.names_an_object:
            continue
        method, path, body = endpoint.request(alice.ids)
        foreign, unknown = bob.http.request(method, path, **body), None
        method, path, body = endpoint.request(UNKNOWN)
        unknown = bob.http.request(method, path, **body)
        assert foreign.status_code == unknown.status_code == 404, (endpoint.name, foreign.text, unknown.text)
        said = foreign.text
        for name, identifier in alice.ids.items():
            said = said.replace(identifier, UNKNOWN[name])
        assert said == unknown.text, endpoint.name
        assert dict(foreign.headers, date="") == dict(unknown.headers, date="")
        tried += 1
    assert tried >= 14, "what names an object?"
    assert everything(alice) == before
    assert "four, eight" in before[5]


def test_lists_show_ones_own(alice: Tenant, bob: Tenant) -> None:
    for endpoint in LOCKED:
        if endpoint.method == "GET" and not endpoint.parameters:
            for one, other in ((alice, bob), (bob, alice)):
                answer = one.http.get(endpoint.path, params={"limit": 100} if "limit" in str(endpoint) else {})
                assert answer.status_code == 200, answer.text
                assert not any(identifier in answer.text for identifier in other.ids.values()), endpoint.name
    for path, name in (("/v1/documents", "document_id"), ("/v1/sessions", "session_id"), ("/v1/files", "file_id")):
        assert bob.ids[name] in bob.http.get(path).text
        foreign = bob.http.get(path, params={"after": alice.ids[name]})
        unknown = bob.http.get(path, params={"after": UNKNOWN[name]})
        assert foreign.status_code == 404
        assert foreign.text.replace(alice.ids[name], UNKNOWN[name]) == unknown.text


def test_a_mixture_of_documents_is_unknown(alice: Tenant, bob: Tenant) -> None:
    answer = bob.http.post("/v1/sessions", json={"documents": [bob.ids["document_id"], alice.ids["document_id"]]})
    assert answer.status_code == 404
    assert alice.ids["document_id"] in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "documents"


def test_a_chat_that_another_tenant_had_is_read_anew(alice: Tenant, bob: Tenant) -> None:
    said = [{"role": "user", "content": "A word that nobody else says: syzygy. " * 20}]

    def ask(tenant: Tenant, messages: list[dict[str, str]]) -> tuple[str, int]:
        body = {"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0}
        answer = tenant.http.post("/v1/chat/completions", json=body).json()
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    words, _ = ask(alice, said)
    more = [*said, {"role": "assistant", "content": words}, {"role": "user", "content": "Go on."}]
    assert ask(bob, more)[1] == 0
    assert ask(alice, more)[1] > 0


def test_a_file_of_another_tenant_grounds_no_response(alice: Tenant, bob: Tenant) -> None:
    said = []
    for file in (alice.ids["file_id"], UNKNOWN["file_id"]):
        parts = [{"type": "input_file", "file_id": file}, {"type": "input_text", "text": "Which secret?"}]
        for background in (False, True):
            body = {"input": [{"role": "user", "content": parts}], "background": background}
            answer = bob.http.post("/v1/responses", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")
            said.append(answer.text.replace(file, ""))
    assert len(set(said)) == 1


def test_the_socket_of_responses(locked: Server, alice: Tenant, bob: Tenant) -> None:
    """It wants a key, and ends with it."""
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


# Keys


def test_what_is_stored_opens_nothing(locked: Server) -> None:
    secret = new_key(locked, "carol")
    stored = {
        key: locked.redis.dump(key) or b"" for key in locked.redis.scan_iter("{everlong}:*") if b"stream" not in key
    }
    assert not any(secret.split("_", 2)[2].encode() in value for value in stored.values())
    record = locked.redis.hgetall(keys.api_key(secret.split("_")[1]))
    assert len(record[b"digest"]) == 64
    for wrong in (record[b"digest"].decode(), f"evl_{record[b'id'].decode()}_{record[b'digest'].decode()[:43]}"):
        assert client(locked, wrong).get("/v1/sessions").status_code == 401


def test_a_revoked_key_ends_at_once(locked: Server) -> None:
    secret = new_key(locked, "carol")
    http = client(locked, secret)
    assert http.get("/v1/sessions").status_code == 200
    assert credentials(locked, lambda c: c.revoke(secret.split("_")[1])).state(time.time()) == "revoked"
    locked.error(http.get("/v1/sessions"), 401, "api_key_revoked")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tenant": ""}, "begins with a letter"),
        ({"tenant": "A"}, "a-z"),
        ({"tenant": "a:b"}, "a-z"),
        ({"tenant": "*"}, "a-z"),
        ({"tenant": "x" * 65}, "at most 64"),
        ({"tenant": "a", "scopes": ["read", "fly"]}, "fly"),
        ({"tenant": "a", "scopes": []}, "none"),
        ({"tenant": "a", "name": "x" * 101}, "100"),
        ({"tenant": "a", "name": "a\nb"}, "printable"),
        ({"tenant": "a", "seconds": 0}, "at least 1"),
    ],
)
def test_keys_that_cannot_be(locked: Server, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        credentials(locked, lambda c: c.create(**arguments))


def test_a_tenants_administrator_makes_and_ends_its_keys(locked: Server) -> None:
    admin = client(locked, new_key(locked, "dana", "admin"))
    made = admin.post("/v1/keys", json={"name": "laptop", "scopes": ["read"], "expires_in_seconds": 60})
    assert made.status_code == 201, made.text
    assert made.json()["scopes"] == ["read"]
    assert made.json()["expires_at"] == pytest.approx(made.json()["created_at"] + 60)
    other = client(locked, made.json()["key"])
    assert other.get("/v1/sessions").status_code == 200
    locked.error(other.post("/v1/sessions", json={}), 403, "missing_scope")
    listed = admin.get("/v1/keys")
    assert [key["name"] for key in listed.json()["data"]] == ["laptop", ""]
    assert made.json()["key"] not in listed.text
    assert admin.delete(f"/v1/keys/{made.json()['id']}").json()["revoked_at"] is not None
    locked.error(other.get("/v1/sessions"), 401, "api_key_revoked")
    assert admin.delete(f"/v1/keys/{made.json()['id']}").status_code == 200
    for bad in ({"scopes": []}, {"scopes": ["fly"]}, {"name": "x" * 101}, {"name": "a\nb"}, {"expires_in_seconds": 0}):
        assert admin.post("/v1/keys", json=bad).status_code == 422
    said = locked.log.read_text()
    (line,) = [line for line in said.splitlines() if "key.revoked" in line and made.json()["id"] in line]
    event = json.loads(line[line.index("{") :])
    assert (event["by"], event["tenant"]) == (f"key {admin.headers['authorization'].split('_')[1]}", "dana")


def test_where_nobody_is_asked_for_a_key_nobody_makes_one(server: Server) -> None:
    for method, path in (("POST", "/v1/keys"), ("GET", "/v1/keys"), ("DELETE", "/v1/keys/" + "0" * 16)):
        answer = server.http.request(method, path, json={} if method == "POST" else None)
        assert "everlong keys create" in server.error(answer, 403, "missing_scope")["message"]


def test_keys_that_are_not_there_cannot_be_revoked(locked: Server) -> None:
    for key_id in ("0" * 16, "x", "*", ""):
        with pytest.raises(NotFound):
            credentials(locked, lambda c, key_id=key_id: c.revoke(key_id))


# WebSockets


def opened(server: Server, session: str, query: str = "", key: str | None = None) -> ClientConnection:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return connect(f"ws://127.0.0.1:{server.port}/v1/sessions/{session}/stream{query}", additional_headers=headers)


def say(socket: ClientConnection) -> str:
    """The type of the last event that a message is answered with."""
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
    (stored,) = locked.redis.scan_iter("{everlong}:ticket:*")
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
    locked.redis.delete(*locked.redis.scan_iter("{everlong}:ticket:*"))


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


# Others' programs


def test_openais_sdk_has_its_errors(locked: Server, alice: Tenant, lacking: dict[str, str]) -> None:
    def sdk(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0)

    assert sdk(alice.key).models.list().data[0].id == MODEL
    assert [file.id for file in sdk(alice.key).files.list()] == [alice.ids["file_id"]]
    with pytest.raises(openai.AuthenticationError) as caught:
        sdk("none").models.list()
    assert (caught.value.code, caught.value.type) == ("invalid_api_key", "authentication_error")
    with pytest.raises(openai.PermissionDeniedError) as denied:
        sdk(lacking["read"]).models.list()
    assert denied.value.code == "missing_scope"


def test_metrics_have_a_port_of_their_own(locked: Server) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{locked.settings['metrics_port']}") as probe:
        assert "everlong_rejections_total" in probe.get("/metrics").text
        assert probe.get("/readyz").text == "ok"
        for path in ("/v1/models", "/docs", "/v1/sessions", "/"):
            assert probe.get(path).status_code == 404
    locked.error(locked.http.get("/metrics"), 404, "path_not_found")
    assert locked.http.get("/livez").text == "ok"
    # What a caller claims to have reached decides nothing.
    host = {"Host": f"127.0.0.1:{locked.settings['metrics_port']}"}
    locked.error(locked.http.get("/metrics", headers=host), 404, "path_not_found")


# Whether keys are asked for


@pytest.mark.parametrize(
    ("settings", "asks"),
    [
        ({}, False),
        ({"host": "127.0.0.1"}, False),
        ({"host": "127.9.9.9"}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "192.168.1.7"}, True),
        ({"host": "localhost.example.org"}, True),
        ({"host": ""}, True),
        ({"host": "0.0.0.0", "auth": "off"}, False),
        ({"auth": "keys"}, True),
    ],
)
def test_keys_are_asked_for_unless_only_this_machine_listens(settings: dict[str, str], asks: bool) -> None:
    assert Settings(**settings).asks_for_keys is asks


def command(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`everlong keys …`."""
    program = "import sys; from everlong_server.cli.keys import keys; sys.argv[0] = 'everlong keys'; keys()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env={"EVERLONG_DATA_DIR": str(data), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_server_that_others_can_reach_wants_a_key_first(new_server: Callable[..., Server]) -> None:
    server = new_server(host="0.0.0.0")
    server.launch()
    assert server.process is not None
    assert server.process.wait(60) == 1
    server.process = None
    said = server.log.read_text()
    assert "everlong keys create" in said
    assert "EVERLONG_AUTH=off" in said

    # Its own Redis is not running: the command starts it for a moment.
    made = command(server._link, "create", "--tenant", "dora", "--expires", "30d", "--name", "for tests")
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert '"event": "key.created"' in made.stderr
    assert secret not in made.stderr
    server.start()
    server.error(server.http.get("/v1/sessions"), 401, "missing_api_key")
    assert client(server, secret).get("/v1/sessions").json()["data"] == []

    # And while the server runs.
    listed = command(server._link, "list", "--tenant", "dora")
    key_id = secret.split("_")[1]
    assert key_id in listed.stdout
    assert secret not in listed.stdout + listed.stderr
    ended = command(server._link, "revoke", key_id)
    assert ended.returncode == 0, ended.stderr
    assert '"event": "key.revoked"' in ended.stderr
    server.error(client(server, secret).get("/v1/sessions"), 401, "api_key_revoked")
    assert "no key" in command(server._link, "revoke", "0" * 16).stderr
    assert "--expires" in command(server._link, "create", "--tenant", "dora", "--expires", "soon").stderr


def test_whether_a_start_is_refused(locked: Server, new_server: Callable[..., Server]) -> None:
    url = f"unix://{locked._link}/redis/redis.sock"
    asyncio.run(require_keys(Settings(host="0.0.0.0"), url))  # there are keys
    spare = url + "?db=1"
    with pytest.raises(NoKeys, match="everlong keys create"):
        asyncio.run(require_keys(Settings(host="0.0.0.0"), spare))
    asyncio.run(require_keys(Settings(host="0.0.0.0", auth="keys"), spare))
    asyncio.run(require_keys(Settings(host="0.0.0.0", auth="off"), spare))
    asyncio.run(require_keys(Settings(), spare))
