"""What a message follows: the newest question that was one, and the messages of a prompt that begins anew."""

from __future__ import annotations

from unittest.mock import AsyncMock

import pytest
import torch

from everlong_models import MemoryState
from everlong_server.engine.answering.turn_context import Exchange, TurnContext, newest_exchange
from everlong_server.store.records import Message, Session

ASKED = [Message("user", "Who is the captain?"), Message("assistant", "Ahab.")]
THANKED = [Message("user", "Thanks!"), Message("assistant", "You are welcome.")]


@pytest.mark.parametrize(
    ("messages", "newest"),
    [
        ([], None),
        (ASKED, Exchange("Who is the captain?", "Ahab.")),
        ([*ASKED, *THANKED], Exchange("Who is the captain?", "Ahab.")),
        (THANKED, Exchange("Thanks!", "You are welcome.")),
        ([*ASKED, Message("user", "How many boats?")], Exchange("How many boats?", "")),
        ([Message("system", "Be brief."), *ASKED], Exchange("Who is the captain?", "Ahab.")),
    ],
)
def test_the_newest_exchange_is_that_of_a_question(messages: list[Message], newest: Exchange | None) -> None:
    assert newest_exchange(messages) == newest


def test_results_of_calls_are_no_question() -> None:
    messages = [*ASKED, Message("user", "<result>"), Message("assistant", "It is done.")]
    found = newest_exchange(messages, lambda text: "" if text == "<result>" else text)
    assert found == Exchange("Who is the captain?", "It is done."), "the answer to the question, after the call"


@pytest.mark.parametrize(
    ("system", "unread", "roles"),
    [
        (None, [], ["user", "assistant"]),
        ("Be brief.", [], ["system", "user", "assistant"]),
        ("Be brief.", [Message("system", "Be brief.")], ["system", "user", "assistant"]),
        ("Be brief.", [Message("system", "Be kind.")], ["system", "system", "user", "assistant"]),
        ("Be brief.", ASKED, ["system", "user", "assistant"]),
    ],
)
def test_a_prompt_that_begins_anew_has_each_message_once(
    system: str | None, unread: list[Message], roles: list[str]
) -> None:
    context = TurnContext(
        Session("", "", "", ()), MemoryState({"seen": torch.zeros(1)}), unread, None, AsyncMock(), system=system
    )
    messages = context.messages_from_start(Exchange("Who waited?", "Kitty."))
    assert [message.role for message in messages] == roles
    assert ("Who waited?" in [message.content for message in messages]) is (unread != ASKED)
