"""`TurnContext`: what a message follows, and how the message and its answer are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everlong_models import EverlongModelError, MemoryState, Model
from everlong_server.engine.answering.search.question import search_query
from everlong_server.engine.snapshots import decode_snapshot
from everlong_server.errors import StateUnusable
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Message, Session
from everlong_server.store.snapshot import Snapshot

MOST_EXCHANGES = 3
"""Questions and answers before a message that it can refer to."""


class Exchange(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a message follows: `session` as committed, its memory `state`, and `unread` messages that are not in them yet.

    `exchanges`: the newest user messages before it that have words to search for, and their answers, the newest last; with `continued`, the exchange that is
    extended.
    `commit`: stores the message, its answer and the snapshot after it.
    `memory_progress`: see `AnswerMessage`. `instructions`: a system message for this answer alone. `continued`: the answer that is
    extended instead of answering a message, `last` the tokens of it that the model reads once more, and `added` the text that follows it before
    anything is generated.
    `system`: the conversation's system message or instructions, also if the memory has read them.
    """

    session: Session
    state: MemoryState
    unread: Sequence[Message]
    exchanges: Sequence[Exchange]
    commit: Callable[[AnswerMessage, Snapshot], Awaitable[None]]
    memory_progress: float | None = None
    instructions: str | None = None
    continued: AnswerMessage | None = None
    last: Sequence[int] = ()
    added: str = ""
    system: str | None = None

    @property
    def previous(self) -> Exchange | None:
        """The newest of the exchanges."""
        return self.exchanges[-1] if self.exchanges else None

    @property
    def has_history(self) -> bool:
        """Whether there are earlier messages of the user or the model."""
        return self.session.messages > 0 or any(message.role != "system" for message in self.unread)

    @property
    def all_open(self) -> bool:
        """Whether all that the session has read is in its open segment."""
        snapshot = self.session.snapshot
        return 0 < snapshot.position == len(snapshot.open)

    @property
    def unread_messages(self) -> list[Message]:
        """The messages before the question that the memory has not read, after the instructions of the message."""
        return [*([Message("system", self.instructions)] if self.instructions else []), *self.unread]

    def messages_from_start(self, previous: Exchange | None) -> list[Message]:
        """Return the messages before the question if the answer attends to none that the memory has read: the system message, `previous` if no user message
        is unread, and the unread messages."""
        system = [] if self.system is None else [Message("system", self.system)]
        unread = [m for m in self.unread_messages if m.role != "system" or m.content not in (self.system or "")]
        if previous is None or any(message.role == "user" for message in unread):
            return [*system, *unread]
        return [*system, *unread, Message("user", previous.question), Message("assistant", previous.answer)]


def newest_exchanges(messages: Sequence[Message], question_of: Callable[[str], str] = str) -> list[Exchange]:
    """Return the newest questions with words to search for and what the model answered, at most `MOST_EXCHANGES`, the newest last; without such a question,
    the newest exchange.

    `question_of`: returns what the user asked with a message; "" if it has only results of calls.
    """
    found: list[Exchange] = []
    other: Exchange | None = None
    answer = ""
    for message in reversed(messages):
        if message.role == "assistant":
            answer = answer or message.content
        elif message.role == "user" and (question := question_of(message.content)):
            exchange = Exchange(question, answer)
            answer = ""
            if search_query(question, None) is None:
                other = other or exchange
                continue
            found.insert(0, exchange)
            if len(found) == MOST_EXCHANGES:
                break
    return found or ([other] if other else [])


def load_state(session: Session, model: Model) -> MemoryState:
    """Return the session's memory. Raises `StateUnusable`."""
    try:
        return decode_snapshot(session.snapshot, model)
    except EverlongModelError as error:
        raise StateUnusable(f"the stored state of session {session.id!r} is damaged: {error}") from error
