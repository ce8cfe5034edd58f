"""`TurnContext`: what a message follows, and how the message and its answer are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everlong_models import EverlongModelError, MemoryState, Model, decode_state
from everlong_server.errors import StateUnusable
from everlong_server.store.records import Message, Session

Event = dict[str, Any]
Written = dict[str, Any]
"""The fields of a session that an answer changes: state, open segment, position."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a message follows: `session` as committed, its memory `state`, and `unread` messages that are not in them yet.

    `previous_question`: the user message before it. `commit`: stores the message and its answer.
    """

    session: Session
    state: MemoryState
    unread: Sequence[Message]
    previous_question: str | None
    commit: Callable[[Event, Written], Awaitable[None]]


def load_state(session: Session, model: Model) -> MemoryState:
    """Return the session's memory. Raises `StateUnusable`."""
    if session.state is None and not session.state_bytes:
        return model.memory.initial_state(1).to("cpu")
    try:
        return decode_state(session.state or b"", model.fingerprint)
    except EverlongModelError as error:
        raise StateUnusable(f"the stored state of session {session.id!r} is damaged: {error}") from error
