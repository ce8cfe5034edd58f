"""The `Idempotency-Key` header: replays the first result of a retried request instead of repeating the work."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Header
from pydantic import BaseModel

from everlong_server.api.answer_events import NativeEvent, native_event
from everlong_server.engine.answering.events import ResponseCompleted, TurnEvents
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord

T = TypeVar("T", bound=BaseModel)

_FORM: dict[str, Any] = {"alias": "Idempotency-Key", "min_length": 1, "max_length": 255, "pattern": r"^[\x21-\x7e]+$"}
IdempotencyKey = Annotated[
    str | None,
    Header(
        **_FORM, description="identifies this request: a retry with the same key and content returns the first result"
    ),
]
RequiredKey = Annotated[str, Header(**_FORM, description="the key of the request that is asked about")]


def content_of(body: BaseModel, *excluded: str) -> str:
    """Return what a request asks for, without the fields `excluded`, as JSON that all retries of the request share.

    Fields with their default do not count, nor does the order in which the schema declares them. So a server of another version, whose
    schema has further fields, computes the same.
    """
    given = body.model_dump_json(exclude_defaults=True, exclude=set(excluded))
    return json.dumps(json.loads(given), sort_keys=True)


async def run_once(
    services: Services,
    key: str | None,
    asked: tuple[str, ...],
    kind: type[T],
    make: Callable[[IdempotencyRecord], Awaitable[T]],
) -> T:
    """Return the result of `make`, or its recorded result if the key was used before. `asked`: the request's content.

    `make` gives the new object the id of the record. It is the same on every retry, so that `make` finds an object that was
    created by a server that died before it recorded the result.
    """
    async with await services.idempotency.begin(key) as record:
        await record.check_same_request(*asked)
        if record.answer is not None:
            return kind.model_validate(record.answer)
        made = await make(record)
        await record.finish(made.model_dump(mode="json"))
        return made


async def record_when_complete(record: IdempotencyRecord, events: TurnEvents) -> AsyncGenerator[NativeEvent, None]:
    """Yield the `events` of an answer. Records the result before the last event, or releases the key if there is none."""
    async with record, contextlib.aclosing(events):
        async for event in events:
            if isinstance(event, ResponseCompleted):
                await record.finish(event.message.json())
            yield native_event(event)
