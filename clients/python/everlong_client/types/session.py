"""A session: a memory of documents, and messages about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from everlong_client.types.document import Failure
from everlong_client.types.message import Recall


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A session on the server.

    `title` is the first question or the title that was set; None before either. `documents` are the documents' ids.
    `status` is reading, ready or failed. `position` is the number of tokens in the memory, `messages` the number of
    messages, `state_bytes` the size of the memory. `answering`: whether a message is being answered. `recall` is the default for messages that do not set it; None is the
    server's default. `created_at` is in Unix seconds. `parent` is the session that it branched off from. `client` is the program that
    created it.
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
    answering: bool = False
    parent: str | None = None
    client: str | None = None
