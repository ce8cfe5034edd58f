"""`continue_answer`: an answer that reached its limit of tokens is extended, and remains one message."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from everlong_client import Everlong, TextDelta
from tests.process import Server
from tests.tinymodel import STORY, make_tool_model

TEXT = STORY.read_text()[:8_000]
LONG = {"temperature": 0, "ignore_eos": True, "stop_repetition": False}


@pytest.fixture(scope="module")
def document(shared_server: Server) -> str:
    return str(shared_server.read(TEXT)["id"])


def said(server: Server, session: str) -> list[dict]:
    return list(server.http.get(f"/v1/sessions/{session}/messages").json()["data"])


def extend(server: Server, session: str, tokens: int, **more: object) -> dict:
    return server.say(session, "-", continue_answer=True, max_tokens=tokens, **LONG, **more)


@pytest.mark.parametrize("cut", [1, 24, 63, 90])
def test_it_goes_on_as_if_it_had_not_been_cut(server: Server, document: str, cut: int) -> None:
    """Also across the borders of segments, which have 64 tokens. (Later tokens may differ by the rounding of other sums.)"""
    whole, parts = (server.session(document)["id"] for _ in range(2))
    expected = server.say(whole, "Who is Alice?", max_tokens=120, **LONG)
    first = server.say(parts, "Who is Alice?", max_tokens=cut, **LONG)
    joined = extend(server, parts, 120 - cut)
    assert joined["content"].startswith(first["content"])
    assert joined["usage"]["completion_tokens"] == 120
    assert joined["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    assert joined["id"] != first["id"]
    question, stored = said(server, parts)
    assert question["content"] == "Who is Alice?"
    assert stored == {name: value for name, value in joined.items() if name in stored}
    after = server.get_session(parts)
    assert after["messages"] == 2
    assert joined["content"][: len(first["content"]) + 5] == expected["content"][: len(first["content"]) + 5]
    assert after["position"] == server.get_session(whole)["position"]


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default memory, which searches."""
    folder = make_tool_model(tmp_path_factory.mktemp("model"))
    with Server(folder, tmp_path_factory.mktemp("data")) as server:
        yield server.start()


@pytest.mark.parametrize("cuts", [(30,), (300,), (40, 60)])
def test_it_goes_on_from_its_question_and_evidence(windowed: Server, cuts: tuple[int, ...]) -> None:
    """They stand further back than the tokens that a later answer attends to."""
    document = windowed.read(TEXT)["id"]
    whole, parts = (windowed.session(document)["id"] for _ in range(2))
    question = "What did the White Rabbit say?"
    expected = windowed.say(whole, question, max_tokens=sum(cuts) + 20, **LONG)
    joined = windowed.say(parts, question, max_tokens=cuts[0], **LONG)
    assert joined["evidence"]
    for more in (*cuts[1:], 20):
        before = joined
        joined = extend(windowed, parts, more)
        assert joined["evidence"] == before["evidence"]
        assert joined["content"].startswith(before["content"])
        at = len(before["content"])
        assert joined["content"][at : at + 5] == expected["content"][at : at + 5]
    assert joined["usage"] == expected["usage"]


def test_after_the_end_of_a_segment_it_goes_on_in_a_new_line(windowed: Server) -> None:
    """The memory has the whole answer then, and the model needs a token to begin with."""
    document = windowed.read(TEXT)["id"]
    probe, session = (windowed.session(document)["id"] for _ in range(2))
    windowed.say(probe, "Who?", max_tokens=10, **LONG)
    left = -windowed.get_session(probe)["position"] % 256
    first = windowed.say(session, "Who?", max_tokens=10 + left, **LONG)
    assert windowed.get_session(session)["position"] % 256 == 0
    with (
        Everlong(windowed.url, timeout=120) as client,
        client.sessions.stream(session, "-", continue_answer=True, max_tokens=10, **LONG) as stream,
    ):
        streamed = "".join(event.delta for event in stream if isinstance(event, TextDelta))
    joined = said(windowed, session)[1]
    assert joined["content"] == first["content"] + streamed
    assert joined["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert streamed.startswith("\n")
    assert len(joined["content"]) > len(first["content"]) + 1


def test_an_answer_that_saw_nothing_of_the_document_goes_on_without_it(windowed: Server) -> None:
    """It was made elsewhere, and the memory reads it after the document."""
    past = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "I am", "finish_reason": "length"}]
    contents = set()
    for text in (TEXT, TEXT[::-1]):
        document = windowed.read(text)["id"]
        made = windowed.http.post("/v1/sessions", json={"documents": [document], "messages": past}).json()
        contents.add(extend(windowed, made["id"], 20)["content"])
    assert len(contents) == 1


@pytest.mark.parametrize("field", ["instructions", "json_schema"])
def test_what_would_change_the_answer_is_refused(server: Server, document: str, field: str) -> None:
    session = server.session(document)["id"]
    server.say(session, "Who?", max_tokens=5, **LONG)
    body = {"content": "-", "continue_answer": True, field: "In German." if field == "instructions" else {}}
    server.error(server.http.post(f"/v1/sessions/{session}/messages", json=body), 422, "invalid_value", field)


def test_only_an_answer_that_was_cut_can_be_extended(server: Server, document: str) -> None:
    session = server.session(document)["id"]
    body = {"content": "-", "continue_answer": True}
    path = f"/v1/sessions/{session}/messages"
    server.error(server.http.post(path, json=body), 409, "nothing_to_continue", "continue_answer")
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I.", "finish_reason": "stop"}]
    ended = server.http.post("/v1/sessions", json={"messages": past}).json()["id"]
    server.error(
        server.http.post(f"/v1/sessions/{ended}/messages", json=body), 409, "nothing_to_continue", "continue_answer"
    )
    past[1]["finish_reason"] = "length"
    cut = server.http.post("/v1/sessions", json={"messages": past}).json()["id"]
    joined = extend(server, cut, 10)
    assert joined["content"].startswith("I.")
    assert len(said(server, cut)) == 2
    more = server.say(cut, "And?", max_tokens=10, **LONG)
    assert more["content"]
    assert len(said(server, cut)) == 4


def test_no_other_answer_than_the_one_meant_is_extended(server: Server) -> None:
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I.", "finish_reason": "length"}]
    session = server.http.post("/v1/sessions", json={"messages": past}).json()["id"]
    path, earlier = f"/v1/sessions/{session}/messages", said(server, session)[1]["id"]
    body = {"content": "-", "continue_answer": earlier, "max_tokens": 10, **LONG}
    joined = server.http.post(path, json=body).json()
    assert joined["content"].startswith("I.")
    assert joined["id"] != earlier
    refused = server.error(server.http.post(path, json=body), 409, "nothing_to_continue", "continue_answer")
    assert repr(earlier) in refused["message"]
    assert said(server, session)[1]["content"] == joined["content"]
    server.error(
        server.http.post(path, json=body | {"continue_answer": "yesterday's"}), 422, "invalid_value", "continue_answer"
    )


def test_a_retry_does_not_extend_it_again(server: Server, document: str) -> None:
    session = server.session(document)["id"]
    server.say(session, "Who?", max_tokens=10, **LONG)
    body = {"content": "-", "continue_answer": True, "max_tokens": 10, **LONG}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    path = f"/v1/sessions/{session}/messages"
    first, second = (server.http.post(path, json=body, headers=headers).json() for _ in range(2))
    assert first == second
    assert said(server, session)[1]["usage"]["completion_tokens"] == 20
