"""Conversations in every order that OpenAI's API accepts become the order that chat templates have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from everlong_models import Tokenizer, ToolCall, ToolFormat
from everlong_server.api.translation.messages import ParsedMessages
from everlong_server.errors import InvalidRequest
from tests.tinymodel import HERMES, make_tokenizer

ORDERS: dict[str, tuple[list[str], list[str]]] = {
    "usual": (["system S", "user A", "assistant B", "user C"], ["system S", "user A", "assistant B", "user C"]),
    "a system message before a later question": (
        ["user A", "assistant B", "system S", "user C"], ["user A", "assistant B", "system S", "user C"],
    ),
    "a system message at the end": (["user A", "system S"], ["system S", "user A"]),
    "a reminder after each question": (
        ["system S", "user A", "system T", "assistant B", "user C", "developer U"],
        ["system S\n\nT", "user A", "assistant B", "system U", "user C"],
    ),
    "a system message between questions": (["user A", "system S", "user B"], ["system S", "user A\n\nB"]),
    "a system message alone": (["system S", "developer T"], ["user S\n\nT"]),
    "a system message after the answer": (["user A", "assistant B", "system S"], ["user A", "assistant B", "user S"]),
    "a greeting": (["assistant B", "user A"], ["user ", "assistant B", "user A"]),
    "a greeting after a system message": (
        ["system S", "assistant B", "user A"], ["system S", "user ", "assistant B", "user A"],
    ),
}  # fmt: skip


def parsed(format: ToolFormat | None = None) -> ParsedMessages:
    settings = SimpleNamespace(max_message_chars=100, max_session_documents=1)
    services: Any = SimpleNamespace(shared=SimpleNamespace(settings=settings, model=SimpleNamespace(tools=format)))
    return ParsedMessages(services)


async def order_of(messages: ParsedMessages) -> list[str]:
    return [f"{message.role} {message.content}" for message in (await messages.finish("messages"))[1]]


@pytest.mark.parametrize("case", ORDERS)
async def test_orders(case: str) -> None:
    given, expected = ORDERS[case]
    messages = parsed()
    for number, message in enumerate(given):
        messages.add_message(*message.split(" "), f"messages.{number}")
    assert await order_of(messages) == expected


async def test_an_answer_at_the_end_is_refused() -> None:
    messages = parsed()
    messages.add_message("assistant", "Hello.", "messages.0")
    with pytest.raises(InvalidRequest, match=r"messages\.0\.role: the last message must be the user's, got assistant"):
        await messages.finish("messages")


async def test_a_system_message_after_a_result_precedes_it() -> None:
    """But none comes between a call and its result, as with OpenAI."""
    format = ToolFormat.of(Tokenizer(make_tokenizer(template=HERMES)))
    assert format is not None
    messages = parsed(format)
    messages.add_message("user", "A", "messages.0")
    call = ToolCall("call_0", "add", "{}")
    messages.add_calls([call], "messages.1")
    with pytest.raises(InvalidRequest, match="no result for the call 'call_0'"):
        messages.add_message("system", "S", "messages.2")
    messages.add_result("call_0", "7", "messages.2", "tool_call_id")
    messages.add_message("system", "S", "messages.3")
    called, results = format.answer_text("", [call]), format.results_text(["7"])
    assert await order_of(messages) == ["user A", f"assistant {called}", "system S", f"user {results}"]
