"""An answer cites the passages that hold it, in each API's own form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

from tests import files
from tests.process import Server
from tests.server.api.openai.talk import chat, respond, user

SENTENCE = "The club owns fourteen boats."
TEXT = f"{SENTENCE} The wait time for a locker is 35 weeks. Rowing is forbidden during thunderstorms — naïvely."
QUESTION = "How many boats does the club own?"
SCHEMA = {"const": SENTENCE}
CITATION = {"start": 0, "end": len(SENTENCE) + 2, "evidence": 0, "document_start": 0, "document_end": len(SENTENCE)}
"""The answer is the sentence as JSON, in quotation marks."""


@pytest.fixture(scope="module")
def handbook(own_server: Server) -> str:
    return str(own_server.read(TEXT, filename="handbook.md")["id"])


@pytest.fixture
def citation(handbook: str) -> dict[str, Any]:
    return CITATION | {"document": handbook, "filename": "handbook.md"}


def test_a_session_stores_them(server: Server, handbook: str, citation: dict[str, Any]) -> None:
    session = server.session(handbook)["id"]
    answer = server.say(session, QUESTION, json_schema=SCHEMA, max_tokens=60)
    assert answer["content"] == json.dumps(SENTENCE)
    assert answer["citations"] == [citation]
    (_, stored) = server.http.get(f"/v1/sessions/{session}/messages").json()["data"]
    assert stored["citations"] == [citation]
    passage = answer["evidence"][0]
    part = slice(citation["document_start"] - passage["start"], citation["document_end"] - passage["start"])
    assert passage["text"][part] == SENTENCE


def test_a_citation_names_the_section_of_its_own_part(server: Server) -> None:
    """Both files are in one passage, which begins in the first of them."""
    packed = files.zipped({"a.txt": "Cats.", "b.txt": SENTENCE})
    document = server.read(packed, filename="all.zip")["id"]
    answer = server.say(server.session(document)["id"], QUESTION, json_schema=SCHEMA, max_tokens=60)
    assert [passage["section"] for passage in answer["evidence"]] == ["a.txt"]
    assert [citation["section"] for citation in answer["citations"]] == ["b.txt"]


def test_what_no_passage_holds_has_none(server: Server, handbook: str) -> None:
    schema = {"const": "The text does not say what the telephone number is."}
    answer = server.say(server.session(handbook)["id"], QUESTION, json_schema=schema, max_tokens=60)
    assert answer["evidence"]
    assert answer["citations"] == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_them_in_the_message(client: OpenAI, handbook: str, citation: dict[str, Any], stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    asked = user(QUESTION, handbook)
    answer = chat(client, asked, response_format=form, max_tokens=60, extra_body={}, stream=stream)
    if stream:
        found = [c for chunk in answer for c in getattr(chunk.choices[0].delta, "citations", None) or []]
    else:
        found = answer.choices[0].message.citations
        again = answer.choices[0].message.model_dump(exclude_none=True)  # an answer can be sent back as it came
        chat(client, asked, again, user("And?"))
    assert found == [citation]


def test_a_response_has_them_as_annotations(client: OpenAI, handbook: str, citation: dict[str, Any]) -> None:
    parts = [{"type": "input_file", "file_id": handbook}, {"type": "input_text", "text": QUESTION}]
    form = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
    how: dict[str, Any] = {"text": form, "max_output_tokens": 60, "extra_body": {}}
    input = [{"role": "user", "content": parts}]
    response = respond(client, input, **how)
    (annotation,) = response.output[0].content[0].annotations
    expected = {"type": "file_citation", "file_id": handbook, "filename": "handbook.md"}
    assert annotation.model_dump() == expected | {"index": citation["end"]}
    assert response.output[0].citations == [citation]
    assert client.responses.retrieve(response.id) == response
    events = list(respond(client, input, **how, stream=True))
    (added,) = [event for event in events if event.type == "response.output_text.annotation.added"]
    assert added.annotation.model_dump() == annotation.model_dump()
    assert events[-1].response.output_text == response.output_text


def test_a_replayed_response_has_the_events_of_the_first(server: Server, handbook: str) -> None:
    parts = [{"type": "input_file", "file_id": handbook}, {"type": "input_text", "text": QUESTION}]
    form = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
    body = {"input": [{"role": "user", "content": parts}], "text": form, "max_output_tokens": 60, "stream": True}
    headers = {"Idempotency-Key": "cited"}
    first, again = (
        server.http.post("/v1/responses", json=body, headers=headers).raise_for_status().text for _ in range(2)
    )
    assert "response.output_text.annotation.added" in events(first)
    assert events(again) == events(first)


def events(stream: str) -> dict[str, dict[str, Any]]:
    """Return the events of a stream by type, without their numbers and the pieces of the text."""
    sent = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    return {e["type"]: e | {"sequence_number": 0} for e in sent if e["type"] != "response.output_text.delta"}
