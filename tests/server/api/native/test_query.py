"""Everlong's own endpoints refuse query parameters that they do not have. Those of other APIs ignore them."""

from __future__ import annotations

from typing import Any

import pytest

from everlong_server.openapi import openapi
from tests.process import Server

OWN = {"documents", "sessions", "access"}
"""The tags of everlong's own endpoints."""
OPERATIONS = [
    (method, path, operation)
    for path, methods in openapi()["paths"].items()
    for method, operation in methods.items()
    if OWN & {*operation["tags"]} and path != "/v1/formats"
]


@pytest.fixture(scope="module")
def session(own_server: Server) -> str:
    return str(own_server.session()["id"])


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[f"{method} {path}" for method, path, _ in OPERATIONS]
)
def test_only_the_parameters_of_the_documentation(
    server: Server, method: str, path: str, operation: dict[str, Any]
) -> None:
    own = {each["name"] for each in operation.get("parameters", []) if each["in"] == "query"}
    body: dict[str, Any] = {"json": {}} if "requestBody" in operation else {}
    for place in ("document_id", "session_id", "key_id", "page"):
        path = path.replace(f"{{{place}}}", "1")
    if path.startswith("/v1/keys"):
        pytest.skip("a server without keys refuses all requests for keys")
    answer = server.http.request(method, path, params={"sparkle": "1"}, **body)
    message = server.error(answer, 422, "unknown_parameter", "sparkle")["message"]
    assert all(name in message for name in own)
    answer = server.http.request(method, path, params=dict.fromkeys(own, "1"), **body)
    assert answer.is_success or answer.json()["error"]["code"] != "unknown_parameter", answer.text


def test_a_misspelt_parameter_is_named(server: Server, session: str) -> None:
    answer = server.http.get("/v1/sessions", params={"limit": 1, "befor": "x"})
    error = server.error(answer, 422, "unknown_parameter", "befor")
    assert (
        error["message"] == "befor: unknown query parameter; this endpoint takes only after, branches_of, limit, query"
    )
    long = server.http.get("/v1/sessions", params={"x" * 1000: "1"})
    assert len(server.error(long, 422, "unknown_parameter", "x" * 60)["message"]) < 200


def test_parameters_of_other_sdks_are_ignored(server: Server) -> None:
    assert server.http.get("/v1/files", params={"api-version": "2025-01-01"}).is_success
    assert server.http.get("/v1/models", params={"beta": "true"}).is_success
