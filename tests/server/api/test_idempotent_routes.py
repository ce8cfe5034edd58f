"""Every POST that makes something takes an `Idempotency-Key`: a retry makes nothing again, also after kill -9.

The routes come from the app: a new POST fails here until it has a request to try, or a reason why it needs none.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from everlong_server.openapi import openapi
from everlong_server.store.redis import keys
from tests.files import zipped
from tests.process import Server, wait_for
from tests.server.api.native.test_fetch import web
from tests.server.api.test_idempotency import orphan
from tests.server.tenants import MODEL

__all__ = ["web"]

POSTS = {path: methods["post"] for path, methods in openapi()["paths"].items() if "post" in methods}

WITHOUT = {
    "/v1/uploads/{upload_id}/cancel": "cancels: a second time changes nothing",
    "/v1/responses/{response_id}/cancel": "cancels: a second time changes nothing",
    "/v1/batches/{batch_id}/cancel": "cancels: a second time changes nothing",
    "/v1/messages/count_tokens": "counts: a second time changes nothing",
    "/v1/responses/input_tokens": "counts: a second time changes nothing",
    "/v1/search": "makes nothing",
    "/api/show": "makes nothing",
    "/api/embed": "makes nothing",
    "/api/embeddings": "makes nothing",
    "/v1/vector_stores/{vector_store_id}": "sets fields: a second time changes nothing",
    "/v1/vector_stores/{vector_store_id}/search": "makes nothing",
    "/v1/vector_stores/{vector_store_id}/files/{file_id}": "sets fields: a second time changes nothing",
    "/v1/embeddings": "makes nothing",
    "/v1/rerank": "makes nothing",
    "/v2/rerank": "makes nothing",
    "/v1/sessions/{session_id}/cancel": "cancels: a second time changes nothing",
    "/v1/keys": "the response holds a secret, which is stored nowhere",
    "/v1/tickets": "the response holds a secret, which is stored nowhere; a ticket ends after 30 seconds",
}
"""The routes without an `Idempotency-Key`, and why."""

CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 4,
    "logprobs": True,
    "n": 2,
    "seed": 1,
}
COMPLETION = {"model": MODEL, "prompt": ["Hello", "Hi"], "max_tokens": 4, "logprobs": 1, "echo": True}
ANTHROPIC = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 1}
OLLAMA = {"model": MODEL, "prompt": "Hello", "stream": False, "options": {"num_predict": 4, "seed": 1}}
OLLAMA_CHAT = {"messages": ANTHROPIC["messages"], **{name: OLLAMA[name] for name in ("model", "stream", "options")}}
RESPONSE = {"input": "Hello", "max_output_tokens": 16, "ignore_eos": True, "temperature": 0}
BATCH = {"input_file_id": "REQUESTS", "endpoint": "/v1/completions", "completion_window": "24h"}
UPLOAD = {"bytes": 5, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}


class Case(NamedTuple):
    """A request. `other`: one with other content, to the same path."""

    path: str
    request: dict[str, Any]
    other: dict[str, Any]
    makes: tuple[str, ...] = ()
    """The kinds of keys of which the request makes one each."""


CASES = {
    "document": Case(
        "/v1/documents", {"content": b"words", "headers": {"content-type": "text/plain"}},
        {"content": b"others", "headers": {"content-type": "text/plain"}}, ("document",),
    ),
    "archive": Case(
        "/v1/documents/archive", {"content": zipped({"a.txt": "words"})}, {"content": zipped({"a.txt": "others"})}, ("document",)
    ),
    "fetched": Case(
        "/v1/documents/fetch", {"json": {"url": "WEB/story.txt"}}, {"json": {"url": "WEB/page"}}, ("document",)
    ),
    "file": Case(
        "/v1/files", {"files": {"file": b"words"}, "data": {"purpose": "user_data"}},
        {"files": {"file": b"others"}, "data": {"purpose": "user_data"}}, ("document",),
    ),
    "batch file": Case(
        "/v1/files", {"files": {"file": b"words"}, "data": {"purpose": "batch"}},
        {"files": {"file": b"others"}, "data": {"purpose": "batch"}}, ("batch_file",),
    ),
    "batch": Case("/v1/batches", {"json": BATCH}, {"json": BATCH | {"endpoint": "/v1/responses"}}, ("batch",)),
    "session": Case("/v1/sessions", {"json": {}}, {"json": {"recall": {"passages": 0}}}, ("session",)),
    "fork": Case("/v1/sessions/{session_id}/fork", {}, {}, ("session",)),
    "message": Case(
        "/v1/sessions/{session_id}/messages", {"json": {"content": "Hi", "max_tokens": 2}},
        {"json": {"content": "Bye", "max_tokens": 2}},
    ),
    "chat": Case("/v1/chat/completions", {"json": CHAT}, {"json": CHAT | {"seed": 2}}),
    "completion": Case(
        "/v1/completions", {"json": COMPLETION}, {"json": COMPLETION | {"prompt": "Bye"}}
    ),
    "anthropic": Case("/v1/messages", {"json": ANTHROPIC}, {"json": ANTHROPIC | {"seed": 2}}),
    "ollama chat": Case("/api/chat", {"json": OLLAMA_CHAT}, {"json": OLLAMA_CHAT | {"options": {"seed": 2}}}),
    "ollama": Case("/api/generate", {"json": OLLAMA}, {"json": OLLAMA | {"options": {"seed": 2}}}),
    "response": Case("/v1/responses", {"json": RESPONSE}, {"json": RESPONSE | {"input": "Bye"}}, ("response",)),
    "background": Case(
        "/v1/responses", {"json": RESPONSE | {"background": True}}, {"json": RESPONSE | {"stream": True}}, ("response",)
    ),
    "vector store": Case(
        "/v1/vector_stores", {"json": {"file_ids": ["FILE"]}}, {"json": {"name": "b"}}, ("vector_store", "vector_store_file"),
    ),
    "file of a store": Case(
        "/v1/vector_stores/{vector_store_id}/files", {"json": {"file_id": "FILE"}},
        {"json": {"file_id": "FILE", "attributes": {"a": "b"}}},
    ),
    "file batch": Case(
        "/v1/vector_stores/{vector_store_id}/file_batches", {"json": {"file_ids": ["FILE"]}},
        {"json": {"files": [{"file_id": "FILE"}]}}, ("vector_store_batch",),
    ),
    "upload": Case("/v1/uploads", {"json": UPLOAD}, {"json": UPLOAD | {"bytes": 6}}, ("upload",)),
    "part": Case("/v1/uploads/{upload_id}/parts", {"files": {"data": b"words"}}, {"files": {"data": b"other"}}),
    "complete": Case("/v1/uploads/{whole_upload}/complete", {"json": {"part_ids": ["PART"]}},
                     {"json": {"part_ids": ["PART"], "md5": "0" * 32}}, ("document",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, web: str) -> Iterator[Server]:
    with Server(tiny_model, tmp_path_factory.mktemp("data"), recall_passages=0, fetch_hosts=[web]) as server:
        server.start()
        yield server
        server.check_keys()


class Requests:
    """Sends cases to a server, with ids that it made for them."""

    def __init__(self, server: Server, web: str) -> None:
        self.server, self.web = server, web
        post = server.http.post
        self.ids = {"session_id": server.session()["id"]} | {
            name: post("/v1/uploads", json=UPLOAD).json()["id"] for name in ("upload_id", "whole_upload")
        }
        self.file = server.upload("words")["id"]
        self.requests = post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"}).json()["id"]
        self.ids["vector_store_id"] = post("/v1/vector_stores", json={}).json()["id"]
        part = post(f"/v1/uploads/{self.ids['whole_upload']}/parts", files={"data": b"words"})
        self.part = part.json()["id"]

    def send(self, case: Case, request: dict[str, Any], key: str) -> httpx.Response:
        sent = dict(request)
        if "json" in sent:
            text = json.dumps(sent["json"]).replace("WEB", f"http://{self.web}")
            sent["json"] = json.loads(
                text.replace("PART", self.part).replace("FILE", self.file).replace("REQUESTS", self.requests)
            )
        sent["headers"] = sent.get("headers", {}) | {"Idempotency-Key": key}
        return self.server.http.post(case.path.format(**self.ids), **sent)

    def count(self, kind: str) -> int:
        """Return how many objects of a kind the server has."""
        matches = getattr(keys, kind).matches
        return sum(matches(name.decode()) for name in self.server.redis.scan_iter("*"))


@pytest.fixture
def requests(shared: Server, web: str) -> Requests:
    return Requests(shared, web)


def test_every_post_is_tried_or_has_a_reason() -> None:
    taking = {
        path for path, operation in POSTS.items()
        if any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
    }  # fmt: skip
    assert POSTS.keys() - WITHOUT.keys() == taking, "a POST takes no Idempotency-Key, and no reason is given"
    assert POSTS.keys() >= WITHOUT.keys()
    tried = {case.path.replace("{whole_upload}", "{upload_id}") for case in CASES.values()}
    assert tried == taking


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_retry_makes_nothing_again(requests: Requests, case: Case) -> None:
    key = uuid.uuid4().hex
    before = {kind: requests.count(kind) for kind in case.makes}
    one, two = (requests.send(case, case.request, key) for _ in range(2))
    assert one.is_success, one.text
    assert (two.status_code, two.json()) == (one.status_code, one.json())
    assert {kind: requests.count(kind) for kind in case.makes} == {kind: count + 1 for kind, count in before.items()}
    if case.other != case.request:
        refused = requests.send(case, case.other, key)
        assert refused.status_code == (400 if case.path == "/v1/messages" else 422)
        if not case.path.startswith("/api/"):  # Ollama's errors are texts
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_killed_between_the_effect_and_the_answer(requests: Requests, case: Case) -> None:
    key = uuid.uuid4().hex
    one = requests.send(case, case.request, key).json()
    has_id = "id" in one  # lists and Ollama's answers have none
    orphan(requests.server, one["id"] if has_id else one["data"][0]["id"] if "data" in one else one["created_at"])
    made = {kind: requests.count(kind) for kind in case.makes}
    two = requests.send(case, case.request, key)
    assert two.is_success, two.text
    same = ("id",) if has_id else ("message", "response", "eval_count")
    assert [two.json().get(name) for name in same] == [one.get(name) for name in same]
    assert [each["id"] for each in two.json().get("data", [])] == [each["id"] for each in one.get("data", [])]
    assert {kind: requests.count(kind) for kind in case.makes} == made


def test_a_retry_after_kill_9_returns_the_first_result(new_server: Callable[..., Server], web: str) -> None:
    server = new_server(recall_passages=0, fetch_hosts=[web], lease_seconds=2).start()
    requests = Requests(server, web)
    named = {name: uuid.uuid4().hex for name in CASES}
    first = {name: requests.send(case, case.request, named[name]).json() for name, case in CASES.items()}
    server.kill9()
    server.http.close()
    server.http = httpx.Client(base_url=server.url, timeout=60)
    server.start()
    made = {kind: requests.count(kind) for case in CASES.values() for kind in case.makes}
    for name, case in CASES.items():
        assert requests.send(case, case.request, named[name]).json() == first[name], name
    assert {kind: requests.count(kind) for kind in made} == made
    wait_for(lambda: server.http.get("/v1/documents").json()["data"][0]["status"] == "ready")


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_chat_is_replayed(shared: Server, usage: bool) -> None:
    asked = CHAT | {"stream": True, "stream_options": {"include_usage": usage}}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    one, two = (shared.http.post("/v1/chat/completions", json=asked, headers=headers) for _ in range(2))
    assert one.status_code == two.status_code == 200
    first, second = (_joined(answer.text) for answer in (one, two))
    assert first == second
    assert first["ended"] == {0: "length", 1: "length"}
    assert ("usage" in first) == usage


def _joined(stream: str) -> dict[str, Any]:
    """Return what the chunks of a stream say together."""
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    said: dict[str, Any] = {"ended": {}}
    for line in lines[:-1]:
        chunk = httpx.Response(200, content=line).json()
        said |= {name: chunk[name] for name in ("id", "created", "object", "model", "system_fingerprint")}
        if chunk.get("usage"):
            said["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                at = (choice["index"], name)
                said[at] = said[at] + value if name == "content" and at in said else value
            if choice["logprobs"]:
                said.setdefault((choice["index"], "logprobs"), []).extend(choice["logprobs"]["content"])
            if choice["finish_reason"]:
                said["ended"][choice["index"]] = choice["finish_reason"]
    return said


def test_a_part_with_other_content_is_refused_after_the_upload_has_ended(requests: Requests) -> None:
    key, case = uuid.uuid4().hex, CASES["part"]
    part = requests.send(case, case.request, key).json()
    done = requests.server.http.post(
        f"/v1/uploads/{requests.ids['upload_id']}/complete", json={"part_ids": [part["id"]]}
    )
    assert done.status_code == 200, done.text
    assert requests.send(case, case.request, key).json() == part
    requests.server.error(requests.send(case, case.other, key), 422, "idempotency_key_reused")
