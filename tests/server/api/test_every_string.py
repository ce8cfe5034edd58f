"""Hostile strings in every field of every endpoint and WebSocket, found by walking the OpenAPI document: never a 5xx."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from everlong_server.api.bodies.json_body import JsonRoute, parse_json
from everlong_server.app import create_app
from everlong_server.openapi import openapi
from everlong_server.settings import Settings
from tests.process import Server
from tests.server.tenants import MODEL, Tenant, tenant

pytestmark = pytest.mark.long

DOCUMENT = openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
SOCKETS = {"/v1/sessions/{session_id}/stream": ("message.create", "CreateMessage"),
           "/v1/responses": ("response.create", "CreateResponse")}  # fmt: skip

NESTED = "@nested@"
"""Replaced by nested lists: `json.dumps` cannot encode them."""
LONE = "a\ud800"
STRINGS = {"lone surrogate": LONE, "nul": "a\0b", "noncharacter": "\ufffe", "long": "x" * 900_000, "nested": NESTED}


def encoded(value: Any, depth: int = 150) -> str:
    return json.dumps(value).replace(f'"{NESTED}"', "[" * depth + "]" * depth)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def sample(schema: dict[str, Any], known: dict[str, Any]) -> Any:
    """Return a small value of the schema. `known`: the values of fields by their name."""
    schema = resolved(schema)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return sample(schema[union][0], known)
    match schema.get("type"):
        case "object":
            return {name: known[name] if name in known else sample(part, known)
                    for name, part in schema.get("properties", {}).items()
                    if name in known or name in schema.get("required", ())}  # fmt: skip
        case "array":
            return [sample(schema["items"], known)] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "null":
            return None
    return "x" * max(1, schema.get("minLength", 1))


def variants(schema: dict[str, Any], known: dict[str, Any], value: str, above: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield samples of the schema with `value` in place of one value, or as an additional key of one object.

    `above`: the schemas that it is part of, each of which is entered once.
    """
    if (name := schema.get("$ref", "")) in above:
        return
    above, schema = (*above, name) if name else above, resolved(schema)
    for union in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(union, ()):
            yield from variants(part, known, value, above)
    if schema.get("type") == "array":
        for item in variants(schema["items"], known, value, above):
            yield [item]
    if schema.get("type") == "object":
        whole = sample(schema, known)
        yield whole | {value: 1}
        yield whole | {value: {value: value}}
        for name, part in schema.get("properties", {}).items():
            for inner in variants(part, known, value, above):
                yield whole | {name: inner}
        if isinstance(rest := schema.get("additionalProperties"), dict):
            for inner in variants(rest, known, value, above):
                yield whole | {"key": inner}
                yield whole | {value: inner}
        elif rest is True:
            yield whole | {"key": [{value: value}]}
    yield value


@pytest.fixture(scope="module")
def locked(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that requires keys."""
    with Server(tiny_model, tmp_path_factory.mktemp("data"), auth="keys") as server:
        server.start()
        yield server
        log = server.log.read_text()
        assert "Traceback" not in log, log[-3000:]
        server.check_keys()


@pytest.fixture(scope="module")
def alice(locked: Server) -> Tenant:
    return tenant(locked, "alice")


@pytest.fixture
def known(alice: Tenant) -> dict[str, Any]:
    """Values that make a request valid apart from its hostile string, and its answer short."""
    return {"model": MODEL, "file_id": alice.ids["file_id"], "role": "user", "max_tokens": 1, "max_output_tokens": 16,
            "documents": [], "part_ids": [alice.ids["part_id"]]}  # fmt: skip


def check(answer: httpx.Response, value: str, sent: str) -> None:
    assert answer.status_code < 500, (answer.status_code, answer.text[:500], sent[:500])
    if answer.status_code >= 400:
        error = answer.json()["error"]  # in Ollama's form it is a text
        assert error if isinstance(error, str) else error["code"], sent[:500]
        assert len(answer.content) < 5_000, "the error repeats the value"
    elif value == LONE:
        raise AssertionError(f"accepted: {sent[:500]}")
    elif answer.headers.get("content-type", "").startswith("text/event-stream"):
        assert "internal_error" not in answer.text


@pytest.mark.parametrize("value", STRINGS.values(), ids=STRINGS)
@pytest.mark.parametrize("name", [name for name, operation in OPERATIONS.items() if "requestBody" in operation])
def test_bodies(alice: Tenant, known: dict[str, Any], name: str, value: str) -> None:
    method, path = name.split()
    url = path.format(**alice.ids)
    for kind, content in OPERATIONS[name]["requestBody"]["content"].items():
        if kind == "application/json":
            schema = resolved(content["schema"])
            for number, body in enumerate(variants(schema, known, value)):
                streamed = isinstance(body, dict) and "stream" in schema["properties"] and number % 2
                sent = encoded({"stream": True} | body if streamed else body)
                check(alice.http.request(method, url, content=sent, headers={"content-type": kind}), value, sent)
        else:
            text = value.encode("utf-8", "surrogatepass")
            if "properties" not in content["schema"]:  # the file itself: a text, or an archive
                # Bytes that are not UTF-8 are decoded by another encoding, with a note.
                check(alice.http.request(method, url, content=text, headers={"content-type": kind}), "", name)
                continue
            for file, filename, other in ((text, b"a", b"b"), (b"words", text, b"b"), (b"words", b"a", text)):
                for part in content["schema"]["properties"]:
                    form = (
                        b'--XX\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n'
                        b'--XX\r\nContent-Disposition: form-data; name="%s"\r\n\r\nuser_data\r\n--XX--\r\n'
                    ) % (part.encode(), filename, file, other)
                    headers = {"content-type": "multipart/form-data; boundary=XX"}
                    check(alice.http.request(method, url, content=form, headers=headers), "", name)


@pytest.mark.parametrize("value", STRINGS.values(), ids=STRINGS)
def test_parameters(alice: Tenant, value: str) -> None:
    given = quote(value.encode("utf-8", "surrogatepass")[:20_000])
    parameters = [(name, each) for name in OPERATIONS for each in OPERATIONS[name].get("parameters", [])]
    for name, parameter in parameters:
        method, path = name.split()
        place, url, headers = parameter["in"], path, {}
        if place == "path":
            url = url.replace(f"{{{parameter['name']}}}", given)
        elif method == "DELETE":  # deletes nothing that other tests need
            continue
        elif place == "query":
            url += f"?{quote(parameter['name'])}={given}&{given}"
        else:
            headers = {parameter["name"]: value.encode("utf-8", "surrogatepass")[:60_000].replace(b"\0", b"")}
        url = url.format(**{"page": 1} | alice.ids)
        with alice.http.stream(method, url, headers=headers) as answer:
            assert answer.status_code < 500, (url[:200], answer.read()[:500])


@pytest.mark.parametrize("value", STRINGS.values(), ids=STRINGS)
@pytest.mark.parametrize("path", SOCKETS)
def test_frames(locked: Server, alice: Tenant, known: dict[str, Any], path: str, value: str) -> None:
    kind, schema = SOCKETS[path]
    frames = [encoded({"type": kind} | body)
              for body in variants({"$ref": schema}, known, value) if isinstance(body, dict)]  # fmt: skip
    frames += [encoded({"type": value}), encoded(value), encoded({"type": "response.cancel", "response_id": value})]
    headers = {"Authorization": f"Bearer {alice.key}"}
    waiting = frames[::-1]
    while waiting:
        with connect(
            f"ws://127.0.0.1:{locked.port}{path.format(**alice.ids)}", additional_headers=headers, max_size=None
        ) as peer:
            try:
                while waiting:
                    sent = waiting.pop()
                    peer.send(sent)
                    if "response.cancel" in sent and "message.create" not in sent:
                        peer.send("{}")  # a cancellation may have no answer, but this is an error
                    check_events(peer, sent, value)
            except ConnectionClosed:
                pass
            else:
                return
        assert len(sent) > 1 << 20, (peer.close_code, sent[:500])  # the frame was too long


def check_events(peer: Any, sent: str, value: str) -> None:
    """Receive the events up to the end of an answer or an error."""
    while True:
        event = json.loads(peer.recv(timeout=60))
        if event["type"] == "error":
            assert event["error"]["code"] != "internal_error", (event, sent[:500])
            assert event.get("status", 400) < 500, (event, sent[:500])
            return
        if event["type"] == "response.completed" or event["type"] == "response.incomplete":
            assert value != LONE, f"accepted: {sent[:500]}"
            return


@pytest.mark.parametrize("query", ["ticket=%ED%A0%80", "ticket=%00", "ticket=" + "x" * 50_000, "%ED%A0%80=1"])
@pytest.mark.parametrize("session", ["ses_%ED%A0%80", "ses_%00", "ses_%EF%BF%BE", "x" * 50_000])
def test_addresses_of_sockets(locked: Server, session: str, query: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{locked.port}/v1/sessions/{session}/stream?{query}")
    assert refused.value.response.status_code < 500


@pytest.mark.parametrize(
    "text", [r'"\ud800"', r'{"\udc00": 1}', "NaN", "[-Infinity]", "[" * 100_000, '{"a":', "", '"\0"']
)
def test_json_that_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)


def test_json_that_is_read() -> None:
    text = r'{"😀": ["\ud83d\ude00", "\u0000", "\ufffe", 1e3, null, 123456789012345678901]}'
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)
    assert parse_json("[" * 190 + "]" * 190)


def test_every_body_is_parsed_strictly() -> None:
    app = create_app(Settings(), "unix:///dev/null", lambda: None)
    for route in (context.original_route for context in iter_route_contexts(app.routes)):
        if getattr(route, "body_field", None) is not None:
            assert isinstance(route, JsonRoute), f"{route.path} needs a router with route_class=JsonRoute"
