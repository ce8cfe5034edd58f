"""Tools in chats, through OpenAI's SDK."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.process import Server
from tests.server.api.openai.talk import TEXT, of, user
from tests.server.api.openai.tools.talk import CHAT_TOOLS, CLOCK, MODEL, WEATHER, ask, bias, check_call, tokenizer_of

QUESTION = user("How is the weather in Paris?")
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def result(call: Any, text: str = "12 degrees") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def test_a_named_tool_is_called_once_with_arguments_that_follow_its_schema(client: OpenAI) -> None:
    completion = ask(client, QUESTION, tool_choice=NAMED)
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    check_call(call.function.name, call.function.arguments)


def test_stop_strings_do_not_end_a_call(client: OpenAI) -> None:
    """Agents stop at a line break, which the marker of a call has."""
    plain = ask(client, QUESTION, tool_choice=NAMED).choices[0]
    stopped = ask(client, QUESTION, tool_choice=NAMED, stop=["\n", "arguments", ":"]).choices[0]
    assert stopped.finish_reason == "tool_calls"
    assert stopped.message.tool_calls[0].function == plain.message.tool_calls[0].function


def test_the_prompt_is_what_the_template_renders(client: OpenAI, server: Server) -> None:
    """In the first turn, and after a call and its result."""
    tokenizer = tokenizer_of(server)

    def rendered(messages: list[dict[str, Any]]) -> int:
        text = tokenizer.apply_chat_template(messages, tools=CHAT_TOOLS, tokenize=False, add_generation_prompt=True)
        return len(tokenizer.encode(text, add_special_tokens=False))

    for system in ([], [{"role": "system", "content": "Be brief."}]):
        said: list[Any] = [*system, QUESTION]
        assert ask(client, *said, max_tokens=1).usage.prompt_tokens == rendered(said)
        arguments = {"city": "Paris", "unit": "C"}
        function = {"name": "get_weather", "arguments": json.dumps(arguments)}
        calls = [{"id": "a", "type": "function", "function": function}]
        results = [{"role": "tool", "tool_call_id": "a", "content": "12 degrees"}]
        done = ask(client, *said, {"role": "assistant", "content": None, "tool_calls": calls}, *results, max_tokens=1)
        plain = [{"id": "a", "type": "function", "function": function | {"arguments": arguments}}]
        history = [*said, {"role": "assistant", "content": "", "tool_calls": plain}, *results]
        assert done.usage.prompt_tokens == rendered(history)


def test_a_call_and_its_result_are_not_read_again(client: OpenAI) -> None:
    first = ask(client, QUESTION, tool_choice="required", parallel_tool_calls=False)
    message = first.choices[0].message
    (call,) = message.tool_calls
    second = ask(client, QUESTION, message, result(call), max_tokens=5)
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens / 2
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + first.usage.completion_tokens
    other = ask(client, QUESTION, message, result(call), max_tokens=5, tools=CHAT_TOOLS[:1])
    assert other.usage.prompt_tokens_details.cached_tokens == 0, "other tools are another chat"


def test_a_stream_has_the_same_calls(client: OpenAI, server: Server) -> None:
    """Several calls in one answer, whose arguments arrive in pieces; the SDK puts them together."""
    how = {
        "tool_choice": "required",
        "temperature": 1,
        "seed": 4,
        "logit_bias": bias(server, end=-100),
        "max_tokens": 400,
    }
    whole = ask(client, QUESTION, **how).choices[0]
    assert len(whole.message.tool_calls) > 1
    for call in whole.message.tool_calls:
        check_call(call.function.name, call.function.arguments)
    chunks = [chunk.choices[0] for chunk in ask(client, QUESTION, stream=True, **how)]
    assert chunks[0].delta.content is None
    begun = [delta for chunk in chunks for delta in chunk.delta.tool_calls or [] if delta.id]
    assert [delta.function.name for delta in begun] == [call.function.name for call in whole.message.tool_calls]
    assert [delta.index for delta in begun] == list(range(len(begun)))
    pieces: dict[int, list[str]] = {}
    for chunk in chunks:
        for delta in chunk.delta.tool_calls or []:
            pieces.setdefault(delta.index, []).append(delta.function.arguments or "")
    said = ["".join(pieces[index]) for index in sorted(pieces)]
    assert said == [call.function.arguments for call in whole.message.tool_calls]
    assert any(len(parts) > 3 for parts in pieces.values()), "they arrive as they are generated"
    assert chunks[-1].finish_reason == whole.finish_reason
    with client.chat.completions.stream(
        model=MODEL, messages=[QUESTION], tools=CHAT_TOOLS, max_tokens=200, temperature=0, tool_choice=NAMED
    ) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.content is None
    assert final.tool_calls[0].function.arguments == called(client).tool_calls[0].function.arguments


def called(client: OpenAI) -> Any:
    return ask(client, QUESTION, tool_choice=NAMED).choices[0].message


def test_without_parallel_calls_there_is_one(client: OpenAI, server: Server) -> None:
    how = {
        "tool_choice": "required",
        "temperature": 1,
        "seed": 4,
        "logit_bias": bias(server, end=-100),
        "max_tokens": 400,
    }
    choice = ask(client, QUESTION, parallel_tool_calls=False, **how).choices[0]
    assert len(choice.message.tool_calls) == 1
    assert choice.finish_reason == "tool_calls"


def test_the_model_decides(client: OpenAI, server: Server) -> None:
    text = ask(client, QUESTION, logit_bias=bias(server, call=-100), max_tokens=20).choices[0]
    assert text.message.tool_calls is None
    assert text.message.content
    called = ask(client, QUESTION, logit_bias=bias(server, call=100)).choices[0]
    assert called.message.tool_calls
    assert called.message.content is None


def test_text_before_a_call_is_content(client: OpenAI, server: Server) -> None:
    for seed in range(40):
        sampled = {"temperature": 2, "top_p": 1, "seed": seed, "logit_bias": bias(server, call=14)}
        choice = ask(client, QUESTION, **sampled).choices[0]
        if choice.message.tool_calls and choice.message.content:
            break
    else:
        pytest.fail("no answer had both")
    assert "<tool_call>" not in choice.message.content
    chunks = [chunk.choices[0].delta for chunk in ask(client, QUESTION, stream=True, **sampled)]
    assert "".join(delta.content or "" for delta in chunks) == choice.message.content
    back = ask(client, QUESTION, choice.message, *map(result, choice.message.tool_calls), max_tokens=2)
    assert back.usage.prompt_tokens_details.cached_tokens > 0


def test_none_forbids_calls_and_hides_the_tools(client: OpenAI, server: Server) -> None:
    bare = ask(client, QUESTION, tools=openai.omit, max_tokens=5)
    none = ask(client, QUESTION, tool_choice="none", logit_bias=bias(server, call=100), max_tokens=20)
    assert none.usage.prompt_tokens == bare.usage.prompt_tokens
    assert none.choices[0].message.tool_calls is None
    assert "<tool_call>" not in none.choices[0].message.content
    call = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    said = [
        QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
    ]
    after = ask(client, *said, tools=openai.omit, logit_bias=bias(server, call=100), max_tokens=20)
    assert "<tool_call>" not in after.choices[0].message.content, "no tools, so no call, whatever was called before"


def test_a_cut_call_is_returned_as_far_as_it_came(client: OpenAI) -> None:
    whole = ask(client, QUESTION, tool_choice=NAMED)
    arguments = whole.choices[0].message.tool_calls[0].function.arguments
    cut = ask(client, QUESTION, tool_choice=NAMED, max_tokens=whole.usage.completion_tokens - 6).choices[0]
    assert cut.finish_reason == "length"
    assert arguments.startswith(cut.message.tool_calls[0].function.arguments)


def test_tools_beside_a_file(client: OpenAI, server: Server, book: str) -> None:
    """The passages are searched for the question, also when the last message is the result of a call."""
    asked = user("How did Dinah wash her children's faces?", book)
    first = ask(client, asked, tool_choice=NAMED).choices[0].message
    assert first.tool_calls
    assert all(TEXT[passage["start"] : passage["end"]] == passage["text"] for passage in first.evidence)
    second = ask(client, asked, first, result(first.tool_calls[0]), max_tokens=4).choices[0].message
    assert {p["start"] for p in second.evidence} & {p["start"] for p in first.evidence}
    fed = ask(client, asked, {**first.model_dump(), "content": "Hm."}, result(first.tool_calls[0]), max_tokens=4)
    assert fed.choices[0].message.evidence, "nor does it matter whether the chat was read before"


def test_tools_that_are_out_of_sight_are_shown_again(client: OpenAI) -> None:
    """A window of 1,024 tokens has lost the system message: the tools come directly before the question."""
    long = [user("and then? " * 150), {"role": "assistant", "content": "Well. " * 150}]
    tools = (
        ask(client, QUESTION, max_tokens=1).usage.prompt_tokens
        - ask(client, QUESTION, tools=openai.omit, max_tokens=1).usage.prompt_tokens
    )
    bare = ask(client, *long, *long, QUESTION, tools=openai.omit, max_tokens=1).usage.prompt_tokens
    shown = ask(client, *long, *long, QUESTION, max_tokens=1)
    assert abs(shown.usage.prompt_tokens - bare - tools) < 12
    short = ask(client, QUESTION, max_tokens=4).choices[0].message
    again = ask(client, QUESTION, short, user("And in Rome?"), max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    more = ask(client, QUESTION, short, user("And in Rome?"), tools=openai.omit, max_tokens=1)
    assert again.usage.prompt_tokens - more.usage.prompt_tokens < tools + 12, "nor twice if they are in sight"


def test_a_retry_replays_the_calls(client: OpenAI) -> None:
    how = {"tool_choice": NAMED, "temperature": 1, "extra_headers": {"Idempotency-Key": "tools-1"}}
    whole = ask(client, QUESTION, **how)
    again = ask(client, QUESTION, **how)
    assert again.to_dict() == whole.to_dict()
    streamed = ask(client, QUESTION, **{**how, "extra_headers": {"Idempotency-Key": "tools-2"}}, stream=True)
    pieces = [delta for chunk in streamed for delta in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0].id
    replayed = ask(client, QUESTION, **{**how, "extra_headers": {"Idempotency-Key": "tools-2"}}, stream=True)
    chunks = [chunk.choices[0] for chunk in replayed]
    (delta,) = [delta for chunk in chunks for delta in chunk.delta.tool_calls or []]
    assert delta.id == pieces[0].id
    assert delta.function.arguments == "".join(piece.function.arguments or "" for piece in pieces)
    assert chunks[-1].finish_reason == "tool_calls"


def test_a_strict_tool_is_called(client: OpenAI) -> None:
    class_tool = openai.pydantic_function_tool  # as the SDK makes them
    from pydantic import BaseModel

    class Place(BaseModel):
        city: str
        country: str | None

    tool = class_tool(Place)
    assert tool["function"]["strict"] is True
    completion = client.chat.completions.parse(
        model=MODEL, messages=[QUESTION], tools=[tool], tool_choice="required", max_tokens=400, temperature=1, seed=5,
        parallel_tool_calls=False,
    )  # fmt: skip
    parsed = completion.choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(parsed, Place)


CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}],
}
REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a result without a call": ([QUESTION, {"role": "tool", "tool_call_id": "x", "content": "1"}], {}, "messages.1.tool_call_id"),
    "another call's result": ([QUESTION, CALLED, {"role": "tool", "tool_call_id": "x", "content": "1"}], {}, "messages.2.tool_call_id"),
    "no result": ([QUESTION, CALLED, QUESTION], {}, "messages.2"),
    "no result at the end": ([QUESTION, CALLED], {}, "messages.1.tool_calls"),
    "two results": (
        [QUESTION, CALLED, *[{"role": "tool", "tool_call_id": "a", "content": "1"}] * 2], {}, "messages.3.tool_call_id",
    ),
    "two calls with one id": (
        [QUESTION, {"role": "assistant", "tool_calls": CALLED["tool_calls"] * 2}], {}, "messages.1.tool_calls",
    ),
    "calls of the user": ([{**CALLED, "role": "user"}], {}, "messages.0.tool_calls"),
    "no content": ([{"role": "user"}], {}, "messages.0.content"),
    "an unknown tool": ([QUESTION], {"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    "a choice without tools": ([QUESTION], {"tools": [], "tool_choice": "required"}, "tool_choice"),
    "two tools with one name": ([QUESTION], {"tools": CHAT_TOOLS + CHAT_TOOLS[:1]}, "tools.2"),
    "another type": ([QUESTION], {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
    "a name with a space": ([QUESTION], {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    "arguments that are no object": (
        [QUESTION],
        {"tools": [{"type": "function", "function": {**CLOCK, "parameters": {"type": "string"}}}]},
        "tools.0.function.parameters.type",
    ),
    "a strict schema that cannot be enforced": (
        [QUESTION],
        {"tools": [{"type": "function", "function": {**WEATHER, "strict": True, "parameters": {"not": {"required": ["x"]}}}}]},
        "tools.0.function.parameters",
    ),
    "more characters of schemas than the limit": (
        [QUESTION],
        {"tools": [{"type": "function", "function": {"name": f"t{n}", "parameters": {"description": "x" * 90_000}}} for n in range(3)]},
        "tools",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(client: OpenAI, case: str) -> None:
    messages, more, param = REFUSED[case]
    with pytest.raises(openai.UnprocessableEntityError) as error:
        ask(client, *messages, **more)
    assert of(error)[1] == param, error.value.message


def test_tools_that_do_not_fit_into_the_context(client: OpenAI) -> None:
    tool = {"type": "function", "function": {**WEATHER, "description": "and then " * 1000}}
    with pytest.raises(openai.APIStatusError) as error:
        ask(client, QUESTION, tools=[tool])
    assert (error.value.status_code, of(error)[1]) == (413, "tools")


def test_a_loose_schema_that_cannot_be_enforced_allows_any_object(client: OpenAI) -> None:
    function = {**WEATHER, "parameters": {"not": {"required": ["x"]}}}
    choice = ask(
        client, QUESTION, tools=[{"type": "function", "function": function}], tool_choice=NAMED, max_tokens=60
    ).choices[0]
    assert choice.message.tool_calls[0].function.arguments.startswith("{")
