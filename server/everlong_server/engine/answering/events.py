"""The events of a turn, in this order: created, evidence, a delta for each piece of text, calls of tools, completed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from everlong_server.store.messages import AnswerMessage
from everlong_server.store.texts.passage import Passage

E_co = TypeVar("E_co", covariant=True)


class EventStream(Protocol[E_co]):
    """Events that arrive one after the other. `aclose` stops the work that produces them."""

    def __aiter__(self) -> AsyncIterator[E_co]: ...

    async def aclose(self) -> None:
        """Stop the work, if it has not ended."""
        ...


@dataclass(frozen=True, slots=True)
class ResponseCreated:
    """The turn is admitted and begins. `message` has no text yet."""

    message: AnswerMessage


@dataclass(frozen=True, slots=True)
class ResponseEvidence:
    """The passages that the model sees, before the first token. `response_id`: the id of the answer."""

    response_id: str
    evidence: Sequence[Passage]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text, with its log-probabilities if they were requested."""

    response_id: str
    text: str
    logprobs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The answer calls the tool `name`. `index`: the number of the call in the answer, from 0; `id`: the id of the call."""

    response_id: str
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """The next piece of the arguments of the call `index`: JSON text."""

    response_id: str
    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ResponseCompleted:
    """The answer is complete and committed."""

    message: AnswerMessage


AnswerEvent = ResponseCreated | ResponseEvidence | TextDelta | ToolCallStarted | ToolArgumentsDelta | ResponseCompleted


class TurnEvents(AsyncIterator[AnswerEvent]):
    """The events of an admitted turn. `aclose` ends the turn, and frees its session and its slot, even if no event was taken.

    A generator around `following` could not do that: one that has not started runs none of its code when it is closed.
    """

    def __init__(self, first: AnswerEvent, following: AsyncGenerator[AnswerEvent, None]) -> None:
        self._first: AnswerEvent | None = first
        self._following = following

    async def __anext__(self) -> AnswerEvent:
        if (first := self._first) is not None:
            self._first = None
            return first
        return await anext(self._following)

    async def aclose(self) -> None:
        """End the turn, if it has not ended."""
        self._first = None
        await self._following.aclose()
