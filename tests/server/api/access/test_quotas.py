"""The limits of tenants, the limit of a body, and the count of requests, for every endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from everlong_server.store.redis import keys
from everlong_server.store.tenants.quota import today
from tests.process import Server
from tests.server.api.access.test_endpoints import ENDPOINTS, LOCKED, NAMES, Endpoint
from tests.server.tenants import UNKNOWN, Tenant, client, new_key, tenant

REQUESTS, TOKENS = 100_000, 1_000_000
SPENDING = {
    "POST /v1/documents",
    "POST /v1/documents/archive",
    "POST /v1/files",
    "POST /v1/uploads",
    "POST /v1/sessions/{session_id}/messages",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/batches",
    "GET /v1/sessions/{session_id}/memory",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /v2/rerank",
    "POST /v1/search",
    "POST /v1/vector_stores/{vector_store_id}/search",
}
"""What reads, answers, searches or computes with the model. (`/v1/documents/fetch` is off, and parts are read once an upload is complete.)"""


@pytest.fixture(scope="module")
def limited(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits: dict[str, Any] = {
        "tenant_requests_per_minute": REQUESTS,
        "tenant_tokens_per_day": TOKENS,
        "embeddings": "auto",
    }
    with Server(tiny_model, tmp_path_factory.mktemp("data"), auth="keys", **limits) as server:
        server.start()
        yield server
        server.check_keys()


ANSWERING = SPENDING - {
    "POST /v1/documents",
    "POST /v1/documents/archive",
    "POST /v1/files",
    "POST /v1/uploads",
    "POST /v1/batches",
}
"""What counts as one of a tenant's concurrent answers while it runs."""


@pytest.fixture(scope="module")
def carol(limited: Server) -> Tenant:
    return tenant(limited, "carol")


@pytest.fixture(scope="module")
def spent(limited: Server) -> str:
    """A key of a tenant that has used up its requests."""
    limited.redis.set(keys.requests("spent"), REQUESTS * (time.time() + 3600), px=3_600_000)
    return new_key(limited, "spent")


@pytest.mark.parametrize(**NAMES, argvalues=LOCKED)
def test_a_tenant_without_requests_left(limited: Server, spent: str, endpoint: Endpoint) -> None:
    method, path, body = endpoint.request(UNKNOWN)
    with client(limited, spent) as http:
        answer = http.request(method, path, **body)
    limited.error(answer, 429, "requests_limit")
    assert int(answer.headers["retry-after"]) > 0


def test_a_tenant_without_tokens_left_neither_reads_nor_asks(limited: Server, carol: Tenant) -> None:
    limited.redis.set(keys.tokens("carol", today()), TOKENS, ex=60)
    deleted_last = sorted(LOCKED, key=lambda endpoint: endpoint.method == "DELETE")
    refused = set()
    for endpoint in deleted_last:
        method, path, body = endpoint.request(carol.ids)
        answer = carol.http.request(method, path, **body)
        assert answer.status_code < 500, (endpoint.name, answer.text)
        if answer.status_code == 429:
            limited.error(answer, 429, "tokens_limit")
            refused.add(endpoint.name)
    assert refused == SPENDING, sorted(refused ^ SPENDING)


@pytest.mark.long
def test_a_tenant_gets_one_answer_at_a_time_from_every_endpoint(new_server: Callable[..., Server]) -> None:
    server = new_server(auth="keys", tenant_streams=1, embeddings="auto").start()
    dora = tenant(server, "dora")
    endless = {"content": "Talk.", "max_tokens": 100_000, "ignore_eos": True, "stop_repetition": False, "stream": True}
    session, refused = dora.http.post("/v1/sessions", json={}).json()["id"], set()
    with dora.http.stream("POST", f"/v1/sessions/{session}/messages", json=endless) as stream:
        lines = stream.iter_lines()  # kept: to drop it is to close the connection
        assert next(lines)
        for endpoint in sorted(LOCKED, key=lambda endpoint: endpoint.method == "DELETE"):
            method, path, body = endpoint.request(dora.ids)
            answer = dora.http.request(method, path, **body)
            if answer.status_code == 429:
                server.error(answer, 429, "streams_limit")
                refused.add(endpoint.name)
        assert next(lines)
    assert refused == ANSWERING, sorted(refused ^ ANSWERING)

    body = {"model": "tiny-rmt", "max_tokens": 2}
    with client(server, new_key(server, "erin")) as http:
        texts = http.post("/v1/completions", json=body | {"prompt": ["a", "b", "c", "d", "e"]})
        assert len(texts.json()["choices"]) == 5, "one after the other"
        chat = body | {"messages": [{"role": "user", "content": "Who?"}]}
        answers = http.post("/v1/chat/completions", json=chat | {"n": 2})
        assert (answers.status_code, answers.json()["error"]["code"]) == (429, "streams_limit")
        assert "the request needs 2" in answers.json()["error"]["message"]
        assert answers.headers["x-should-retry"] == "false", "there is never a place for two answers at once"
        assert "retry-after" not in answers.headers


@pytest.mark.parametrize(
    **NAMES,
    argvalues=[e for e in LOCKED if "application/json" in e.operation.get("requestBody", {}).get("content", {})],
)
def test_a_json_body_over_the_limit(locked: Server, alice: Tenant, endpoint: Endpoint) -> None:
    method, path, _ = endpoint.request(UNKNOWN)
    error = locked.error(alice.http.request(method, path, json={"input": "x" * (1 << 20)}), 413, "too_large")
    assert "1048576" in error["message"]


def test_requests_to_every_endpoint_are_counted(limited: Server) -> None:
    with client(limited, new_key(limited, "dan")) as http:
        for endpoint in ENDPOINTS:
            method, path, body = endpoint.request(UNKNOWN)
            http.request(method, path, **body)
        families = list(text_string_to_metric_families(http.get("/metrics").text))
    counted = {
        (sample.labels["method"], sample.labels["route"])
        for family in families
        for sample in family.samples
        if sample.name == "everlong_requests_total"
    }
    assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} - counted == set()
