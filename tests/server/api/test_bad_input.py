"""Invalid requests get an error that names the field; never a 500, never a hang."""

from __future__ import annotations

import json
import socket

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.process import Server


@pytest.fixture(scope="module")
def session(shared_server: Server) -> str:
    return shared_server.session()["id"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": 1e9}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.1}, "top_p", "less than or equal to 1"),
        ({"top_k": -1}, "top_k", "greater than or equal to 0"),
        ({"top_k": 1.5}, "top_k", "integer"),
        ({"min_p": 2}, "min_p", "less than or equal to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "greater than or equal to -2"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 10**12}, "max_tokens", "less than or equal to"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"seed": 2**64}, "seed", "less than"),
        ({"stop": [""]}, "stop.0", "stop.0 is empty"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0", "greater than or equal to 0"),
        ({"logit_bias": {"5": 1000}}, "logit_bias.5", "less than or equal to 100"),
        ({"logit_bias": {"100000": 1}}, "logit_bias", "vocabulary"),
        ({"stop_token_ids": [100000]}, "stop_token_ids", "vocabulary"),
        ({"top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        (
            {"logprobs": True, "top_logprobs": 20, "max_tokens": 10_000},
            "max_tokens",
            "limit of 200000 log-probabilities",
        ),
        ({"stream": "maybe"}, "stream", "boolean"),
        ({"content": ""}, "content", "content is empty"),
        ({"content": " \n\u2003"}, "content", "content is empty"),
        ({"content": None}, "content", "string"),
        ({"content": ["a"]}, "content", "string"),
        ({"sparkle": 1}, "sparkle", "sparkle: unknown field"),
        ({"recall": {"passages": 1, "pages": 2}}, "recall.pages", "recall.pages: unknown field"),
        ({"logit_bias": 3}, "logit_bias", "logit_bias must be a JSON object, got 3"),
    ],
)
def test_sampling_values(server: Server, session: str, fields: dict, param: str, words: str) -> None:
    answer = server.http.post(f"/v1/sessions/{session}/messages", json={"content": "hi", **fields})
    error = server.error(answer, 422, "unknown_parameter" if "unknown" in words else "invalid_value", param)
    assert words in error["message"]


def test_schemas_that_json_cannot_represent(server: Server, session: str) -> None:
    deep: dict = {}
    for _ in range(400):
        deep = {"not": deep}
    for schema, code, param in (
        (json.dumps({"const": "\ud800"}), "invalid_json", None),
        (json.dumps(deep), "invalid_json", None),
        ('{"const": 1e999}', "invalid_value", "json_schema"),
    ):
        body = f'{{"content": "hi", "json_schema": {schema}}}'
        for headers in ({}, {"idempotency-key": "schema"}):
            answer = server.http.post(
                f"/v1/sessions/{session}/messages",
                content=body,
                headers={"content-type": "application/json"} | headers,
            )
            server.error(answer, 422, code, param)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_invalid_numbers(server: Server, session: str, number: str) -> None:
    answer = server.http.post(
        f"/v1/sessions/{session}/messages",
        content=f'{{"content": "hi", "temperature": {number}}}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["param"] in ("temperature", None)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"content": "a"', b"{" * 100_000, b'{"content": "\\ud800"}'],
)
def test_bodies_that_are_not_messages(server: Server, session: str, body: bytes) -> None:
    for path in (f"/v1/sessions/{session}/messages", "/v1/sessions"):
        answer = server.http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, (path, answer.status_code, answer.text)
        assert answer.json()["error"]["code"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is missing"),
        (b"[]", "the body must be a JSON object"),
        (b'"a"', "the body must be a JSON object, got 'a'"),
    ],
)
def test_what_a_body_must_be(server: Server, session: str, body: bytes, message: str) -> None:
    answer = server.http.post(
        f"/v1/sessions/{session}/messages", content=body, headers={"content-type": "application/json"}
    )
    assert answer.json()["error"]["message"] == message


def test_missing_fields_are_named(server: Server, session: str) -> None:
    answer = server.http.post(f"/v1/sessions/{session}/messages", json={})
    server.error(answer, 422, "missing_parameter", "content")


@pytest.mark.parametrize(
    "identifier",
    [
        "x",
        "doc_",
        "ses_" + "0" * 32,
        "doc_" + "0" * 32,
        "..%2f..%2fetc",
        "doc_*",
        "doc_x:readings",
        "%00",
        "a" * 5000,
        "ß",
    ],
)
def test_unknown_ids(server: Server, identifier: str) -> None:
    for method, path in (
        ("GET", "/v1/documents/{}"),
        ("DELETE", "/v1/documents/{}"),
        ("GET", "/v1/documents/{}/events"),
        ("GET", "/v1/sessions/{}"),
        ("DELETE", "/v1/sessions/{}"),
        ("GET", "/v1/sessions/{}/messages"),
        ("POST", "/v1/sessions/{}/fork"),
        ("GET", "/v1/models/{}"),
    ):
        answer = server.http.request(method, path.format(identifier))
        assert answer.status_code == 404, (method, path, answer.text)
        assert answer.json()["error"]["code"].endswith("_not_found")
    answer = server.http.post("/v1/sessions", json={"documents": [identifier]})
    assert answer.status_code in (404, 422)
    assert answer.json()["error"]["param"].startswith("documents")


def test_invalid_sessions(server: Server) -> None:
    post = server.http.post
    server.error(post("/v1/sessions", json={"documents": "doc_x"}), 422, "invalid_value", "documents")
    server.error(post("/v1/sessions", json={"documents": [1]}), 422, "invalid_value", "documents.0")
    server.error(post("/v1/sessions", json={"documents": [], "model": "gpt-5"}), 404, "model_not_found", "model")
    error = server.error(
        post("/v1/sessions", json={"documents": ["doc_" + "0" * 32] * 65}), 422, "invalid_value", "documents"
    )
    assert "64" in error["message"]


def test_bodies_that_are_too_large(server: Server, session: str) -> None:
    big = json.dumps({"content": "x" * (1 << 20)}).encode()
    for content in (big, iter([big[: 1 << 19], big[1 << 19 :]])):
        answer = server.http.post(
            f"/v1/sessions/{session}/messages", content=content, headers={"content-type": "application/json"}
        )
        error = server.error(answer, 413, "too_large")
        assert str(1 << 20) in error["message"]
    answer = server.http.post(f"/v1/sessions/{session}/messages", json={"content": "x" * 200_001})
    error = server.error(answer, 413, "too_large", "content")
    assert "200000" in error["message"]


def test_unknown_paths_and_methods(server: Server) -> None:
    server.error(server.http.get("/v2/nothing"), 404, "path_not_found")
    answer = server.http.put("/v1/documents", content=b"x")
    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.headers["allow"] == "GET, POST"
    assert answer.json()["error"]["message"] == "this path allows only GET, POST"
    assert server.http.put("/assets/page.js").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/documents HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_invalid_http(server: Server, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
        peer.sendall(raw)
        assert b" 400 " in peer.recv(4096).split(b"\r\n")[0]
    assert server.http.get("/livez").status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"origin": "https://evil.example"}, "origin_not_allowed"),
        ({"origin": "http://127.0.0.1:1"}, "origin_not_allowed"),
        ({"origin": "null"}, "origin_not_allowed"),
        ({"origin": "http://["}, "origin_not_allowed"),
        ({"host": "["}, "host_not_allowed"),
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"host": "evil.example", "origin": "http://evil.example"}, "host_not_allowed"),
    ],
)
def test_another_sites_page_may_not_use_a_server_without_keys(server: Server, headers: dict, code: str) -> None:
    before = server.http.get("/v1/documents").json()
    server.error(server.http.post("/v1/documents", content=b"planted", headers=headers), 403, code)
    server.error(server.http.get("/v1/documents", headers=headers), 403, code)
    assert server.http.get("/livez", headers=headers).status_code == 200
    if "host" not in headers:  # of which this client sends its own, too
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{server.port}/v1/responses", additional_headers=headers)
        assert refused.value.response.status_code == 403
    assert server.http.get("/v1/documents").json() == before


def test_its_own_page_may(server: Server) -> None:
    own = {"origin": f"http://127.0.0.1:{server.port}"}
    assert server.http.get("/v1/documents", headers=own).status_code == 200
    for host in (f"localhost:{server.port}", "[::1]:80", "127.0.0.2"):
        assert server.http.get("/v1/documents", headers={"host": host}).status_code == 200
