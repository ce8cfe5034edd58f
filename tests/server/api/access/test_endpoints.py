"""Who gets in where: every endpoint, without a good key, without the scope, and with another tenant's ids.

Endpoints come from the OpenAPI document and the app's routes: one that is new is tried too, or fails here for want of
a request to try it with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from everlong_server.api.access import PUBLIC_PATHS, scope_of
from everlong_server.app import create_app
from everlong_server.openapi import openapi
from everlong_server.settings import Settings
from everlong_server.store.tenants.credentials import SCOPES
from tests.files import zipped
from tests.process import Server
from tests.server.tenants import MODEL, UNKNOWN, Tenant, client


def about(file: str) -> dict[str, Any]:
    parts = [{"type": "file", "file": {"file_id": file}}, {"type": "text", "text": "Which secret?"}]
    return {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": parts}]}


def _about(file: str) -> dict[str, Any]:
    """Return a conversation about a file, for Anthropic's API."""
    document = {"type": "document", "source": {"type": "file", "file_id": file}}
    return {"model": MODEL, "messages": [{"role": "user", "content": [document, {"type": "text", "text": "Hi"}]}]}


BODIES: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
    "POST /v1/documents": lambda ids: {"content": b"words", "headers": {"content-type": "text/plain"}},
    "POST /v1/documents/archive": lambda ids: {"content": zipped({"a.txt": "words"})},
    "POST /v1/documents/fetch": lambda ids: {"json": {"url": "http://example.org/"}},
    "POST /v1/files": lambda ids: {"files": {"file": b"words"}, "data": {"purpose": "user_data"}},
    "POST /v1/sessions": lambda ids: {"json": {"documents": [ids["document_id"]]}},
    "PATCH /v1/sessions/{session_id}": lambda ids: {"json": {"title": "Hi"}},
    "POST /v1/sessions/{session_id}/messages": lambda ids: {"json": {"content": "Hi", "max_tokens": 2}},
    "POST /v1/keys": lambda ids: {"json": {}},
    "POST /v1/chat/completions": lambda ids: {"json": about(ids["file_id"])},
    "POST /v1/completions": lambda ids: {"json": {"model": MODEL, "prompt": "Hi", "max_tokens": 2}},
    "POST /v1/messages": lambda ids: {"json": _about(ids["file_id"]) | {"max_tokens": 4}},
    "POST /v1/messages/count_tokens": lambda ids: {"json": _about(ids["file_id"])},
    "POST /api/chat": lambda ids: {
        "json": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "documents": [ids["document_id"]]}
    },
    "POST /api/generate": lambda ids: {"json": {"model": MODEL, "prompt": "Hi", "documents": [ids["document_id"]]}},
    "POST /api/show": lambda ids: {"json": {"model": MODEL}},
    "POST /api/embed": lambda ids: {"json": {"model": "all-MiniLM-L6-v2", "input": "Hi"}},
    "POST /api/embeddings": lambda ids: {"json": {"model": "all-MiniLM-L6-v2", "prompt": "Hi"}},
    "POST /v1/responses": lambda ids: {
        "json": {"model": MODEL, "input": "Hi", "max_output_tokens": 16, "previous_response_id": ids["response_id"]}
    },
    "POST /v1/responses/input_tokens": lambda ids: {
        "json": {"model": MODEL, "input": "Hi", "previous_response_id": ids["response_id"]}
    },
    "POST /v1/search": lambda ids: {"json": {"query": "secret", "documents": [ids["document_id"]]}},
    "POST /v1/vector_stores": lambda ids: {"json": {"file_ids": [ids["file_id"]]}},
    "POST /v1/vector_stores/{vector_store_id}": lambda ids: {"json": {"name": "b"}},
    "POST /v1/vector_stores/{vector_store_id}/search": lambda ids: {"json": {"query": "secret"}},
    "POST /v1/vector_stores/{vector_store_id}/file_batches": lambda ids: {"json": {"file_ids": [ids["file_id"]]}},
    "POST /v1/vector_stores/{vector_store_id}/files": lambda ids: {"json": {"file_id": ids["file_id"]}},
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": lambda ids: {"json": {"attributes": {"a": "b"}}},
    "POST /v1/batches": lambda ids: {
        "json": {"input_file_id": ids["input_file_id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    },
    "POST /v1/embeddings": lambda ids: {"json": {"model": "all-MiniLM-L6-v2", "input": "words"}},
    **dict.fromkeys(
        ("POST /v1/rerank", "POST /v2/rerank"),
        lambda ids: {"json": {"model": "all-MiniLM-L6-v2", "query": "words", "documents": ["words"]}},
    ),
    "POST /v1/uploads": lambda ids: {
        "json": {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    },
    "POST /v1/uploads/{upload_id}/parts": lambda ids: {"files": {"data": b"x"}},
    "POST /v1/uploads/{upload_id}/complete": lambda ids: {"json": {"part_ids": [ids["part_id"]]}},
}
"""Bodies of the endpoints that take one, with the ids in them."""


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
        ids = {"model_id": MODEL, "page": "1", **ids}
        missing = [parameter for parameter in self.parameters if parameter not in ids]
        assert not missing, f"{self.name} is new: say whose {missing} are, in tests/server/tenants.py"
        body = {}
        if "requestBody" in self.operation:
            assert self.name in BODIES, f"{self.name} is new: say in BODIES what is sent to it"
            body = BODIES[self.name](ids)
        return self.method, self.path.format(**ids), body

    @property
    def names_an_object(self) -> bool:
        """True if the request names an object of a tenant."""
        return self.request(UNKNOWN)[1:] != self.request(dict.fromkeys(UNKNOWN, "other"))[1:]


ENDPOINTS = [
    Endpoint(method.upper(), path, operation)
    for path, operations in openapi()["paths"].items()
    for method, operation in operations.items()
]
LOCKED = [endpoint for endpoint in ENDPOINTS if endpoint.path not in PUBLIC_PATHS]
SOCKETS = ["/v1/sessions/{session_id}/stream", "/v1/responses"]
NAMES = {"argnames": "endpoint", "ids": lambda endpoint: endpoint.name}


def test_every_route_is_tried() -> None:
    app = create_app(Settings(), "unix:///dev/null", lambda: None)
    routes = [(type(context.original_route).__name__, context.path)
              for context in iter_route_contexts(app.routes)]  # fmt: skip
    known = {endpoint.path for endpoint in ENDPOINTS} | PUBLIC_PATHS
    assert {path for kind, path in routes if "WebSocket" in kind} == set(SOCKETS)
    # A mount of files that are the page's own.
    assert {path.replace(":path}", "}") for kind, path in routes if "WebSocket" not in kind} - known == {"/assets"}


def test_public_paths_reveal_no_data() -> None:
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.path in PUBLIC_PATHS} == {
        "/livez",
        "/readyz",
        "/metrics",
    }
    assert all(not path.startswith("/v1") for path in PUBLIC_PATHS)
    for path in PUBLIC_PATHS:
        assert scope_of("POST", path) == "write"
    assert scope_of("GET", "/v1/nothing") == "read"
    assert scope_of("GET", "/nothing") == "read"


def test_a_post_that_stores_nothing_needs_only_read() -> None:
    posts = [endpoint for endpoint in ENDPOINTS if endpoint.method == "POST"]
    assert {endpoint.path for endpoint in posts if scope_of("POST", endpoint.path) == "read"} == {
        "/v1/search", "/v1/rerank", "/v2/rerank", "/v1/embeddings", "/api/embed", "/api/embeddings", "/api/show",
        "/v1/vector_stores/{vector_store_id}/search",
    }  # fmt: skip
    assert scope_of("DELETE", "/v1/search") == scope_of("POST", "/v1/search/more") == "write"


@pytest.mark.parametrize(**NAMES, argvalues=LOCKED)
def test_a_request_without_a_valid_key(locked: Server, alice: Tenant, endpoint: Endpoint, bad_keys: dict) -> None:
    method, path, body = endpoint.request(alice.ids)
    for (kind, code), headers in bad_keys.items():
        given = [*body.get("headers", {}).items(), *headers]
        answer = locked.http.request(method, path, **body | {"headers": given})
        error = locked.error(answer, 401, code)
        assert answer.headers["www-authenticate"] == "Bearer"
        secrets = [value.split("_", 2)[2] for _, value in headers if "evl_" in value]
        assert not any(secret in answer.text for secret in secrets), (kind, error)
    assert scope_of(method, path) in SCOPES
    assert endpoint.operation["security"] == [{"key": [scope_of(method, path)]}]
    assert {"401", "403"} <= endpoint.operation["responses"].keys()


def test_a_key_that_only_reads_asks_without_storing_anything(
    locked: Server, alice: Tenant, lacking: dict[str, str]
) -> None:
    reader = client(locked, lacking["write"])
    lists = [endpoint.path for endpoint in LOCKED if endpoint.method == "GET" and "{" not in endpoint.path]
    lists = [path for path in lists if scope_of("GET", path) == "read" and path.startswith("/v1/")]
    assert {"/v1/documents", "/v1/files", "/v1/sessions", "/v1/vector_stores"} <= set(lists)
    before = {path: reader.get(path).json() for path in lists}
    for endpoint in LOCKED:
        method, path, body = endpoint.request(alice.ids)
        if method == "POST" and scope_of(method, path) == "read":
            assert reader.request(method, path, **body).status_code in (200, 404, 422), path
    assert {path: reader.get(path).json() for path in lists} == before


@pytest.mark.parametrize(**NAMES, argvalues=LOCKED)
def test_a_key_without_the_scope(locked: Server, alice: Tenant, endpoint: Endpoint, lacking: dict[str, str]) -> None:
    method, path, body = endpoint.request(alice.ids)
    needed = scope_of(method, path)
    answer = client(locked, lacking[needed]).request(method, path, **body)
    assert f"'{needed}'" in locked.error(answer, 403, "missing_scope")["message"]


def everything(tenant: Tenant) -> list[str]:
    """Return everything that a tenant can see."""
    ids = tenant.ids
    paths = ("/v1/keys", "/v1/documents", "/v1/sessions", "/v1/files", f"/v1/documents/{ids['document_id']}",
             f"/v1/files/{ids['file_id']}/content", f"/v1/sessions/{ids['session_id']}",
             f"/v1/sessions/{ids['session_id']}/messages", f"/v1/sessions/{ids['session_id']}/memory",
             f"/v1/responses/{ids['response_id']}", f"/v1/responses/{ids['response_id']}/input_items")  # fmt: skip
    answers = [tenant.http.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200] * len(paths)
    return [answer.text for answer in answers]


def headers(answer: httpx.Response) -> dict[str, str]:
    """Return the headers, without the values that every answer has for itself."""
    own = ("date", "x-request-id", "request-id")
    return {name: "" if name in own else value for name, value in answer.headers.items()}


def test_another_tenants_ids_are_unknown(locked: Server, alice: Tenant, bob: Tenant) -> None:
    """Every endpoint answers Bob's request with Alice's ids like a request with unknown ids."""
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
        said = said.replace(foreign.headers["x-request-id"], unknown.headers["x-request-id"])
        assert said == unknown.text, endpoint.name
        assert headers(foreign) == headers(unknown), endpoint.name
        tried += 1
    assert tried >= 14, "what names an object?"
    assert everything(alice) == before
    assert "four, eight" in before[5]


def has_limit(endpoint: Endpoint) -> bool:
    return any(parameter["name"] == "limit" for parameter in endpoint.operation.get("parameters", []))


def test_lists_show_only_the_tenants_objects(alice: Tenant, bob: Tenant) -> None:
    for endpoint in LOCKED:
        if endpoint.method == "GET" and not endpoint.parameters:
            for one, other in ((alice, bob), (bob, alice)):
                params = {"limit": 100} if has_limit(endpoint) else {}
                answer = one.http.get(endpoint.path, params=params, headers={"Idempotency-Key": "some"})
                # The progress of a request is no list: no request of this key is running.
                expected = 404 if endpoint.path == "/v1/conversion" else 200
                assert answer.status_code == expected, answer.text
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


def test_a_chat_does_not_reuse_another_tenants_memory(alice: Tenant, bob: Tenant) -> None:
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


def test_metrics_have_a_port_of_their_own(locked: Server) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{locked.settings['metrics_port']}", timeout=60) as probe:
        assert "everlong_rejections_total" in probe.get("/metrics").text
        assert probe.get("/readyz").text == "ok"
        for path in ("/v1/models", "/docs", "/v1/sessions", "/"):
            assert probe.get(path).status_code == 404
    locked.error(locked.http.get("/metrics"), 404, "path_not_found")
    assert locked.http.get("/livez").text == "ok"
    # What a caller claims to have reached decides nothing.
    host = {"Host": f"127.0.0.1:{locked.settings['metrics_port']}"}
    locked.error(locked.http.get("/metrics", headers=host), 404, "path_not_found")
