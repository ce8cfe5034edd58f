"""`answer_once`: from a request for an answer to its HTTP response, as JSON or as a stream, once for each `Idempotency-Key`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord

Begun = TypeVar("Begun")
View = dict[str, Any]
"""An answer, or a part of its stream, in the format of an API."""


async def answer_once(
    services: Services,
    request: Request,
    key: str | None,
    asked: tuple[str, str],
    *,
    begin: Callable[[IdempotencyRecord], Coroutine[Any, Any, Begun]],
    whole: Callable[[Begun, IdempotencyRecord], Coroutine[Any, Any, View]],
    live: Callable[[Begun, IdempotencyRecord], AsyncGenerator[View, None]],
    replayed: Callable[[View], AsyncGenerator[View, None]],
    send: Callable[[AsyncGenerator[View, None]], Response] | None,
    made: Callable[[IdempotencyRecord], Coroutine[Any, Any, View | None]] | None = None,
) -> Response:
    """Return the response to a request, or the recorded answer if the key was used before.

    If the client disconnects, ends the work and raises `ClientDisconnect`.

    `asked`: the request's content. `begin`: starts the work, and raises every refusal of it. Then `whole` waits for the answer, or
    `live` yields it in parts; both record it. `replayed`: yields a recorded answer in parts. `send`: makes a stream of the parts; None:
    the answer is sent as JSON. `made`: returns an answer that needs no work.
    """
    record = await services.idempotency.begin(key)
    try:
        await record.check_same_request(*asked)
        answer: View | None = record.answer
        if answer is None and made is not None:
            answer = await made(record)
        if answer is not None:
            await record.finish(answer)
        else:
            begun = await run_unless_disconnected(request, begin(record))
            if send is not None:
                return send(live(begun, record))
            answer = await run_unless_disconnected(request, whole(begun, record))
    except BaseException as error:
        await record.give_up(error)
        raise
    return JSONResponse(answer) if send is None else send(replayed(answer))
