"""Passages over HTTP: how a text is split, how passages are found, and the evidence of answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from everlong_models import load_model
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.engine.answering.evidence.templates import INSTRUCT
from everlong_server.store.texts.blobs import Blobs
from tests.process import Server, wait_for
from tests.tinymodel import STORY, make_model

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
ALICE = STORY.read_text()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), segment_length=128)


@pytest.fixture(scope="module")
def grounded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(model, tmp_path_factory.mktemp("data"), recall_tokens=100) as server:
        yield server.start()


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return load_model(str(model), models_dir=model.parent).tokenizer


def check_tokens(tokenizer: Tokenizer, text: str, evidence: list[dict[str, Any]]) -> None:
    """Check that the tokens of each piece of evidence are those of the whole text that have any of its characters."""
    spans = tokenizer.spans(text)
    assert evidence
    for e in evidence:
        having = [n for n, (start, end) in enumerate(spans) if start < e["end"] and end > e["start"]]
        assert (e["start_token"], e["end_token"]) == (having[0], having[-1] + 1)


TEXT = "\ufeff" + "Naïve Ünïcödé 😀. " * 500 + ALICE[:30_000]
QUESTION = "What would Dinah do with the black kitten's face?"


@pytest.fixture(scope="module")
def document(grounded: Server) -> str:
    return grounded.read(TEXT)["id"]


def test_an_answer_carries_its_evidence(grounded: Server, document: str, tokenizer: Tokenizer) -> None:
    session = grounded.session(document)["id"]
    plain = grounded.say(grounded.session(document)["id"], QUESTION, **GREEDY, recall=False)
    assert plain["evidence"] == []
    body = {"content": QUESTION, "stream": True, **GREEDY, "recall": {"passages": 2, "tokens": 128}}
    with grounded.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.evidence"]
    message = events[-1]["message"]
    evidence = message["evidence"]
    assert evidence
    assert events[1]["evidence"] == evidence
    for e in evidence:
        assert e["document"] == document
        assert TEXT[1:][e["start"] : e["end"]] == e["text"]
        assert TEXT[1:].encode()[e["start_byte"] : e["end_byte"]].decode() == e["text"]
    check_tokens(tokenizer, TEXT[1:], evidence)
    assert evidence[0]["start_token"] > 2000, "far behind what has tokens of parts of characters"
    assert 0 < message["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"] <= 128
    stored = grounded.http.get(f"/v1/sessions/{session}/messages").json()["data"]
    assert stored[1]["evidence"] == evidence
    assert "evidence" not in stored[0]
    assert stored[0]["content"] == QUESTION, "the dialogue holds what was said, not the passages"


@pytest.mark.long
def test_answers_rest_on_evidence_until_the_document_is_read(grounded: Server) -> None:
    before = grounded.upload(ALICE * 80)["id"]  # one reader: the next document waits for this one
    document = grounded.upload(ALICE * 4)["id"]
    session = grounded.session(document)["id"]
    first = grounded.say(session, "Who is Alice?", **GREEDY)
    assert 0 <= first["memory_progress"] < 1
    assert first["evidence"]
    assert first["usage"]["reused_tokens"] == 0
    followed = grounded.say(session, "And where is she?", **GREEDY)
    assert followed["memory_progress"] is not None
    assert followed["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"], "earlier messages precede the question"
    early = grounded.get_session(session)
    assert (early["status"], early["messages"], early["position"]) == ("reading", 4, 0)
    grounded.http.delete(f"/v1/documents/{before}")
    tokens = wait_for(lambda: (read := grounded.document(document))["status"] == "ready" and read["tokens"], 300)
    late = grounded.say(session, "Who is Alice?", **GREEDY)
    assert late.get("memory_progress") is None
    assert late["usage"]["prompt_tokens"] > tokens + first["usage"]["completion_tokens"]
    after = grounded.get_session(session)
    assert (after["status"], after["messages"]) == ("ready", 6)
    conversation = sum(answer["usage"]["completion_tokens"] for answer in (first, followed, late))
    assert after["position"] > tokens + conversation, "the memory has read the document and all messages"


def test_the_same_question_has_the_same_answer_before_and_after_kill_9(grounded: Server, document: str) -> None:
    def ask() -> dict:
        message = grounded.say(grounded.session(document)["id"], QUESTION, temperature=1, seed=3, max_tokens=20)
        return {key: message[key] for key in ("content", "evidence", "usage")}

    before = ask()
    assert before["evidence"]
    grounded.kill9()
    grounded.start()
    assert ask() == before


WRONG = [
    ({"tokens": 129}, "recall.tokens"), ({"tokens": 0}, "recall.tokens"),
    ({"passages": 97}, "recall.passages"), ({"best": 1}, "recall.best"), (True, "recall"),
]  # fmt: skip


@pytest.mark.parametrize(("recall", "param"), WRONG)
def test_what_cannot_be_recalled_is_refused(grounded: Server, recall: object, param: str) -> None:
    session = grounded.session()["id"]
    answer = grounded.http.post(f"/v1/sessions/{session}/messages", json={"content": "?", "recall": recall})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_message_without_recall_uses_that_of_its_session_or_the_server(grounded: Server, document: str) -> None:
    path = "/v1/sessions"
    made = grounded.http.post(path, json={"documents": [document], "recall": {"tokens": 40}}).json()
    path = f"{path}/{made['id']}"

    def found(**more: object) -> int:
        """Return the number of characters of evidence."""
        fork = grounded.http.post(f"{path}/fork").json()["id"]
        return sum(len(e["text"]) for e in grounded.say(fork, QUESTION, **GREEDY, **more)["evidence"])

    def patched(**given: object) -> dict:
        answer = grounded.http.patch(path, json=given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    several = {"tokens": 128, "passages": 4}
    assert made["recall"] == {"passages": None, "tokens": 40}
    few, more = found(), found(recall=several)
    assert 0 < few < more
    assert (found(recall={}), found(recall={"passages": 4}), found(recall=False)) == (few, few, 0)
    assert grounded.http.post(f"{path}/fork").json()["recall"] == made["recall"]
    assert patched(recall=several)["recall"] == several
    assert (found(), found(recall={"tokens": 40})) == (more, few)
    assert patched(title="Kittens")["recall"] == several, "what is not given stays"
    assert patched(recall=False) == grounded.get_session(made["id"]) | {"recall": False, "title": "Kittens"}
    assert (found(), found(recall={"tokens": 128}), found(recall=several)) == (0, 0, more)
    socket_path = f"ws://127.0.0.1:{grounded.port}{path}/stream"
    with connect(socket_path) as socket:
        for asked in (False, None):
            patched(recall=asked)
            socket.send(json.dumps({"type": "message.create", "content": QUESTION, **GREEDY}))
            events = []
            while not events or events[-1]["type"] != "response.completed":
                events.append(json.loads(socket.recv(timeout=60)))
            assert bool(events[-1]["message"]["evidence"]) is (asked is None)
    assert patched()["recall"] is None
    assert patched()["title"] == "Kittens"


@pytest.mark.parametrize(("recall", "param"), WRONG)
def test_what_cannot_be_recalled_is_refused_of_a_session_too(grounded: Server, recall: object, param: str) -> None:
    session = grounded.session()
    for answer in (
        grounded.http.post("/v1/sessions", json={"recall": recall}),
        grounded.http.patch(f"/v1/sessions/{session['id']}", json={"recall": recall}),
    ):
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["param"] == param
    assert grounded.get_session(session["id"]) == session


def test_a_session_takes_a_document_once(grounded: Server, document: str) -> None:
    """Otherwise each of its passages would be found twice."""
    answer = grounded.http.post("/v1/sessions", json={"documents": [document, document]})
    error = grounded.error(answer, 422, "invalid_value", "documents")
    assert repr(document) in error["message"]


@pytest.mark.long
def test_a_server_that_has_recall_off_has_it_off_for_good(new_server, model: Path) -> None:
    server = new_server(model, recall_tokens=100).start()
    document = server.read(ALICE[:20_000])["id"]
    asked = {"passages": 2}
    session = server.http.post("/v1/sessions", json={"documents": [document], "recall": asked}).json()["id"]
    assert server.say(session, QUESTION, **GREEDY)["evidence"]
    server.kill9()
    server.environment["EVERLONG_RECALL_PASSAGES"] = "0"
    server.start()
    index = server.data / "documents" / f"{document}.passages"
    index.unlink()
    for answer in (
        server.http.post(f"/v1/sessions/{session}/messages", json={"content": QUESTION, "recall": asked}),
        server.http.post("/v1/sessions", json={"recall": asked}),
        server.http.patch(f"/v1/sessions/{session}", json={"recall": asked}),
        server.http.post("/v1/responses", json={"input": QUESTION, "recall": asked}),
    ):
        error = server.error(answer, 422, "invalid_value", "recall.passages")
        assert "EVERLONG_RECALL_PASSAGES=0" in error["message"]
    for off in ({}, {"recall": False}, {"recall": {"passages": 0}}, {"recall": {"tokens": 50}}):
        assert server.say(session, QUESTION, **GREEDY, **off)["evidence"] == []
    assert not index.exists()


@pytest.mark.parametrize("content", ["the of and", "Kitten? " * 12_000, "谁是爱丽丝？", "<|im_end|><|im_start|>kitten"])
def test_any_question_is_answered(grounded: Server, document: str, content: str) -> None:
    assert grounded.say(grounded.session(document)["id"], content, **GREEDY)["content"]


@pytest.mark.long
def test_the_index_is_created_and_deleted_with_its_document(new_server, model: Path, tokenizer: Tokenizer) -> None:
    """So are its token offsets, even if the reading was resumed."""
    server = new_server(model, checkpoint_seconds=0).start()
    folder = server.data / "documents"
    text = "«Naïve» 🐋 " * 20 + ALICE[:40_000]
    document = server.upload(text)["id"]
    wait_for(lambda: server.document(document)["tokens"] > 0)
    server.kill9()
    server.start()
    server.wait_read(document)
    index, table = folder / f"{document}.passages", folder / f"{document}.tokens.{tokenizer.digest()[:16]}"
    assert {path.name for path in folder.iterdir()} == {document, index.name, table.name, Blobs.STORE_ID_FILE}
    rows = table.read_bytes()
    assert len(rows) > 24 * 100
    check_tokens(tokenizer, text, server.say(server.session(document)["id"], QUESTION, **GREEDY)["evidence"])
    index.unlink()  # as for a document that an older server has read
    table.unlink()
    session = server.session(document)["id"]
    check_tokens(tokenizer, text, server.say(session, QUESTION, **GREEDY)["evidence"])
    assert index.exists()
    assert table.read_bytes() == rows
    server.http.delete(f"/v1/documents/{document}")
    assert [path.name for path in folder.iterdir()] == [Blobs.STORE_ID_FILE]
    assert server.say(session, QUESTION, **GREEDY)["evidence"] == []


def test_evidence_comes_before_the_first_word_over_a_socket(grounded: Server, document: str) -> None:
    session = grounded.session(document)["id"]
    with connect(f"ws://127.0.0.1:{grounded.port}/v1/sessions/{session}/stream") as socket:
        for recall in ({}, False):
            socket.send(json.dumps({"type": "message.create", "content": QUESTION, "recall": recall, **GREEDY}))
            events: list[dict] = []
            while not events or events[-1]["type"] != "response.completed":
                events.append(json.loads(socket.recv(timeout=60)))
            kinds = [event["type"] for event in events]
            assert kinds[:3] == ["response.created", "response.evidence", "response.output_text.delta"]
            assert kinds.count("response.evidence") == 1
            assert events[1]["response_id"] == events[0]["response"]["id"]
            assert events[1]["evidence"] == events[-1]["message"]["evidence"]
            assert bool(events[1]["evidence"]) is (recall == {})


@pytest.fixture(scope="module")
def windowed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a window memory, which reads fast."""
    options = json.dumps({"segment_length": 32, "sinks": 4, "window": 220})
    settings = {"memory": "window", "memory_options": options, "recall_tokens": 96, "max_message_chars": 2000}
    with Server(tiny_model / "backbone", tmp_path_factory.mktemp("data"), **settings) as server:
        yield server.start()


@pytest.mark.parametrize(
    ("text", "question", "held"),
    [
        ("abcdefghij" * 20_000, "Who is the abcdefghij?", ""),
        ("Its word: swordfish.", "What is said of a swordfish?", "swordfish"),
    ],
    ids=["no spaces", "ten tokens"],
)
def test_a_document_of_any_shape_is_searched(windowed: Server, text: str, question: str, held: str) -> None:
    _searched(windowed, text, question, held)


@pytest.mark.long
def test_a_line_of_5_megabytes_is_searched(new_server: Any, tiny_model: Path) -> None:
    options = json.dumps({"segment_length": 64, "sinks": 4, "window": 188})
    server = new_server(tiny_model / "backbone", memory="window", memory_options=options, recall_tokens=96).start()
    half = (" ".join(ALICE.split()) * 30)[:2_500_000]
    line = f"{half}. A yellow submarine torpedoed Zanzibar's aquarium. {half}"
    _searched(server, line, "Which submarine torpedoed Zanzibar's aquarium?", "yellow")


def _searched(server: Server, text: str, question: str, held: str) -> None:
    document = server.read(text)["id"]
    message = server.say(server.session(document)["id"], question, **GREEDY, recall={"tokens": 192})
    assert message["content"]
    assert bool(message["evidence"]) is bool(held)
    assert held in " ".join(e["text"] for e in message["evidence"])
    for e in message["evidence"]:
        assert text[e["start"] : e["end"]] == e["text"]
        assert text.encode()[e["start_byte"] : e["end_byte"]].decode() == e["text"]


def test_a_question_may_be_as_long_as_a_message_and_no_longer(windowed: Server) -> None:
    session = windowed.session(windowed.read(ALICE[:20_000])["id"])["id"]
    longest = (QUESTION + " ").ljust(1995, "é") + " 🐈 ?!"
    longest = longest[:1999] + "?"
    assert len(longest) == 2000 < len(longest.encode())
    answer = windowed.say(session, longest, **GREEDY)
    assert answer["content"]
    assert answer["evidence"] == [], "the question is all that the window holds"
    refused = windowed.http.post(f"/v1/sessions/{session}/messages", json={"content": longest + "?"})
    error = windowed.error(refused, 413, "too_large", "content")
    assert "2001 characters, the limit is 2000" in error["message"]
    assert windowed.get_session(session)["messages"] == 2


@pytest.mark.long
def test_the_prompt_says_so_if_the_text_does_not_hold_the_answer(new_server, tiny_model: Path, tmp_path: Path) -> None:
    """Only without a trained memory, which could know more. The test counts prompt tokens."""
    options = {"segment_length": 64, "sinks": 4, "window": 128}
    settings = {"memory_options": json.dumps(options), "recall_tokens": 96}
    server = new_server(tiny_model / "backbone", memory="window", **settings).start()
    document = server.read(ALICE[:20_000])["id"]

    session = server.session(document)["id"]

    def prompt(question: str, **more: object) -> int:
        message = server.say(server.session(document)["id"], question, **GREEDY, **more)
        assert message["evidence"] == []
        return message["usage"]["prompt_tokens"]

    foreign, talk = "Which submarine torpedoed Zanzibar's aquarium?", "Tell me about submarines."
    said = prompt(foreign) - prompt(foreign, recall=False)
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    told = len(model.tokenizer.encode(INSTRUCT.nothing))
    # A first answer without evidence begins a chat instead of continuing the text.
    begins = len(model.chat.head) - len(model.chat.separator)
    assert said == told + begins
    assert prompt(talk) == prompt(talk, recall=False) + begins
    assert prompt(foreign, recall={"tokens": told - 1}) == prompt(foreign, recall=False) + begins, "the budget holds"
    assert server.http.delete(f"/v1/documents/{document}").is_success
    forks = (server.http.post(f"/v1/sessions/{session}/fork").json()["id"] for _ in range(2))
    gone = [
        server.say(fork, foreign, **GREEDY, recall=asked)["usage"]
        for fork, asked in zip(forks, ({}, False), strict=True)
    ]
    assert gone[0] == gone[1], "what was deleted was not searched"
