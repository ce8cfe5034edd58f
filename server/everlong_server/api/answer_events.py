"""The events of an answer as JSON objects, in the format of the native API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from everlong_server.engine.answering.events import (
    AnswerEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvidence,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
)
from everlong_server.store.messages import evidence_json

NativeEvent = dict[str, Any]


def native_event(event: AnswerEvent) -> NativeEvent:
    """Return an event of a running answer."""
    match event:
        case ResponseCreated(message):
            return _created(message.head())
        case ResponseEvidence(response_id, evidence):
            return _evidence(response_id, [evidence_json(passage) for passage in evidence])
        case TextDelta(response_id, text, logprobs):
            return _delta(response_id, text, logprobs)
        case ResponseCompleted(message):
            return _completed(message.json())
        case ToolCallStarted() | ToolArgumentsDelta():
            raise AssertionError("no message of a session has tools")


async def replayed_events(message: dict[str, Any]) -> AsyncGenerator[NativeEvent, None]:
    """Yield the events of a recorded answer, with its text in one piece."""
    head = ("id", "object", "role", "session", "model", "created_at", "seed")
    yield _created({name: message[name] for name in head if name in message})
    yield _evidence(message["id"], message.get("evidence") or [])
    yield _delta(message["id"], message["content"], message.get("logprobs"))
    yield _completed(message)


def _created(head: dict[str, Any]) -> NativeEvent:
    return {"type": "response.created", "response": head}


def _evidence(response_id: str, evidence: list[dict[str, Any]]) -> NativeEvent:
    return {"type": "response.evidence", "response_id": response_id, "evidence": evidence}


def _delta(response_id: str, text: str, logprobs: list[dict[str, Any]] | None) -> NativeEvent:
    delta = {"type": "response.output_text.delta", "response_id": response_id, "delta": text}
    return delta | ({"logprobs": logprobs} if logprobs else {})


def _completed(message: dict[str, Any]) -> NativeEvent:
    return {"type": "response.completed", "message": message}
