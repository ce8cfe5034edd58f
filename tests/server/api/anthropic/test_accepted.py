"""Fields and blocks of Anthropic's API that have no effect here are accepted, as programs written for Anthropic send them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from everlong_server.api.anthropic.conversation import parse_conversation
from everlong_server.api.anthropic.message_schemas import CreateAnthropicMessage
from everlong_server.errors import InvalidRequest
from everlong_server.store.records import Message

USER = {"role": "user", "content": "Who?"}
TOOL = {"name": "find", "input_schema": {"type": "object"}}


def request(*messages: dict[str, Any], **fields: Any) -> CreateAnthropicMessage:
    return CreateAnthropicMessage.model_validate({"model": "m", "max_tokens": 1, "messages": [*messages], **fields})


def services() -> Any:
    settings = SimpleNamespace(max_message_chars=500, max_session_documents=1)
    tools = SimpleNamespace(answer_text=lambda text, calls: "[call]", results_text="".join)
    return SimpleNamespace(shared=SimpleNamespace(settings=settings, model=SimpleNamespace(tools=tools)), passages=None)


async def test_thoughts_of_another_model_are_left_out() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    answer = {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "Dinah."}]}
    parsed = await parse_conversation(services(), request(USER, answer, USER))
    assert parsed.messages == [Message("user", "Who?"), Message("assistant", "Dinah."), Message("user", "Who?")]


def found(*texts: str) -> dict[str, Any]:
    """Return a search result, as a program sends what its own search found."""
    content = [{"type": "text", "text": text, "citations": None} for text in texts]
    more = {"citations": {"enabled": True}, "cache_control": {"type": "ephemeral"}}
    return {"type": "search_result", "source": "https://example.org/cats", "title": "Cats", "content": content, **more}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


CATS = "Cats\nSource: https://example.org/cats\n\nDinah purrs.\n\nShe is black."


async def test_search_results_are_read_as_text() -> None:
    result = found("Dinah purrs.", "She is black.")
    for content, expected in (
        ([result, text("Who?")], f"{CATS}\n\nWho?"),
        ([text("Who? "), result], f"Who? \n\n{CATS}"),
        ([text("Who?\n\n"), result, result, text("Sure?")], f"Who?\n\n{CATS}\n\n{CATS}\n\nSure?"),
        ([result], CATS),
    ):
        parsed = await parse_conversation(services(), request({"role": "user", "content": content}))
        assert parsed.messages == [Message("user", expected)]
        assert parsed.cites is False


async def test_search_results_of_a_tool() -> None:
    call = {"type": "tool_use", "id": "call_1", "name": "find", "input": {}}
    answer = {"role": "assistant", "content": [call]}
    content = [found("Dinah purrs.", "She is black."), text("One of 1.")]
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": content}
    parsed = await parse_conversation(services(), request(USER, answer, {"role": "user", "content": [result]}))
    assert parsed.messages[-1].content == f"{CATS}\n\nOne of 1."


async def test_an_answer_has_no_search_results() -> None:
    answer = {"role": "assistant", "content": [found("Dinah purrs.")]}
    with pytest.raises(InvalidRequest, match=r"^messages\.1\.content\.0: "):
        await parse_conversation(services(), request(USER, answer, USER))


def test_edits_of_the_context() -> None:
    """Claude Code sends them, and Vercel's AI SDK if it is told to. The server reads the whole conversation."""
    assert request(USER, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})


def test_a_tool_with_a_long_description() -> None:
    """Claude Code's own tools have such."""
    assert request(USER, tools=[TOOL | {"description": "x" * 20_000}])


def test_fields_of_a_tool_with_their_usual_values() -> None:
    """Claude Code sends the first."""
    usual = {"eager_input_streaming": True, "defer_loading": False, "allowed_callers": ["direct"]}
    assert request(USER, tools=[TOOL | usual])
    for name, value in (("defer_loading", True), ("allowed_callers", ["code_execution_20260120"])):
        with pytest.raises(ValidationError):
            request(USER, tools=[TOOL | {name: value}])
