"""The tool `file_search` of responses, through OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.process import Server
from tests.server.api.openai.talk import of, over, respond

PAID = "The physician was paid forty guineas for setting the broken arm."
RAIN = "It rained on the roofs for many long days and nights."
QUESTION = "How much was the physician paid for the broken arm?"


@pytest.fixture
def store(server: Server, client: OpenAI) -> Iterator[str]:
    """A vector store with two files, of which the first answers `QUESTION`."""
    files = [server.upload(text, filename=name)["id"] for text, name in ((PAID, "bill.txt"), (RAIN, "rain.txt"))]
    made = client.vector_stores.create(file_ids=files)
    client.vector_stores.files.update(files[0], vector_store_id=made.id, attributes={"year": 1899})
    yield made.id
    client.vector_stores.delete(made.id)
    for file in files:
        client.files.delete(file)


def tool(*stores: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "file_search", "vector_store_ids": [*stores], **more}]


def test_an_answer_rests_on_the_files_of_a_vector_store(client: OpenAI, store: str) -> None:
    answer = respond(client, QUESTION, tools=tool(store), include=["file_search_call.results"])
    search, message = answer.output
    assert (search.type, search.status, search.queries) == ("file_search_call", "completed", [QUESTION])
    assert search.id.startswith("fs_")
    (best, *_) = search.results
    assert (best.filename, best.attributes) == ("bill.txt", {"year": 1899})
    assert best.text in PAID, "it may be shortened to the limit of tokens"
    assert 0 < best.score <= 1
    assert (message.type, message.evidence[0]["text"]) == ("message", best.text)
    assert answer.tools[0].vector_store_ids == [store]
    stored = client.responses.retrieve(answer.id)
    assert stored.output == answer.output
    plain = respond(client, QUESTION, tools=tool(store))
    assert plain.output[0].results is None, "results are left out unless they are asked for"
    assert respond(client, QUESTION).output[0].evidence == []


def test_a_sentence_of_the_answer_cites_a_file(client: OpenAI, store: str) -> None:
    schema = {"type": "object", "properties": {"answer": {"const": PAID}}, "required": ["answer"]}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    answer = respond(client, QUESTION, tools=tool(store), text=text, max_output_tokens=300, extra_body={})
    assert PAID in answer.output_text
    (annotation, *_) = answer.output[1].content[0].annotations
    assert (annotation.type, annotation.filename) == ("file_citation", "bill.txt")


def test_a_streamed_answer_has_the_same_items(client: OpenAI, store: str) -> None:
    asked: dict[str, Any] = {"tools": tool(store), "include": ["file_search_call.results"], "stream": True}
    first, again = (
        list(respond(client, QUESTION, extra_headers={"Idempotency-Key": store}, **asked)) for _ in range(2)
    )
    for events in (first, again):
        kinds = [event.type for event in events]
        assert kinds[:9] == [
            "response.created", "response.in_progress", "response.output_item.added", "response.file_search_call.in_progress",
            "response.file_search_call.searching", "response.file_search_call.completed", "response.output_item.done",
            "response.output_item.added", "response.content_part.added",
        ]  # fmt: skip
        assert [event.sequence_number for event in events] == list(range(len(events)))
        final = events[-1].response
        assert [event.item for event in events if event.type == "response.output_item.done"] == final.output
        indexes = {event.output_index for event in events if event.type == "response.output_text.delta"}
        assert indexes == {1}
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert deltas == final.output_text
    assert first[-1].response == again[-1].response


def test_filters_and_limits(client: OpenAI, store: str) -> None:
    def searched(**more: Any) -> list[str]:
        answer = respond(client, QUESTION, tools=tool(store, **more), include=["file_search_call.results"])
        return [result.filename for result in answer.output[0].results]

    assert searched(max_num_results=1) == ["bill.txt"]
    assert searched(filters={"type": "gt", "key": "year", "value": 1900}) == []
    assert searched(filters={"type": "eq", "key": "year", "value": 1899}) == ["bill.txt"]


def test_an_empty_store_is_searched_in_vain(client: OpenAI) -> None:
    empty = client.vector_stores.create()
    answer = respond(client, QUESTION, tools=tool(empty.id), include=["file_search_call.results"])
    search, message = answer.output
    assert (search.results, message.evidence) == ([], [])
    client.vector_stores.delete(empty.id)


def test_a_conversation_goes_on(client: OpenAI, store: str) -> None:
    first = respond(client, QUESTION, tools=tool(store))
    question = "And the rain on the roofs, how many days and nights?"
    later = respond(client, question, tools=tool(store), previous_response_id=first.id)
    assert later.output[0].queries == [question]
    assert any(passage["text"] in RAIN for passage in later.output[1].evidence)
    history = [{"role": "user", "content": QUESTION}, *(item.model_dump() for item in first.output)]
    sent_back = respond(client, [*history, {"role": "user", "content": "And then?"}], tools=tool(store))
    assert sent_back.output[0].type == "file_search_call"
    background = over(client, respond(client, QUESTION, tools=tool(store), background=True).id)
    assert background.output[0].queries == [QUESTION]
    assert background.output[1].evidence[0]["text"] in PAID


def test_no_chat_is_kept_with_passages_that_are_not_its_own(client: OpenAI, server: Server, store: str) -> None:
    before = {*server.redis.scan_iter("{everlong}:chat:*")}
    first = respond(client, QUESTION, tools=tool(store))
    respond(client, "Was that much?", previous_response_id=first.id)
    assert {*server.redis.scan_iter("{everlong}:chat:*")} == before, "it would outlive the deletion of the file"


@pytest.mark.parametrize("choice", ["auto", "required", "none", {"type": "file_search"}])
def test_every_choice_of_tools(client: OpenAI, store: str, choice: Any) -> None:
    """With "none", the server does not search, as with OpenAI."""
    output = respond(client, QUESTION, tools=tool(store), tool_choice=choice).output
    assert (output[0].type, bool(output[-1].evidence)) == (
        ("message", False) if choice == "none" else ("file_search_call", True)
    )


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "file_search"}], "tools.0.vector_store_ids"),
        ([{"type": "file_search", "vector_store_ids": []}], "tools.0.vector_store_ids"),
        (tool("vs_x", max_num_results=51), "tools.0.max_num_results"),
        (tool("vs_x", ranking_options={"score_threshold": 0.5}), "tools.0.ranking_options.score_threshold"),
        (tool("vs_x", filters={"type": "eq"}), "tools.0.filters.key"),
        (tool("vs_x") * 2, "tools.1"),
        ([{"type": "web_search"}], "tools.0"),
    ],
)  # fmt: skip
def test_what_is_refused(client: OpenAI, tools: Any, param: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        respond(client, QUESTION, tools=tools)
    assert of(error)[1] == param


def test_recall_off_and_unknown_stores(client: OpenAI, store: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        respond(client, QUESTION, tools=tool(store), extra_body={"recall": False})
    assert of(error)[1] == "tools.0"
    with pytest.raises(openai.NotFoundError) as missing:
        respond(client, QUESTION, tools=tool(store, "vs_" + "0" * 32))
    assert of(missing) == ("vector_store_not_found", "tools")


def test_an_input_of_searches_alone_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        respond(client, [{"type": "file_search_call", "id": "fs_x"}])
    assert of(error)[1] == "input"
