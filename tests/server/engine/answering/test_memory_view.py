"""`GET /v1/sessions/{id}/memory`: numbers of the memory, words of the documents."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from everlong_models.backbone.loading import load_tokenizer
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.engine.answering.memory_view import MemoryViews
from everlong_server.store.records import Cursor, Document, reading_id
from everlong_server.store.snapshot import Snapshot
from tests.process import Server, wait_for
from tests.server.engine.answering.test_every_memory import folder_of
from tests.tinymodel import STORY, make_tokenizer

TEXT = STORY.read_text()[:8_000]
GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(folder)
    return load_tokenizer(folder)


def memory(server: Server, session: str) -> dict:
    answer = server.http.get(f"/v1/sessions/{session}/memory")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def sticky(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = folder_of("infinite_sticky", tiny_model, tmp_path_factory.mktemp("models") / "sticky")
    with Server(folder, tmp_path_factory.mktemp("data"), recall_passages=0) as server:
        yield server.start()
        server.check_keys()


@pytest.mark.long
def test_a_memory_shows_what_it_attends_to_and_gives_space_to(sticky: Server, tokenizer: Tokenizer) -> None:
    a, b = STORY.read_text()[:5_000], "«" + STORY.read_text()[5_000:12_000]
    first, second = sticky.read(a)["id"], sticky.read(b)["id"]
    session = sticky.session(first, second)
    session = wait_for(lambda: (s := sticky.get_session(session["id"]))["status"] == "ready" and s)
    seen = memory(sticky, session["id"])
    assert len(json.dumps(seen)) < 20_000
    assert (seen["session"], seen["object"], seen["memory"]) == (session["id"], "session.memory", "infinite")
    assert (seen["tokens"] + seen["open"], seen["segment_length"]) == (session["position"], 32)
    assert seen["tokens"] == 32 * seen["segments"]
    assert seen["bytes"] == session["state_bytes"]
    (x, y) = seen["documents"]
    assert (x["document"], y["document"]) == (first, second)
    assert 0 < x["start"] < x["end"] < y["start"] < y["end"] == session["position"]
    assert x["end"] - x["start"] == sticky.document(first)["tokens"]
    assert [part["name"] for part in seen["parts"]] == ["signal"]
    texts, spans = {first: a, second: b}, {first: tokenizer.spans(a), second: tokenizer.spans(b)}
    assert len(seen["layers"]) == 2
    quotes = 0
    for layer in seen["layers"]:
        assert (layer["edges"][0], layer["edges"][-1], len(layer["edges"])) == (0, seen["tokens"], 129)
        assert all(p <= q for p, q in itertools.pairwise(layer["edges"]))
        assert abs(sum(layer["attention"]) - 1) < 1e-3
        assert layer["phrases"]
        assert [p["space"] for p in layer["phrases"]] == sorted((p["space"] for p in layer["phrases"]), reverse=True)
        for phrase in layer["phrases"]:
            assert 0 <= phrase["start"] < phrase["end"] <= seen["tokens"]
            if (quote := phrase["quote"]) is not None:
                quotes += 1
                text = texts[quote["document"]]
                assert text[quote["start"] : quote["end"]] == quote["text"]
                assert text.encode()[quote["start_byte"] : quote["end_byte"]].decode() == quote["text"]
                own = spans[quote["document"]][quote["start_token"] : quote["end_token"]]
                assert own[0][0] <= quote["start"] < own[0][1]
                assert own[-1][0] < quote["end"] <= own[-1][1]
    assert quotes
    assert seen["layers"][0]["edges"] != seen["layers"][1]["edges"], "each layer draws for itself"
    assert sticky.get_session(session["id"]) == session, "looking changed the session"
    sticky.say(session["id"], "Who is Alice?", **GREEDY)
    after = memory(sticky, session["id"])
    assert after["tokens"] + after["open"] == sticky.get_session(session["id"])["position"] > session["position"]
    assert after["layers"][0]["attention"] != seen["layers"][0]["attention"]
    sticky.http.delete(f"/v1/documents/{first}")
    gone = memory(sticky, session["id"])
    assert gone["documents"] == [], "with it went all that is known of where the documents after it began"
    assert {phrase["quote"] for layer in gone["layers"] for phrase in layer["phrases"]} == {None}
    assert gone["layers"][0]["edges"] == after["layers"][0]["edges"]


def test_text_is_looked_up_while_the_view_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = ("doc_a", "doc_b", "doc_c")
    admitted, looked = [False], []

    @contextlib.contextmanager
    def admit() -> Iterator[None]:
        admitted[0] = True
        yield
        admitted[0] = False

    async def reading(id: str) -> Any:
        assert admitted[0]
        (n,) = (n for n in range(1, 4) if id == reading_id("m", documents[:n]))
        return SimpleNamespace(status="ready", cursor=Cursor(tokens=10), snapshot=Snapshot(position=10 * n))

    async def document(id: str) -> Document:
        return Document(id, None, 60, 0, 0.0)

    async def passages(document: Document, spans: object) -> dict[Any, Any]:
        assert admitted[0]
        looked.append((document.id, spans))
        return {}

    session = SimpleNamespace(model="m", documents=documents, snapshot=Snapshot(position=30))
    phrases = [SimpleNamespace(start=n, end=n + 2) for n in (1, 21)]
    view = SimpleNamespace(layers=[SimpleNamespace(phrases=phrases)])
    memories: Any = MemoryViews(
        SimpleNamespace(admit=admit, model=None, typical_seconds=1.0, memory_view=AsyncMock(return_value=view)),  # type: ignore[arg-type]
        AsyncMock(),
        AsyncMock(get=AsyncMock(return_value=session)),
        SimpleNamespace(readings=SimpleNamespace(get=reading), get=document),  # type: ignore[arg-type]
        SimpleNamespace(passages=passages),  # type: ignore[arg-type]
        SimpleNamespace(stream=lambda usual: contextlib.nullcontext(), tenant="ann"),  # type: ignore[arg-type]
    )
    monkeypatch.setattr("everlong_server.engine.answering.memory_view.load_state", lambda *_: None)
    asyncio.run(memories.view("ses_1"))
    assert looked == [("doc_a", [(1, 3)]), ("doc_c", [(1, 3)])]


@pytest.mark.long
def test_rmt_shows_its_age_and_how_full_it_is(server: Server) -> None:
    session = server.session(server.read(TEXT)["id"])
    seen = memory(server, session["id"])
    (part,) = seen["parts"]
    assert (part["name"], part["start"], part["end"], part["slots"]) == ("memory", 0, seen["tokens"], 4)
    assert part["age"] == seen["open"] == session["position"] % 64 > 0
    assert 1 <= part["used"] <= 4
    assert part["change"] > 0
    assert seen["layers"] == []
    empty = memory(server, server.session()["id"])
    assert (empty["tokens"], empty["documents"], empty["parts"][0]["used"]) == (0, [], 0)
    assert empty["parts"][0]["change"] is None


def test_a_view_is_refused_like_a_message(server: Server) -> None:
    server.error(server.http.get("/v1/sessions/ses_0/memory"), 404, "session_not_found", "session_id")
    document = server.upload(STORY.read_text() * 10)["id"]
    session = server.session(document)["id"]
    server.error(server.http.get(f"/v1/sessions/{session}/memory"), 409, "document_not_ready")
    server.http.delete(f"/v1/documents/{document}")
    server.error(server.http.get(f"/v1/sessions/{session}/memory"), 409, "document_failed")
    ready = server.session()["id"]
    server.redis.hset(f"{{everlong}}:session:{ready}", mapping={"state": b"EVLSTATE", "state_bytes": 8})
    server.error(server.http.get(f"/v1/sessions/{ready}/memory"), 409, "state_unusable")
    server.redis.hset(f"{{everlong}}:session:{ready}", "model", "another")
    server.error(server.http.get(f"/v1/sessions/{ready}/memory"), 409, "state_unusable")
    server.http.delete(f"/v1/sessions/{ready}")


def test_a_view_does_not_wait_for_a_running_answer(server: Server) -> None:
    session = server.session()["id"]
    body = {"content": "Talk.", "stream": True, "max_tokens": 1_000_000, "ignore_eos": True}
    with server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        lines = response.iter_lines()
        next(line for line in lines if "delta" in line)
        with httpx.Client(base_url=server.url, timeout=60) as other:
            assert other.get(f"/v1/sessions/{session}/memory").json()["tokens"] == 0
