"""`CreateSession`: the request for a new session; `past_messages`: its earlier messages, as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Header
from pydantic import ConfigDict, Field

from everlong_server.api.schemas import RECALL_DEFAULT, Citation, Evidence, Recall, Usage, Wire
from everlong_server.errors import InvalidRequest, TooLarge
from everlong_server.store.records import new_id, now

ClientName = Annotated[
    str,
    Header(
        alias="X-Everlong-Client",
        pattern=r"^[\w.-]{1,40}$",
        description="name of the program, which the new session has as its `client`",
    ),
]


class PastMessage(Wire):
    """A message of a conversation that a new session continues. Other fields of `Message` are accepted, and ignored."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["user", "assistant"]
    content: str = Field(description="text of the message; a question must not be empty")
    created_at: float | None = None
    model: str | None = Field(None, max_length=256)
    finish_reason: Literal["stop", "length", "repetition", "cancelled"] | None = None
    usage: Usage | None = None
    evidence: list[Evidence] | None = None
    citations: list[Citation] | None = None
    standalone_question: str | None = Field(None, min_length=1, pattern=r"\S")
    agreement: float | None = Field(None, ge=0, le=1)


class CreateSession(Wire):
    """A new session. Its documents are read in order into one memory."""

    documents: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(default_factory=list)
    model: str | None = Field(
        None, max_length=256, description="name of a model of the server; default: its first model"
    )
    recall: Recall | Literal[False] | None = Field(None, description=RECALL_DEFAULT)
    messages: list[PastMessage] = Field(
        [],
        max_length=1000,
        description="earlier questions and answers, in turn: the memory reads them with the next question",
    )
    title: str | None = Field(None, min_length=1, max_length=200, pattern=r"\S", description="null: the first question")
    parent: str | None = Field(None, max_length=128, description="the session that the messages come from")


def past_messages(messages: Sequence[PastMessage], max_chars: int) -> list[dict[str, Any]]:
    """Return the messages with new ids. Raises `InvalidRequest` unless questions and answers take turns, and `TooLarge`."""
    if len(messages) % 2:
        raise InvalidRequest("messages: the last one must be an answer", param="messages")
    stored = []
    for n, message in enumerate(messages):
        role = ("user", "assistant")[n % 2]
        if message.role != role:
            raise InvalidRequest(
                f"messages.{n}.role must be {role!r}, as questions and answers take turns", param="messages"
            )
        if role == "user" and not message.content.strip():
            raise InvalidRequest(f"messages.{n}.content: a question must not be empty", param="messages")
        for name, text in (("content", message.content), ("standalone_question", message.standalone_question or "")):
            if len(text) > max_chars:
                raise TooLarge(
                    f"messages.{n}.{name} has {len(text)} characters, the limit is {max_chars}", param="messages"
                )
        fields = message.model_dump(exclude_none=True)
        stored.append({"id": new_id("msg"), "object": "message", "created_at": now()} | fields)
    return stored
