"""`tool_choice` of the type `allowed_tools`: the model is shown all tools, and may call some of them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.api.openai.talk import of, over, user
from tests.server.api.openai.tools.talk import MODEL, TOOLS, ask, check_call, respond

QUESTION = user("How is the weather in Paris?")
NAMES = ["get_weather", "get_time"]


def in_chats(*names: str, mode: str = "required") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def in_responses(*names: str, mode: str = "required") -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


@pytest.mark.parametrize("name", NAMES)
def test_only_the_allowed_functions_are_called(client: OpenAI, name: str) -> None:
    completion = ask(client, QUESTION, tool_choice=in_chats(name))
    for call in completion.choices[0].message.tool_calls:
        assert call.function.name == name
        check_call(name, call.function.arguments)
    free = ask(client, QUESTION, tool_choice="required")
    assert completion.usage.prompt_tokens == free.usage.prompt_tokens, "the model is shown all functions"
    calls = respond(client, QUESTION["content"], tool_choice=in_responses(name)).output
    assert {(call.type, call.name) for call in calls} == {("function_call", name)}


def test_all_may_be_allowed(client: OpenAI) -> None:
    free, allowed = (ask(client, QUESTION, tool_choice=choice) for choice in ("required", in_chats(*NAMES)))
    calls, others = (each.choices[0].message.tool_calls for each in (free, allowed))
    assert [call.function for call in calls] == [call.function for call in others]


def test_auto_decides_by_itself_whether_to_call(client: OpenAI) -> None:
    said = ask(client, QUESTION, tool_choice=in_chats("get_time", mode="auto"), max_tokens=8).choices[0]
    assert {call.function.name for call in said.message.tool_calls or []} <= {"get_time"}
    assert said.message.content or said.message.tool_calls
    response = respond(client, "How is it?", tool_choice=in_responses("get_time", mode="auto"), max_output_tokens=8)
    assert response.tool_choice.type == "allowed_tools"
    assert response.tool_choice.tools == [{"type": "function", "name": "get_time"}]


def test_a_response_in_the_background_keeps_the_choice(client: OpenAI) -> None:
    """It is stored until it is answered."""
    queued = respond(client, QUESTION["content"], tool_choice=in_responses("get_time"), background=True)
    calls = over(client, queued.id).output
    assert {call.name for call in calls} == {"get_time"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": in_chats("fly")}, "tool_choice"),
        ({"tool_choice": in_chats("get_time"), "tools": []}, "tool_choice"),
        ({"tool_choice": in_chats()}, "tool_choice.allowed_tools.tools"),
        ({"tool_choice": in_chats("get_time", mode="none")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": in_responses("get_time")}, "tool_choice.allowed_tools"),
    ],
)
def test_what_is_invalid_in_a_chat(client: OpenAI, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        ask(client, QUESTION, **change)
    assert of(error)[1] == param


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (in_responses("fly"), "tool_choice"),
        (in_responses("get_time") | {"tools": [{"type": "file_search"}]}, "tool_choice"),
        (in_responses("get_time") | {"tools": [{"type": "mcp", "server_label": "x"}]}, "tool_choice.tools.0"),
        (in_chats("get_time"), "tool_choice.mode"),
    ],
)
def test_what_is_invalid_in_a_response(client: OpenAI, choice: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        respond(client, "Hi", tool_choice=choice, tools=TOOLS)
    assert of(error)[1] == param


def test_the_search_can_be_left_out(client: OpenAI) -> None:
    """With functions and a search among the tools, each can be allowed alone."""
    store = client.vector_stores.create(name="empty").id
    search = {"type": "file_search", "vector_store_ids": [store]}
    given = {"model": MODEL, "input": "How is it?", "tools": [*TOOLS, search], "max_output_tokens": 200}
    called = client.responses.create(**given, tool_choice=in_responses("get_time"))
    assert {item.type for item in called.output} == {"function_call"}
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "file_search"}]}
    searched = client.responses.create(**given, tool_choice=only)
    assert [item.type for item in searched.output] == ["file_search_call", "message"]
    client.vector_stores.delete(store)
