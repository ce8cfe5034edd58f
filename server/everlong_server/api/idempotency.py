"""`Idempotency-Key`: a request that is sent again with the same key is answered again, not done again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Header
from pydantic import BaseModel

from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord

T = TypeVar("T", bound=BaseModel)
Event = dict[str, Any]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="names this request: sent again with the same key and content, it is answered again and not done again",
    ),
]


async def run_once(
    services: Services, key: str | None, asked: tuple[str, ...], kind: type[T], make: Callable[[str], Awaitable[T]]
) -> T:
    """What `make` returns, which is given the id of what it makes; or what it returned when `asked` the same before.

    `make` finds out by the id whether it was done before by a server that has been killed since.
    """
    async with await services.idempotency.begin(key) as record:
        await record.is_for(*asked)
        if record.answer is not None:
            return kind.model_validate(record.answer)
        made = await make(record.id)
        await record.finish(made.model_dump(mode="json"))
        return made


async def record_when_complete(
    record: IdempotencyRecord, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """The `events` of an answer; the record is finished before its end is told, and given up if it has none."""
    async with record, contextlib.aclosing(events):
        async for event in events:
            if event["type"] == "response.completed":
                await record.finish(event["message"])
            yield event


async def replay(message: Event) -> AsyncGenerator[Event, None]:
    """The events of an answer that was given before: its text comes at once."""
    head = {k: message[k] for k in ("id", "object", "role", "session", "model", "created_at", "seed") if k in message}
    yield {"type": "response.created", "response": head}
    yield {"type": "response.evidence", "response_id": message["id"], "evidence": message.get("evidence") or []}
    logprobs = {"logprobs": message["logprobs"]} if message.get("logprobs") else {}
    yield {"type": "response.output_text.delta", "response_id": message["id"], "delta": message["content"], **logprobs}
    yield {"type": "response.completed", "message": message}
