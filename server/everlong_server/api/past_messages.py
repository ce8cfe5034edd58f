"""`past_messages`: the messages that a session is created with, as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlong_server.api.schemas import PastMessage
from everlong_server.errors import InvalidRequest, TooLarge
from everlong_server.store.records import new_id, now


def past_messages(messages: Sequence[PastMessage], max_chars: int) -> list[dict[str, Any]]:
    """Return the messages with new ids. Raises `InvalidRequest` unless questions and answers take turns, and `TooLarge`."""
    if len(messages) % 2:
        raise InvalidRequest("messages: the last one must be an answer", param="messages")
    stored = []
    for n, message in enumerate(messages):
        role = ("user", "assistant")[n % 2]
        if message.role != role:
            raise InvalidRequest(
                f"messages.{n}.role: must be {role!r}, as questions and answers take turns", param="messages"
            )
        if role == "user" and not message.content:
            raise InvalidRequest(f"messages.{n}.content: a question must not be empty", param="messages")
        if len(message.content) > max_chars:
            raise TooLarge(
                f"messages.{n}.content has {len(message.content)} characters, the limit is {max_chars}",
                param="messages",
            )
        fields = message.model_dump(exclude_none=True)
        stored.append({"id": new_id("msg"), "object": "message", "created_at": now()} | fields)
    return stored
