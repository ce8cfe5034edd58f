"""A session: a memory of documents, and a dialogue about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from everlong_client.types.document import Failure
from everlong_client.types.message import Recall

__all__ = ["Session"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A session on the server.

    `title`: its first question, or what it was given; None before that. `status` is reading, ready or failed; `documents` are their ids. `position` counts the tokens in its memory,
    `messages` those of the dialogue, `state_bytes` what the memory takes up. `recall` is that of messages that say nothing of it;
    None: what the server does. `created_at` is in Unix seconds.
    """

    id: str
    title: str | None = None
    documents: tuple[str, ...] = ()
    model: str | None = None
    status: str
    position: int = 0
    messages: int = 0
    recall: Recall | Literal[False] | None = None
    state_bytes: int = 0
    state_digest: str | None = None
    error: Failure | None = None
    created_at: float = 0
