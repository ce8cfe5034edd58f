"""The events of one answer, the same over SSE and WebSocket, and `Answer`, which parses and collects them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from everlong_client.errors import StreamError, UnexpectedAnswerError
from everlong_client.types.message import Evidence, Message
from everlong_client.types.record import from_json


@dataclass(frozen=True, slots=True)
class ResponseCreated:
    """The server accepted the message; `id` is the answer's id."""

    id: str
    type: Literal["response.created"] = "response.created"


@dataclass(frozen=True, slots=True)
class ResponseEvidence:
    """The passages that the model is given for the answer, best first."""

    evidence: tuple[Evidence, ...]
    type: Literal["response.evidence"] = "response.evidence"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text."""

    delta: str
    type: Literal["response.output_text.delta"] = "response.output_text.delta"


@dataclass(frozen=True, slots=True)
class ResponseCompleted:
    """The answer is complete or was cancelled: see the message's `finish_reason`."""

    message: Message
    type: Literal["response.completed"] = "response.completed"


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """An event of a newer server that this client does not know. `data` is the whole event."""

    type: str
    data: Mapping[str, Any]


Event: TypeAlias = ResponseCreated | ResponseEvidence | TextDelta | ResponseCompleted | OtherEvent


class Answer:
    """Parses the events of one answer, one by one.

    `ended` is true when no further event will follow: the answer is complete, or it failed.
    """

    def __init__(self) -> None:
        self.ended = False
        self._message: Message | None = None

    @classmethod
    def finished(cls) -> Answer:
        """Return an answer that has already ended, for a connection without a running answer."""
        answer = cls()
        answer.ended = True
        return answer

    @property
    def message(self) -> Message:
        """The complete answer. Raises `StreamError` until it is complete."""
        if self._message is None:
            raise StreamError("the answer is not complete")
        return self._message

    def feed(self, data: str | bytes, event: str = "") -> Event:
        """Parse one event from the JSON `data`. `event` is its type if the data has none.

        Raises `StreamError` for an `error` event and for an invalid event.
        """
        try:
            return self._parse(json.loads(data), event)
        except (ValueError, TypeError, KeyError, AttributeError, UnexpectedAnswerError) as error:
            self.ended = True
            raise StreamError(f"the server sent an invalid event: {data[:200]!r}") from error

    def truncated(self) -> StreamError:
        """Return the error for a stream that ended before the answer was complete."""
        self.ended = True
        return StreamError("the stream ended before the answer was complete")

    def _parse(self, data: dict[str, Any], event: str) -> Event:
        match kind := data.get("type", event):
            case "response.created":
                return ResponseCreated(data["response"]["id"])
            case "response.evidence":
                return ResponseEvidence(tuple(from_json(Evidence, item) for item in data["evidence"]))
            case "response.output_text.delta":
                return TextDelta(data["delta"])
            case "response.completed":
                self._message = from_json(Message, data["message"])
                self.ended = True
                return ResponseCompleted(self._message)
            case "error":
                self.ended = True
                error = data["error"]
                raise StreamError(
                    error["message"], code=error.get("code"), type=error.get("type"), param=error.get("param"),
                    retry_after=error.get("retry_after"),
                )  # fmt: skip
            case _:
                return OtherEvent(kind, data)
