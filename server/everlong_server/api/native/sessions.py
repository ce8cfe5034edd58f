"""`/v1/sessions`: create, list, change, fork and delete sessions; send messages; inspect the memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import PydanticSerializationError, to_json

from everlong_models import SamplingParams
from everlong_server.api import schemas
from everlong_server.api.disconnect import run_unless_disconnected
from everlong_server.api.errors import CLIENT_CLOSED, ERROR_RESPONSES
from everlong_server.api.idempotency import Event, IdempotencyKey, record_when_complete, replay, run_once
from everlong_server.api.native.documents import After, Limit
from everlong_server.api.sse import event_stream
from everlong_server.api.views import CallerServices, memory_view, session_view
from everlong_server.engine.answering.grounding import Recall
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.services import Services
from everlong_server.store.records import Session, Wish

_MAX_LOGPROBS = 200_000
"""Log-probabilities of one answer. They stay in memory until it is complete, about half a kilobyte each."""

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], responses=ERROR_RESPONSES)


@router.post("", status_code=201)
async def create(body: schemas.CreateSession, services: CallerServices, key: IdempotencyKey = None) -> schemas.Session:
    """Creates a session over documents, which may still be being read. Messages can be sent once `status` is "ready"."""

    async def make(id: str) -> schemas.Session:
        return await _created(services, body, f"ses_{id}")

    return await run_once(services, key, ("session", body.model_dump_json()), schemas.Session, make)


async def _created(services: Services, body: schemas.CreateSession, session_id: str) -> schemas.Session:
    model, limit = services.model, services.settings.max_session_documents
    if body.model not in (None, model.name):
        raise NotFound(
            f"no model {body.model!r}; this server serves {model.name!r}", param="model", code="model_not_found"
        )
    if len(body.documents) > limit:
        raise InvalidRequest(f"documents: {len(body.documents)} documents, the limit is {limit}", param="documents")
    twice = next((id for n, id in enumerate(body.documents) if id in body.documents[:n]), None)
    if twice is not None:
        raise InvalidRequest(f"documents: {twice!r} is listed twice", param="documents")
    recall(services, body.recall)  # raises an error if it is invalid
    if body.documents:
        await services.documents.ensure_reading(model.fingerprint, body.documents)
    session = await services.sessions.create(
        model.fingerprint, model.name, body.documents, recall=_stored_recall(body.recall), id=session_id
    )
    return await session_view(services, session)


@router.get("")
async def index(services: CallerServices, limit: Limit = 20, after: After = None) -> schemas.SessionList:
    """Lists all sessions, newest first."""
    sessions, more = await services.sessions.newest(limit, after)
    return schemas.SessionList(data=[await session_view(services, session) for session in sessions], has_more=more)


@router.get("/{session_id}")
async def get(session_id: str, services: CallerServices) -> schemas.Session:
    """Returns a session."""
    return await session_view(services, await services.sessions.get(session_id))


@router.patch("/{session_id}")
async def update(session_id: str, body: schemas.UpdateSession, services: CallerServices) -> schemas.Session:
    """Changes a session's title or recall. Its memory and its messages stay unchanged."""
    recall(services, body.recall)  # raises an error if it is invalid
    fields = {"title": body.title, "recall": _stored_recall(body.recall)}
    given = {name: fields[name] for name in body.model_fields_set}
    return await session_view(services, await services.sessions.update(session_id, given))


@router.delete("/{session_id}")
async def delete(session_id: str, services: CallerServices) -> schemas.Deleted:
    """Deletes a session, its memory and its messages."""
    await services.sessions.delete(session_id)
    return schemas.Deleted(id=session_id, object="session.deleted")


@router.post("/{session_id}/fork", status_code=201)
async def fork(session_id: str, services: CallerServices, key: IdempotencyKey = None) -> schemas.Session:
    """Creates an independent copy of a session as of its last complete answer."""

    async def make(id: str) -> schemas.Session:
        return await session_view(services, await services.sessions.fork(session_id, id=f"ses_{id}"))

    return await run_once(services, key, ("fork", session_id), schemas.Session, make)


@router.get("/{session_id}/memory")
async def memory(session_id: str, services: CallerServices) -> schemas.SessionMemory:
    """Returns the content and the use of a session's memory, as of the last committed turn. Does not wait for a running turn."""
    return memory_view(services, await services.memory_views.look(session_id))


@router.get("/{session_id}/messages", response_model_exclude_none=True)
async def messages(session_id: str, services: CallerServices) -> schemas.MessageList:
    """Lists all messages of a session, oldest first."""
    await services.sessions.get(session_id)
    stored = await services.sessions.messages(session_id)
    return schemas.MessageList(data=[schemas.Message(**message) for message in stored])


@router.post(
    "/{session_id}/messages",
    response_model=schemas.Message,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def send(
    session_id: str, body: schemas.CreateMessage, request: Request, services: CallerServices, key: IdempotencyKey = None
) -> Response:
    """Sends a message and returns its answer, as JSON or, with `stream`, as server-sent events.

    If the caller disconnects before the answer is complete, the session stays unchanged. A retry with the same
    Idempotency-Key returns the first answer at once and does not change the session again.
    """
    events = await run_unless_disconnected(request, _events(services, session_id, body, key))
    if events is None:
        return Response(status_code=CLIENT_CLOSED)
    if body.stream:
        return event_stream(events, services.settings.keepalive_seconds)
    message = await run_unless_disconnected(request, _whole(events))
    return Response(status_code=CLIENT_CLOSED) if message is None else JSONResponse(message)


async def _events(
    services: Services, session_id: str, body: schemas.CreateMessage, key: str | None
) -> AsyncGenerator[Event, None]:
    """Return the events of the answer, or of the recorded one. Raises every refusal before the first event."""
    record = await services.idempotency.begin(key)
    try:
        # Also checked for a recorded answer, as the session may have been deleted or belong to another tenant.
        session = await services.sessions.get(session_id)
        await record.is_for("message", session_id, _request_json(body))
        message, message_id = record.answer, f"msg_{record.id}"
        if message is None and not record.first:  # the first server died, perhaps after it committed the turn
            message = await services.sessions.message(session_id, message_id)
        if message is None:
            turn = await services.session_turns.send(
                session_id, *turn_arguments(services, body, session), id=message_id
            )
            return record_when_complete(record, turn.events)
        message = {"session": session_id, **message}
        await record.finish(message)
        return replay(message)
    except BaseException as error:
        await record.give_up(error)
        raise


def _request_json(body: schemas.CreateMessage) -> str:
    """Return the request as JSON, to compare retries. Raises `InvalidRequest` for a schema that JSON cannot represent."""
    try:
        return body.model_dump_json()
    except PydanticSerializationError as error:  # a lone surrogate, or nested too deeply
        raise InvalidRequest(f"json_schema: {error}", param="json_schema") from error


def turn_arguments(
    services: Services, body: schemas.CreateMessage, session: Session
) -> tuple[str, SamplingParams, Recall]:
    """Return the text, the sampling parameters and the recall of a message's turn. Raises `InvalidRequest`."""
    default = services.recall
    if default.passages:  # if the server has recall off, the session cannot turn it on
        default = _override(default, session.recall)
    return body.content, sampling(body), recall(services, body.recall, default)


def sampling(body: SamplingParams, newer: str = "max_tokens", *, logprobs: bool = False) -> SamplingParams:
    """Return the sampling parameters of a request. Raises `InvalidRequest`.

    `newer`: a field that replaces `max_tokens` if it is given. `logprobs`: True if another field requests them.
    """
    require_json(body.json_schema, "json_schema")
    limit = "max_tokens" if getattr(body, newer) is None else newer
    given = body.model_dump(include=set(SamplingParams.model_fields))
    params = SamplingParams(**given | {"max_tokens": getattr(body, limit), "logprobs": body.logprobs or logprobs})
    per_token = 1 + params.top_logprobs
    if params.logprobs and params.max_tokens * per_token > _MAX_LOGPROBS:
        raise InvalidRequest(
            f"{limit}={params.max_tokens} with {per_token} log-probabilities each is more than the limit of {_MAX_LOGPROBS} "
            "log-probabilities in an answer: request fewer tokens, or a lower top_logprobs", param=limit,
        )  # fmt: skip
    return params


def require_json(schema: dict[str, Any] | None, name: str) -> None:
    """Raise `InvalidRequest` if the schema in the field `name` cannot be encoded as JSON again, to be stored and sent."""
    try:
        json.dumps(schema, allow_nan=False, ensure_ascii=False).encode()
        to_json([[[[schema]]]])  # pydantic limits the depth, and a response adds four levels
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name}: the schema cannot be encoded as JSON again: {error}", param=name) from None


def recall(
    services: Services, requested: schemas.Recall | Literal[False] | None, default: Recall | None = None
) -> Recall:
    """Return the recall of an answer: the requested fields, else those of `default`, by default the server's.

    Raises `InvalidRequest` for more tokens than the model's context, and for passages on a server with recall off.
    """
    sight = services.model.memory.sight
    if requested and requested.passages and not services.recall.passages:
        raise InvalidRequest(
            f"recall.passages: {requested.passages} passages, but recall is off on this server (EVERLONG_RECALL_PASSAGES=0)",
            param="recall.passages",
        )
    if requested and requested.tokens is not None and requested.tokens > sight:
        raise InvalidRequest(
            f"recall.tokens: {requested.tokens} tokens are more than the model's context of {sight}",
            param="recall.tokens",
        )
    return _override(default or services.recall, _stored_recall(requested))


def _stored_recall(requested: schemas.Recall | Literal[False] | None) -> Wish:
    """Return a recall as a session stores it."""
    return requested.model_dump(exclude_none=True) if isinstance(requested, schemas.Recall) else requested


def _override(default: Recall, requested: Wish) -> Recall:
    """Return `default` with the requested fields replaced."""
    return replace(default, passages=0) if requested is False else replace(default, **(requested or {}))


async def _whole(events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    """Return the complete message."""
    message: dict[str, Any] = {}
    async with contextlib.aclosing(events):
        async for event in events:
            message = event.get("message", message)
    return message
