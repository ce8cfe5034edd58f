"""Fields and blocks of Anthropic's API that have no effect here are accepted, as programs written for Anthropic send them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from everlong_server.api.anthropic.conversation import parse_conversation
from everlong_server.api.anthropic.message_schemas import CreateAnthropicMessage
from everlong_server.store.records import Message

USER = {"role": "user", "content": "Who?"}
TOOL = {"name": "find", "input_schema": {"type": "object"}}


def request(*messages: dict[str, Any], **fields: Any) -> CreateAnthropicMessage:
    return CreateAnthropicMessage.model_validate({"model": "m", "max_tokens": 1, "messages": [*messages], **fields})


async def test_thoughts_of_another_model_are_left_out() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    answer = {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "Dinah."}]}
    settings = SimpleNamespace(max_message_chars=100, max_session_documents=1)
    services: Any = SimpleNamespace(shared=SimpleNamespace(settings=settings), passages=None)
    parsed = await parse_conversation(services, request(USER, answer, USER))
    assert parsed.messages == [Message("user", "Who?"), Message("assistant", "Dinah."), Message("user", "Who?")]


def test_fields_of_a_tool_with_their_usual_values() -> None:
    """Claude Code sends the first."""
    usual = {"eager_input_streaming": True, "defer_loading": False, "allowed_callers": ["direct"]}
    assert request(USER, tools=[TOOL | usual])
    for name, value in (("defer_loading", True), ("allowed_callers", ["code_execution_20260120"])):
        with pytest.raises(ValidationError):
            request(USER, tools=[TOOL | {name: value}])
