"""`TurnContext`: what a message follows, and how the message and its answer are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everlong_models import EverlongModelError, MemoryState, Model
from everlong_server.engine.snapshots import decode_snapshot
from everlong_server.errors import StateUnusable
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Message, Session
from everlong_server.store.snapshot import Snapshot


class Exchange(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a message follows: `session` as committed, its memory `state`, and `unread` messages that are not in them yet.

    `previous`: the user message before it and its answer; with `continued`, the exchange that is extended. `commit`: stores the message, its answer and the snapshot after it.
    `memory_progress`: see `AnswerMessage`. `instructions`: a system message for this answer alone. `continued`: the answer that is
    extended instead of answering a message, `last` the tokens of it that the model reads once more, and `added` the text that follows it before
    anything is generated.
    `instructed`: the message or the conversation has a system message or instructions.
    """

    session: Session
    state: MemoryState
    unread: Sequence[Message]
    previous: Exchange | None
    commit: Callable[[AnswerMessage, Snapshot], Awaitable[None]]
    memory_progress: float | None = None
    instructions: str | None = None
    continued: AnswerMessage | None = None
    last: Sequence[int] = ()
    added: str = ""
    instructed: bool = False


def load_state(session: Session, model: Model) -> MemoryState:
    """Return the session's memory. Raises `StateUnusable`."""
    try:
        return decode_snapshot(session.snapshot, model)
    except EverlongModelError as error:
        raise StateUnusable(f"the stored state of session {session.id!r} is damaged: {error}") from error
