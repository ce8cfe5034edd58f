"""`/v1/responses`: stored answers from which others can continue."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from fastapi.responses import Response as Answer
from pydantic import TypeAdapter

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of
from everlong_server.api.openai.response_events import replayed_events, response_events, response_view
from everlong_server.api.openai.response_requests import has_content, parse_request, with_model
from everlong_server.api.openai.response_schemas import (
    CountInputTokens,
    CreateResponse,
    InputItem,
    InputItemList,
    InputTokens,
    Response,
    ResponseDeleted,
)
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.api.streams.sse import event_stream
from everlong_server.api.translation.answer_once import answer_once
from everlong_server.engine.answering.responses import ResponseTurn
from everlong_server.errors import Conflict, InvalidRequest, NotFound
from everlong_server.services import Services
from everlong_server.store import responses as store
from everlong_server.store.idempotency import IdempotencyRecord

_INPUT_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])

router = APIRouter(prefix="/v1/responses", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post(
    "",
    response_model=Response,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def create(
    body: CreateResponse, request: Request, services: CallerServices, key: IdempotencyKey = None
) -> Answer:
    """Creates a response: as JSON, with `stream` as server-sent events, or with `background` later.

    With `previous_response_id` it continues from that response without prefilling it again;
    `usage.input_tokens_details.cached_tokens` counts the reused tokens. Instructions of earlier responses stay in the memory.
    A retry with the same Idempotency-Key returns the first response.
    """
    return await answer_once(
        services, request, key, ("response", content_of(body)),
        begin=lambda record: _begin(services, body, record),
        whole=lambda answering, record: _answered(record, answering),
        live=lambda answering, record: _recorded(record, response_events(answering)),
        replayed=replayed_events,
        send=partial(event_stream, keepalive_seconds=services.shared.settings.keepalive_seconds) if body.stream else None,
        made=lambda record: _made(services, body, record),
    )  # fmt: skip


@router.post("/input_tokens")
async def count_input_tokens(body: CountInputTokens, request: Request, services: CallerServices) -> InputTokens:
    """Counts the input tokens of a response as the model would get it, documents and passages included. Generates nothing.

    Documents of the request are stored and read, as for an answer.
    """
    return await run_unless_disconnected(request, _count(services, body))


async def _count(services: Services, body: CountInputTokens) -> InputTokens:
    asked = CreateResponse.model_validate(body.model_dump(exclude_unset=True, by_alias=True))
    services, response, previous = await _parsed(services, asked)
    await services.wait_for_memory(response.documents, inline=has_content(asked))
    return InputTokens(input_tokens=await services.response_turns.count_tokens(response, previous))


async def _made(services: Services, body: CreateResponse, record: IdempotencyRecord) -> dict[str, Any] | None:
    """Return a response that an earlier try stored before its server died, or that is queued; None if it must be answered now."""
    view = await _stored_view(services, record)
    return await _queued(services, body, record) if view is None and body.background else view


async def _stored_view(services: Services, record: IdempotencyRecord) -> dict[str, Any] | None:
    """Return the response that an earlier try stored before its server died; None if there is none."""
    if not record.first:
        with contextlib.suppress(NotFound):
            return response_view(await services.response_turns.get(f"resp_{record.id}"))
    return None


async def _parsed(
    services: Services, body: CreateResponse, record: IdempotencyRecord | None = None
) -> tuple[Services, store.Response, store.Response | None]:
    """Return the services with the model of the request; the requested response, with the id that every retry gives it if there is a
    `record`; and the one before it."""
    previous = await services.response_turns.previous(body.previous_response_id) if body.previous_response_id else None
    services = await with_model(services, body, previous)
    response = await parse_request(services, body, previous)
    if record is not None:
        response = replace(response, id=f"resp_{record.id}")
    return services, response, previous


async def _queued(services: Services, body: CreateResponse, record: IdempotencyRecord) -> dict[str, Any]:
    """Queue a background response and return it."""
    services, response, _ = await _parsed(services, body, record)
    if body.stream or not body.store:
        name = "stream" if body.stream else "store"
        raise InvalidRequest(
            f"{name}: a background response is always stored and never streamed; leave the field out", param=name
        )
    await services.response_turns.queue(response)
    return response_view(response)


async def _begin(services: Services, body: CreateResponse, record: IdempotencyRecord) -> ResponseTurn:
    """Start to answer a response."""

    async def keep(answered: store.Response) -> None:
        if not await record.is_owner():
            raise Conflict("another server has taken this request over: retry it", param="Idempotency-Key")
        await services.response_turns.keep(answered)

    services, response, previous = await _parsed(services, body, record)
    await services.wait_for_memory(response.documents, inline=has_content(body))
    return await services.response_turns.begin(response, previous, keep if body.store else None)


async def _recorded(
    record: IdempotencyRecord, events: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a response. Records it before the last event, or releases the key if it failed."""
    async with record, contextlib.aclosing(events):
        async for event in events:
            if event["type"] in ("response.completed", "response.incomplete"):
                await record.finish(event["response"])
            yield event


@router.get("/{response_id}", response_model=Response)
async def get(
    response_id: str, services: CallerServices, stream: Annotated[bool, Query(description="not supported")] = False
) -> JSONResponse:
    """Returns a stored response. A background response has ended once `status` is neither "queued" nor "in_progress"."""
    if stream:
        raise InvalidRequest("stream: a stored response cannot be streamed; leave the field out", param="stream")
    return JSONResponse(response_view(await services.response_turns.get(response_id)))


@router.delete("/{response_id}")
async def delete(response_id: str, services: CallerServices) -> ResponseDeleted:
    """Cancels a response and deletes it with its memory. Responses that continue from it keep their memory."""
    await services.response_turns.delete(response_id)
    return ResponseDeleted(id=response_id)


@router.post("/{response_id}/cancel", response_model=Response)
async def cancel(response_id: str, services: CallerServices) -> JSONResponse:
    """Cancels a background response. A response that has ended stays unchanged."""
    return JSONResponse(response_view(await services.response_turns.cancel(response_id)))


@router.get("/{response_id}/input_items", response_model_exclude_none=True)
async def input_items(
    response_id: str,
    services: CallerServices,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=128, description="last id of the previous page")] = None,
) -> InputItemList:
    """Lists the input items of a response, without those of the responses before it."""
    response = await services.response_turns.get(response_id)
    items = _INPUT_ITEMS.validate_python(response.request["items"])
    if order == "desc":
        items.reverse()
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise NotFound(f"after: no item {after!r} in this response", param="after")
    start = ids.index(after) + 1 if after is not None else 0
    data = items[start : start + limit]
    return InputItemList.of(data, more=start + limit < len(items))


async def _answered(record: IdempotencyRecord, answering: ResponseTurn) -> dict[str, Any]:
    """Wait for the answer, record the response and return it."""
    async with contextlib.aclosing(answering.events) as turn:
        async for _ in turn:
            pass
        view = response_view(answering.response)
        await record.finish(view)
    return view
