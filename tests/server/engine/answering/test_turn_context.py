"""What a message follows: the newest question that was one, and the messages of a prompt that begins anew."""

from __future__ import annotations

from unittest.mock import AsyncMock

import pytest
import torch

from everlong_models import MemoryState
from everlong_server.engine.answering.turn_context import Exchange, TurnContext, newest_exchanges
from everlong_server.store.records import Message, Session

ASKED = [Message("user", "Who is the captain?"), Message("assistant", "Ahab.")]
THANKED = [Message("user", "Thanks!"), Message("assistant", "You are welcome.")]


CAPTAIN = Exchange("Who is the captain?", "Ahab.")
BOATS = Exchange("How many boats?", "Four.")


def said(*exchanges: Exchange) -> list[Message]:
    return [m for each in exchanges for m in (Message("user", each.question), Message("assistant", each.answer))]


@pytest.mark.parametrize(
    ("messages", "newest"),
    [
        ([], []),
        (ASKED, [CAPTAIN]),
        ([*ASKED, *THANKED], [CAPTAIN]),
        (THANKED, [Exchange("Thanks!", "You are welcome.")]),
        ([*ASKED, Message("user", "How many boats?")], [CAPTAIN, Exchange("How many boats?", "")]),
        ([Message("system", "Be brief."), *ASKED], [CAPTAIN]),
        ([*ASKED, *THANKED, *said(BOATS)], [CAPTAIN, BOATS]),
        (said(CAPTAIN, BOATS, CAPTAIN, BOATS, CAPTAIN), [CAPTAIN, BOATS, CAPTAIN]),
    ],
)
def test_the_newest_exchanges_are_those_of_questions(messages: list[Message], newest: list[Exchange]) -> None:
    assert newest_exchanges(messages) == newest


def test_results_of_calls_are_no_question() -> None:
    messages = [*ASKED, Message("user", "<result>"), Message("assistant", "It is done.")]
    found = newest_exchanges(messages, lambda text: "" if text == "<result>" else text)
    assert found == [Exchange("Who is the captain?", "It is done.")], "the answer to the question, after the call"


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
        Session("", "", "", ()), MemoryState({"seen": torch.zeros(1)}), unread, (), AsyncMock(), system=system
    )
    messages = context.messages_from_start(Exchange("Who waited?", "Kitty."))
    assert [message.role for message in messages] == roles
    assert ("Who waited?" in [message.content for message in messages]) is (unread != ASKED)
