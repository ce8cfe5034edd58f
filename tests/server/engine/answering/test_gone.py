"""A caller that disconnects before the first token cancels the whole answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from starlette.requests import ClientDisconnect, Request

from everlong_server.api import schemas
from everlong_server.api.native import sessions
from everlong_server.api.openai import chat, responses_http
from everlong_server.api.openai.chat import CreateChatCompletion
from everlong_server.api.openai.response_schemas import CreateResponse
from everlong_server.engine.answering.turn import Turn
from everlong_server.errors import Overloaded
from everlong_server.store.idempotency import IdempotencyRecord


class Slow:
    """A turn that takes long to begin, such as one that waits for an index."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), 0

    async def begin(self, *_: Any, **__: Any) -> Any:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


def leaving(slow: Slow) -> Request:
    """A request whose caller disconnects once the turn has begun."""

    async def receive() -> dict[str, Any]:
        await slow.begun.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_message(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    slow, services = Slow(), Any
    monkeypatch.setattr(sessions, "_events", slow.begin)
    body = schemas.CreateMessage(content="Who?", stream=stream)
    with pytest.raises(ClientDisconnect):
        await sessions.send("ses_1", body, leaving(slow), services)  # type: ignore[arg-type]
    assert slow.ended == 1


@dataclass
class Parsed:
    """What a request becomes: a response."""

    id: str
    documents: tuple[str, ...] = ()


class Attempts:
    """Idempotency records, for requests without a key."""

    async def begin(self, key: str | None) -> IdempotencyRecord:
        return IdempotencyRecord(self, None, "", "attempt", "", None, first=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    slow = Slow()

    async def parse_request(*_: Any) -> Parsed:
        return Parsed("resp_1")

    monkeypatch.setattr(responses_http, "parse_request", parse_request)
    shared = SimpleNamespace(settings=SimpleNamespace(keepalive_seconds=15))
    turns = SimpleNamespace(begin=slow.begin, keep=None)
    services: Any = SimpleNamespace(response_turns=turns, idempotency=Attempts(), shared=shared)
    services.wait_for_memory = AsyncMock()
    monkeypatch.setattr(responses_http, "with_model", AsyncMock(return_value=services))
    with pytest.raises(ClientDisconnect):
        await responses_http.create(CreateResponse(input="Who?", stream=stream), leaving(slow), services)
    assert slow.ended == 1


class Chats:
    """Begins the first turn at once, and the other turns with `others`."""

    def __init__(self, others: Any) -> None:
        self.others, self.asked, self.closed = others, 0, 0

    async def answer(self, *_: Any, **__: Any) -> Turn:
        self.asked += 1
        if self.asked > 1:
            await asyncio.sleep(0)
            await self.others()
        turn, events = Turn("msg_1"), SimpleNamespace(aclose=self.close)
        turn.events = events  # type: ignore[assignment]
        return turn

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    async def parsed(*_: Any) -> tuple[list[str], list[str]]:
        return [], []

    monkeypatch.setattr(chat, "_parse_messages", parsed)
    monkeypatch.setattr(chat, "answer_recall", lambda *_: None)


def completion(stream: bool) -> CreateChatCompletion:
    return CreateChatCompletion(model="tiny", messages=[{"role": "user", "content": "Who?"}], n=3, stream=stream)  # type: ignore[list-item]


def services_of(chats: Chats) -> Any:
    record = AsyncMock(answer=None)
    model = SimpleNamespace(name="tiny", fingerprint="0" * 64, tools=None)
    shared = SimpleNamespace(model=model, settings=SimpleNamespace(keepalive_seconds=15))
    idempotency = AsyncMock(begin=AsyncMock(return_value=record))
    services = SimpleNamespace(
        chat_turns=chats, shared=shared, idempotency=idempotency, wait_for_memory=AsyncMock(), quota=Mock()
    )
    services.with_model = AsyncMock(return_value=services)
    return services


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_of_a_chat(stream: bool) -> None:
    slow = Slow()
    chats = Chats(slow.begin)
    services = services_of(chats)
    with pytest.raises(ClientDisconnect):
        await chat.create(completion(stream), leaving(slow), services)
    assert (slow.ended, chats.closed) == (2, 1)


@pytest.mark.usefixtures("_plain")
async def test_if_one_answer_is_refused_all_are_cancelled() -> None:
    async def refuse() -> None:
        raise Overloaded("full")

    chats, slow = Chats(refuse), Slow()
    services = services_of(chats)
    with pytest.raises(Overloaded, match="full"):
        await chat.create(completion(False), leaving(slow), services)
    assert (chats.asked, chats.closed) == (3, 1)
