"""A model whose chat template has no tools refuses them by name."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.api.openai.talk import MODEL, chat, of, respond, user

FUNCTION = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}


def test_tools_are_refused(client: OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match=f"the model {MODEL} has no tool format") as error:
        chat(client, user("Hi."), tools=[{"type": "function", "function": FUNCTION}])
    assert of(error) == ("tools_not_supported", "tools")
    with pytest.raises(openai.UnprocessableEntityError, match=f"the model {MODEL} has no tool format") as error:
        respond(client, "Hi.", tools=[{"type": "function", **FUNCTION}])
    assert of(error) == ("tools_not_supported", "tools")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "assistant", "tool_calls": [CALL]}], "messages.1.tool_calls"),
        ([{"role": "tool", "tool_call_id": "a", "content": "3"}], "messages.1"),
    ],
)
def test_calls_and_results_are_refused(client: OpenAI, messages: list[Any], param: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        chat(client, user("Hi."), *messages)
    assert of(error) == ("tools_not_supported", param)


def test_without_tools_their_fields_have_no_effect(client: OpenAI) -> None:
    plain = chat(client, user("Hi."))
    same = chat(client, user("Hi."), tools=[], tool_choice="auto", parallel_tool_calls=False)
    assert same.choices[0].message.content == plain.choices[0].message.content
