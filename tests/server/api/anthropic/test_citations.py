"""Citations in Anthropic's forms, of every kind of document block."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from anthropic import Anthropic

from tests.files import pdf
from tests.process import Server
from tests.server.api.anthropic.test_messages import ask, user, words
from tests.tinymodel import STORY

SENTENCE = "The club owns fourteen boats."
PARTS = ["The wait time for a locker is 35 weeks.", SENTENCE, "Rowing is forbidden during thunderstorms — naïvely."]
TEXT = " ".join(PARTS)
QUESTION = words("How many boats does the club own?")
ANSWER: dict[str, Any] = {
    "output_config": {"format": {"type": "json_schema", "schema": {"const": SENTENCE}}}, "max_tokens": 60,
}  # fmt: skip
"""The answer is the sentence as JSON, in quotation marks."""


def block(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, "citations": {"enabled": True}, **more}


def cited(client: Anthropic, *content: Any) -> Any:
    """Return the only citation of the answer."""
    said = ask(client, user(*content, QUESTION), **ANSWER)
    assert "".join(part.text for part in said.content) == f'"{SENTENCE}"'
    (found,) = [each for part in said.content for each in part.citations or []]
    assert found.cited_text == SENTENCE
    return found


def text(data: str = TEXT) -> dict[str, Any]:
    return {"type": "text", "media_type": "text/plain", "data": data}


def test_a_text(client: Anthropic) -> None:
    other = block(text("Humpty Dumpty sits on a wall."))
    found = cited(client, other, block(text(), title="handbook.md"))
    assert (found.type, found.document_index, found.document_title) == ("char_location", 1, "handbook.md")
    assert TEXT[found.start_char_index : found.end_char_index] == SENTENCE


def test_blocks(client: Anthropic) -> None:
    parts = [words(part) for part in PARTS]
    found = cited(client, block({"type": "content", "content": parts}))
    assert (found.type, found.document_index, found.document_title) == ("content_block_location", 0, None)
    assert (found.start_block_index, found.end_block_index) == (1, 2)


@pytest.mark.parametrize(
    "before", ["<html><p>Hi &amp; bye.</p><p>", "Subject: Boats\nMIME-Version: 1.0\nContent-Type: text/plain\n"]
)
def test_a_text_is_not_converted(client: Anthropic, before: str) -> None:
    """Its characters are those that the client sent, also if it is the source of a page or of an e-mail."""
    sent = f"{before}\n{SENTENCE}"
    found = cited(client, block(text(sent)))
    assert sent[found.start_char_index : found.end_char_index] == SENTENCE


def test_blocks_with_the_name_of_a_page_are_not_converted(client: Anthropic) -> None:
    parts = [words("<h2 class='small'>Club</h2>"), words(SENTENCE), words("<p>Rowing</p>")]
    found = cited(client, block({"type": "content", "content": parts}, title="club.html"))
    assert (found.start_block_index, found.end_block_index) == (1, 2)


def test_a_pdf(client: Anthropic) -> None:
    data = base64.b64encode(pdf(["Humpty Dumpty sits on a wall.", SENTENCE])).decode()
    found = cited(client, block({"type": "base64", "media_type": "application/pdf", "data": data}, title="club.pdf"))
    assert (found.type, found.document_title) == ("page_location", "club.pdf")
    assert (found.start_page_number, found.end_page_number) == (2, 3)


def test_an_uploaded_file(client: Anthropic, server: Server) -> None:
    handbook = server.read(TEXT, filename="handbook.txt")["id"]
    found = cited(client, block({"type": "file", "file_id": handbook}))
    assert (found.type, found.file_id, found.document_title) == ("char_location", handbook, "handbook.txt")
    server.http.delete(f"/v1/documents/{handbook}")


def test_a_stream_sends_them_after_the_text(client: Anthropic) -> None:
    content = user(block(text(), title="handbook.md"), QUESTION)
    whole = cited(client, *content["content"][:1])
    with client.messages.stream(
        model="tiny-rmt", messages=[content], extra_body={"temperature": 0}, **ANSWER
    ) as stream:
        deltas = [event.delta.type for event in stream if event.type == "content_block_delta"]
        final = stream.get_final_message()
    assert deltas[-1] == "citations_delta"
    assert "citations_delta" not in deltas[:-1]
    (part,) = final.content
    assert part.text == f'"{SENTENCE}"'
    assert part.citations == [whole]


@pytest.mark.parametrize("enabled", [False, None])
def test_none_unless_they_are_enabled(client: Anthropic, enabled: bool | None) -> None:
    config = {} if enabled is None else {"citations": {"enabled": enabled}}
    said = ask(client, user({"type": "document", "source": text(), **config}, QUESTION), **ANSWER)
    assert [part.citations for part in said.content] == [None]


def test_an_answer_with_citations_can_be_sent_back(client: Anthropic) -> None:
    asked = user(block(text(f"{STORY.read_text()[:3_000]}\n\n{TEXT}")), QUESTION)
    one = ask(client, asked, **ANSWER)
    again = ask(client, asked, {"role": "assistant", "content": one.content}, user("And lockers?"))
    assert again.usage.cache_read_input_tokens > one.usage.cache_read_input_tokens
