"""`/v1/responses`: stored answers from which others can continue."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from fastapi.responses import Response as Answer

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.disconnect import run_unless_disconnected
from everlong_server.api.errors import CLIENT_CLOSED, ERROR_RESPONSES
from everlong_server.api.openai.response_events import response_events, response_view
from everlong_server.api.openai.response_requests import parse_request
from everlong_server.api.openai.response_schemas import (
    CreateResponse,
    InputItem,
    InputItemList,
    Response,
    ResponseDeleted,
)
from everlong_server.api.sse import event_stream
from everlong_server.api.views import CallerServices
from everlong_server.engine.answering.responses import ResponseTurn
from everlong_server.errors import InvalidRequest, NotFound

router = APIRouter(prefix="/v1/responses", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post(
    "",
    response_model=Response,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def create(body: CreateResponse, request: Request, services: CallerServices) -> Answer:
    """Creates a response: as JSON, with `stream` as server-sent events, or with `background` later.

    With `previous_response_id` it continues from that response without prefilling it again;
    `usage.input_tokens_details.cached_tokens` counts the reused tokens. Instructions of earlier responses stay in the memory.
    """
    previous = await services.response_turns.previous(body.previous_response_id) if body.previous_response_id else None
    response = await parse_request(services, body, previous)
    if body.background:
        if body.stream or not body.store:
            name = "stream" if body.stream else "store"
            raise InvalidRequest(
                f"{name}: a background response is always stored and never streamed; leave the field out", param=name
            )
        await services.response_turns.queue(response)
        return JSONResponse(response_view(response))
    keep = services.response_turns.keep if body.store else None
    answering = await run_unless_disconnected(request, services.response_turns.begin(response, previous, keep))
    if answering is None:
        return Answer(status_code=CLIENT_CLOSED)
    if body.stream:
        return event_stream(response_events(answering), services.shared.settings.keepalive_seconds)
    if await run_unless_disconnected(request, _whole(answering)) is None:
        return Answer(status_code=CLIENT_CLOSED)
    return JSONResponse(response_view(answering.response))


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
    """Lists the input messages of a response, without those of the responses before it."""
    response = await services.response_turns.get(response_id)
    items = [InputItem.model_validate(item) for item in response.request["items"]]
    if order == "desc":
        items.reverse()
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise NotFound(f"after: no item {after!r} in this response", param="after")
    start = ids.index(after) + 1 if after is not None else 0
    data = items[start : start + limit]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return InputItemList(data=data, first_id=first, last_id=last, has_more=start + limit < len(items))


async def _whole(answering: ResponseTurn) -> bool:
    async with contextlib.aclosing(answering.events) as turn:
        async for _ in turn:
            pass
    return True
