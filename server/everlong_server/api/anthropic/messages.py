"""`/v1/messages` and `/v1/messages/count_tokens`: a conversation that the client sends whole each time, as in Anthropic's API.

Messages and documents that the server has read before are not read again.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response

from everlong_models import SamplingParams
from everlong_server.api.anthropic.conversation import Conversation, parse_conversation, parse_tools
from everlong_server.api.anthropic.message_schemas import (
    AnthropicErrorBody,
    AnthropicMessage,
    CountMessageTokens,
    CreateAnthropicMessage,
    TokenCount,
)
from everlong_server.api.anthropic.message_view import live_events, message_view, replayed_events
from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.error_forms import NO_THREADS, anthropic_error
from everlong_server.api.errors import ERROR_RESPONSES, as_server_error
from everlong_server.api.idempotency import IdempotencyKey, content_of
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.api.streams.sse import event_stream
from everlong_server.api.translation.answer_once import answer_once
from everlong_server.api.turn_parameters import answer_recall, require_schema
from everlong_server.engine.answering.events import ResponseCompleted
from everlong_server.engine.answering.turn import Turn
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord

VERSIONS = ("2023-06-01", "2026-10-21")
"""The server answers all of these alike. It also accepts the sampling parameters that the later one removed."""
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: described | {"model": AnthropicErrorBody}
    for status, described in ERROR_RESPONSES.items()
    if status not in (415, 422)
} | {
    400: {"model": AnthropicErrorBody, "description": "A value is invalid"},
    "4XX": {"model": AnthropicErrorBody, "description": "An error"},  # keeps FastAPI from adding its own
}
router = APIRouter(prefix="/v1/messages", tags=["anthropic"], responses=_ERRORS, route_class=JsonRoute)

AnthropicVersion = Annotated[
    str | None, Header(alias="anthropic-version", max_length=64, description="one of " + ", ".join(VERSIONS))
]


@router.post("", response_model=AnthropicMessage, responses={200: {"content": {"text/event-stream": {}}}})
async def create(
    body: CreateAnthropicMessage,
    request: Request,
    services: CallerServices,
    version: AnthropicVersion = None,
    key: IdempotencyKey = None,
) -> Response:
    """Answers a conversation about the documents in its messages, as JSON or, with `stream`, as server-sent events.

    New documents are read before the answer begins. What was read for an earlier request is not read again;
    `usage.cache_read_input_tokens` counts its tokens. A retry with the same Idempotency-Key returns the first answer.
    """
    _require_version(version)
    _require_no_thread(body)
    send = partial(
        event_stream, keepalive_seconds=services.shared.settings.keepalive_seconds,
        error_form=lambda error: anthropic_error(as_server_error(error)),
    )  # fmt: skip
    return await answer_once(
        services, request, key, ("anthropic", content_of(body)),
        begin=lambda record: _begin(services, body),
        whole=lambda begun, record: _whole(f"msg_{record.id}", *begun, record),
        live=lambda begun, record: live_events(f"msg_{record.id}", begun[0].events, begun[1], record),
        replayed=replayed_events,
        send=send if body.stream else None,
    )  # fmt: skip


@router.post("/count_tokens", response_model=TokenCount)
async def count_tokens(
    body: CountMessageTokens, request: Request, services: CallerServices, version: AnthropicVersion = None
) -> Response:
    """Counts the tokens of a conversation as the model would get it, documents and passages included.

    Documents of the request are stored and read, as for an answer.
    """
    _require_version(version)
    _require_no_thread(body)
    counted = await run_unless_disconnected(request, _count(services, body))
    return JSONResponse(counted.model_dump())


async def _count(services: Services, body: CountMessageTokens) -> TokenCount:
    services = await services.with_model(body.model)
    conversation = await parse_conversation(services, body)
    recall = answer_recall(services, body.recall)
    await services.wait_for_memory(conversation.documents, inline=True)
    tools = await parse_tools(services, body, conversation)
    counted = await services.chat_turns.count_tokens(conversation.documents, conversation.messages, recall, tools)
    return TokenCount(input_tokens=counted)


def _require_version(version: str | None) -> None:
    if version is not None and version not in VERSIONS:
        raise InvalidRequest(
            f"anthropic-version: {version[:32]!r} is not supported; leave it out or send {' or '.join(VERSIONS)}",
            param="anthropic-version",
        )


def _require_no_thread(body: CreateAnthropicMessage | CountMessageTokens) -> None:
    if body.thread is not None:
        raise InvalidRequest(
            "thread: the server holds no threads: send the whole conversation, without this field",
            param="thread", code=NO_THREADS,
        )  # fmt: skip


async def _begin(services: Services, body: CreateAnthropicMessage) -> tuple[Turn, Conversation]:
    """Start the turn of a request, once its documents are read. Raises `ServerError` if it is invalid or refused."""
    services = await services.with_model(body.model)
    params, recall = await _sampling(services, body), answer_recall(services, body.recall)
    conversation = await parse_conversation(services, body)
    await services.wait_for_memory(conversation.documents, inline=True)
    tools = await parse_tools(services, body, conversation)
    turn = await services.chat_turns.answer(conversation.documents, conversation.messages, params, recall, tools=tools)
    return turn, conversation


async def _sampling(services: Services, body: CreateAnthropicMessage) -> SamplingParams:
    given = body.model_dump(include={"max_tokens", "temperature", "top_k", "top_p", "seed"}, exclude_none=True)
    params = SamplingParams(**given, stop=tuple(body.stop_sequences))
    if body.output_config is None or body.output_config.format is None:
        return params
    schema = await require_schema(services, body.output_config.format.schema_, "output_config.format.schema")
    return params.model_copy(update={"json_schema": schema})


async def _whole(id: str, turn: Turn, conversation: Conversation, record: IdempotencyRecord) -> dict[str, Any]:
    """Wait for the answer, record the message and return it."""
    view: dict[str, Any] = {}
    async with contextlib.aclosing(turn.events) as events:
        async for event in events:
            if isinstance(event, ResponseCompleted):
                view = await message_view(id, event.message, conversation)
    await record.finish(view)
    return view
