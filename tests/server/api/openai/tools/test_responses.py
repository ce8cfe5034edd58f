"""Tools in responses, through OpenAI's SDK, over HTTP, server-sent events and a WebSocket."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.process import Server
from tests.server.api.openai.talk import TEXT, of, over
from tests.server.api.openai.tools.talk import MODEL, TOOLS, bias, check_call, respond

QUESTION = "How is the weather in Paris?"
NAMED = {"type": "function", "name": "get_weather"}


def output_of(call: Any, text: str = "12 degrees") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


def test_a_call_is_an_item_of_the_output(client: OpenAI) -> None:
    response = respond(client, QUESTION, tool_choice=NAMED)
    assert response.status == "completed"
    (call,) = response.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    check_call(call.name, call.arguments)
    assert [tool.name for tool in response.tools] == ["get_weather", "get_time"]
    assert response.tool_choice.name == "get_weather"
    assert response.parallel_tool_calls is True
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_a_conversation_goes_on_with_the_result(client: OpenAI) -> None:
    first = respond(client, QUESTION, tool_choice=NAMED)
    second = respond(
        client, [output_of(first.output[0])], previous_response_id=first.id, max_output_tokens=5, tool_choice="none"
    )
    assert second.output[0].type == "message"
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens / 2
    (item,) = client.responses.input_items.list(second.id).data
    assert (item.type, item.call_id, item.output) == ("function_call_output", first.output[0].call_id, "12 degrees")
    parts = {
        **output_of(first.output[0]),
        "output": [{"type": "input_text", "text": "12 "}, {"type": "input_text", "text": "degrees"}],
    }
    same = respond(client, [parts], previous_response_id=first.id, max_output_tokens=5, tool_choice="none")
    assert same.output_text == second.output_text


def test_calls_can_be_sent_back_as_input(client: OpenAI) -> None:
    """Without a stored response; the prompt is the same as with one."""
    first = respond(client, QUESTION, tool_choice=NAMED)
    items = [{"role": "user", "content": QUESTION}, *first.output, output_of(first.output[0])]
    stateless = respond(client, items, max_output_tokens=5, store=False)
    stored = respond(client, items[2:], previous_response_id=first.id, max_output_tokens=5)
    assert stateless.usage.input_tokens == stored.usage.input_tokens
    kept = respond(client, items, max_output_tokens=5)
    listed = client.responses.input_items.list(kept.id, order="asc").data
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]
    assert (listed[1].name, listed[1].arguments) == (first.output[0].name, first.output[0].arguments)


def test_events_of_calls(client: OpenAI, server: Server) -> None:
    how = {"tool_choice": "required", "temperature": 1, "max_output_tokens": 400}
    more = {"extra_body": {"logit_bias": bias(server, end=-100), "seed": 4}}
    whole = respond(client, QUESTION, **how, **more)
    assert len(whole.output) > 1
    assert whole.status == "incomplete"
    assert [item.status for item in whole.output] == ["completed"] * (len(whole.output) - 1) + ["incomplete"]
    events = list(respond(client, QUESTION, stream=True, **how, **more))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [(event.output_index, event.item.name) for event in added] == [
        (n, item.name) for n, item in enumerate(whole.output)
    ]
    for index, item in enumerate(whole.output):
        deltas = [
            e.delta for e in events if e.type == "response.function_call_arguments.delta" and e.output_index == index
        ]
        assert "".join(deltas) == item.arguments
        (done,) = [e for e in events if e.type == "response.function_call_arguments.done" and e.output_index == index]
        assert (done.arguments, done.item_id) == (item.arguments, added[index].item.id)
    assert events[-1].type == "response.incomplete"
    final = events[-1].response
    assert [(i.name, i.arguments, i.status) for i in final.output] == [
        (i.name, i.arguments, i.status) for i in whole.output
    ]


def test_the_sdk_puts_a_stream_together(client: OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input=QUESTION, tools=TOOLS, tool_choice=NAMED, max_output_tokens=200
    ) as stream:
        final = stream.get_final_response()
    (call,) = final.output
    check_call(call.name, call.arguments)


def test_text_and_then_a_call(client: OpenAI, server: Server) -> None:
    for seed in range(40):
        how = {"temperature": 2, "top_p": 1, "extra_body": {"seed": seed, "logit_bias": bias(server, call=14)}}
        response = respond(client, QUESTION, **how)
        if [item.type for item in response.output][:2] == ["message", "function_call"]:
            break
    else:
        pytest.fail("no answer had both")
    events = list(respond(client, QUESTION, stream=True, **how))
    kinds = [event.type for event in events]
    assert kinds.index("response.output_text.delta") < kinds.index("response.function_call_arguments.delta")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == response.output_text == events[-1].response.output_text
    results = [output_of(call) for call in response.output[1:]]
    on = respond(client, results, previous_response_id=response.id, max_output_tokens=3)
    again = respond(client, [{"role": "user", "content": QUESTION}, *response.output, *results], max_output_tokens=3)
    assert abs(on.usage.input_tokens - again.usage.input_tokens) <= 3, "but for white space before the call"


def test_a_retry_replays_the_events(client: OpenAI) -> None:
    how = {"tool_choice": NAMED, "temperature": 1, "extra_headers": {"Idempotency-Key": "tools-r"}}
    first = respond(client, QUESTION, **how, stream=True)
    whole = next(event for event in first if event.type == "response.completed").response
    again = list(respond(client, QUESTION, **how, stream=True))
    assert again[-1].response.to_dict() == whole.to_dict()
    (delta,) = [event for event in again if event.type == "response.function_call_arguments.delta"]
    assert delta.delta == whole.output[0].arguments


def test_in_the_background(client: OpenAI) -> None:
    queued = respond(client, QUESTION, tool_choice=NAMED, background=True)
    response = over(client, queued.id)
    assert response.status == "completed"
    check_call(response.output[0].name, response.output[0].arguments)
    on = respond(
        client, [output_of(response.output[0])], previous_response_id=queued.id, background=True, max_output_tokens=5
    )
    assert over(client, on.id).status in ("completed", "incomplete")


async def test_over_a_websocket(server: Server) -> None:
    how = {
        "model": MODEL,
        "tools": TOOLS,
        "tool_choice": NAMED,
        "max_output_tokens": 200,
        "temperature": 0,
        "store": False,
    }
    async with (
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as client,
        client.responses.connect() as socket,
    ):
        await socket.response.create(**how, input=QUESTION)
        async for event in socket:
            if event.type == "response.completed":
                break
        (call,) = event.response.output
        check_call(call.name, call.arguments)
        more = {**how, "tool_choice": "none", "max_output_tokens": 3, "previous_response_id": event.response.id}
        await socket.response.create(**more, input=[output_of(call)])
        async for event in socket:
            if event.type in ("response.completed", "response.incomplete"):
                break
        assert event.response.output[0].type == "message"


def test_a_new_file_reads_the_calls_again(client: OpenAI, book: str) -> None:
    first = respond(client, QUESTION, tool_choice=NAMED)
    parts = [
        {"type": "input_file", "file_id": book},
        {"type": "input_text", "text": "How did Dinah wash her children's faces?"},
    ]
    items = [output_of(first.output[0]), {"role": "user", "content": parts}]
    second = respond(client, items, previous_response_id=first.id, tool_choice=NAMED)
    third = respond(
        client, [output_of(second.output[0])], previous_response_id=second.id, tool_choice="none", max_output_tokens=5
    )
    evidence = third.output[0].evidence
    assert evidence, "the passages for the question before the call"
    assert all(TEXT[passage["start"] : passage["end"]] == passage["text"] for passage in evidence)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a result without a call": ([{"type": "function_call_output", "call_id": "x", "output": "1"}], {}, "input.0.call_id"),
    "another type": (QUESTION, {"tools": [{"type": "web_search"}]}, "tools.0"),
    "an unknown tool": (QUESTION, {"tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    "another item": ([{"type": "web_search_call", "id": "ws_1"}], {}, "input.0"),
    "a strict schema that cannot be enforced": (
        QUESTION, {"tools": [{"type": "function", "name": "x", "strict": True, "parameters": {"not": {}}}]}, "tools.0.parameters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(client: OpenAI, case: str) -> None:
    input, more, param = REFUSED[case]
    with pytest.raises(openai.UnprocessableEntityError) as error:
        respond(client, input, **more)
    assert of(error)[1] == param, error.value.message


def test_a_call_of_the_response_before_needs_its_result(client: OpenAI) -> None:
    first = respond(client, QUESTION, tool_choice=NAMED)
    with pytest.raises(openai.UnprocessableEntityError, match="no result for the call"):
        respond(client, "And in Rome?", previous_response_id=first.id)
