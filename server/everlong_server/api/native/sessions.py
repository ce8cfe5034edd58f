"""`/v1/sessions`: create, look, fork, delete, talk."""

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
from everlong_server.api.disconnect import unless_gone
from everlong_server.api.errors import CLIENT_CLOSED, RESPONSES
from everlong_server.api.idempotency import Event, Key, again, finishing, once
from everlong_server.api.native.documents import After, Limit
from everlong_server.api.sse import event_stream
from everlong_server.api.views import Served, memory_view, session_view
from everlong_server.engine.answering.grounding import Recall
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.services import Services
from everlong_server.store.records import Session, Wish

_MOST_LOGPROBS = 200_000
"""They are kept until the answer is complete, about half a kilobyte each."""

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], responses=RESPONSES)


@router.post("", status_code=201)
async def create(body: schemas.CreateSession, services: Served, key: Key = None) -> schemas.Session:
    """A session over documents. It may be created before they are read; `status` says when it can be talked to."""

    async def make(id: str) -> schemas.Session:
        return await _created(services, body, f"ses_{id}")

    return await once(services, key, ("session", body.model_dump_json()), schemas.Session, make)


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
        raise InvalidRequest(f"documents: {twice!r} stands there twice", param="documents")
    recall(services, body.recall)  # that it can be had
    if body.documents:
        await services.documents.ensure_reading(model.fingerprint, body.documents)
    session = await services.sessions.create(
        model.fingerprint, model.name, body.documents, recall=_kept(body.recall), id=session_id
    )
    return await session_view(services, session)


@router.get("")
async def index(services: Served, limit: Limit = 20, after: After = None) -> schemas.SessionList:
    """All sessions, newest first."""
    sessions, more = await services.sessions.newest(limit, after)
    return schemas.SessionList(data=[await session_view(services, session) for session in sessions], has_more=more)


@router.get("/{session_id}")
async def get(session_id: str, services: Served) -> schemas.Session:
    """A session."""
    return await session_view(services, await services.sessions.get(session_id))


@router.patch("/{session_id}")
async def update(session_id: str, body: schemas.UpdateSession, services: Served) -> schemas.Session:
    """Gives the session another title or another recall; its memory and its dialogue stay as they are."""
    recall(services, body.recall)  # that it can be had
    fields = {"title": body.title, "recall": _kept(body.recall)}
    given = {name: fields[name] for name in body.model_fields_set}
    return await session_view(services, await services.sessions.update(session_id, given))


@router.delete("/{session_id}")
async def delete(session_id: str, services: Served) -> schemas.Deleted:
    """Deletes the session, its memory and its dialogue."""
    await services.sessions.delete(session_id)
    return schemas.Deleted(id=session_id, object="session.deleted")


@router.post("/{session_id}/fork", status_code=201)
async def fork(session_id: str, services: Served, key: Key = None) -> schemas.Session:
    """A copy of the session as of its last complete answer; the two go their own ways."""

    async def make(id: str) -> schemas.Session:
        return await session_view(services, await services.sessions.fork(session_id, id=f"ses_{id}"))

    return await once(services, key, ("fork", session_id), schemas.Session, make)


@router.get("/{session_id}/memory")
async def memory(session_id: str, services: Served) -> schemas.SessionMemory:
    """What the session's memory holds, how full it is, and what it gives attention and space to.

    Of the session as it was last committed; a message under way is not waited for.
    """
    return memory_view(services, await services.memory_views.look(session_id))


@router.get("/{session_id}/messages", response_model_exclude_none=True)
async def messages(session_id: str, services: Served) -> schemas.MessageList:
    """The dialogue so far."""
    await services.sessions.get(session_id)
    stored = await services.sessions.messages(session_id)
    return schemas.MessageList(data=[schemas.Message(**message) for message in stored])


@router.post(
    "/{session_id}/messages",
    response_model=schemas.Message,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def send(
    session_id: str, body: schemas.CreateMessage, request: Request, services: Served, key: Key = None
) -> Response:
    """Says something and gets the answer: as JSON, or with `stream` as server-sent events.

    If the caller goes away before the answer is complete, nothing has happened to the session. With an Idempotency-Key
    the answer to a message that was answered before comes at once, and the session is as it was.
    """
    events = await unless_gone(request, _events(services, session_id, body, key))
    if events is None:
        return Response(status_code=CLIENT_CLOSED)
    if body.stream:
        return event_stream(events, services.settings.keepalive_seconds)
    message = await unless_gone(request, _whole(events))
    return Response(status_code=CLIENT_CLOSED) if message is None else JSONResponse(message)


async def _events(
    services: Services, session_id: str, body: schemas.CreateMessage, key: str | None
) -> AsyncGenerator[Event, None]:
    """The answer, of now or of before. Every refusal is raised here."""
    attempt = await services.attempts.begin(key)
    try:
        # Also for an answer of before: the session may be another tenant's by now, or gone.
        session = await services.sessions.get(session_id)
        await attempt.is_for("message", session_id, _asked(body))
        message, message_id = attempt.answer, f"msg_{attempt.id}"
        if message is None and not attempt.first:  # its server was killed, perhaps behind the commit
            message = await services.sessions.message(session_id, message_id)
        if message is None:
            turn = await services.session_turns.send(session_id, *said(services, body, session), id=message_id)
            return finishing(attempt, turn.events)
        message = {"session": session_id, **message}
        await attempt.finish(message)
        return again(message)
    except BaseException as error:
        await attempt.give_up(error)
        raise


def _asked(body: schemas.CreateMessage) -> str:
    """What an attempt is known by. Raises `InvalidRequest` for a schema that no JSON can be made of again."""
    try:
        return body.model_dump_json()
    except PydanticSerializationError as error:  # half of a surrogate pair, or nested too deep
        raise InvalidRequest(f"json_schema: {error}", param="json_schema") from error


def said(services: Services, body: schemas.CreateMessage, session: Session) -> tuple[str, SamplingParams, Recall]:
    """A message's words, how its answer is drawn, and what it is grounded on. Raises `InvalidRequest`."""
    usual = services.recall
    if usual.passages:  # a server that has recall off now has it off, whatever the session was told before
        usual = _with(usual, session.recall)
    return body.content, sampling(body), recall(services, body.recall, usual)


def sampling(body: SamplingParams, newer: str = "max_tokens", *, logprobs: bool = False) -> SamplingParams:
    """How an answer is drawn, of a request that says more than that. Raises `InvalidRequest`.

    `newer`: the field that may be given for `max_tokens`. `logprobs`: they are asked for in a field of another name.
    """
    require_json(body.json_schema, "json_schema")
    limit = "max_tokens" if getattr(body, newer) is None else newer
    given = body.model_dump(include=set(SamplingParams.model_fields))
    params = SamplingParams(**given | {"max_tokens": getattr(body, limit), "logprobs": body.logprobs or logprobs})
    each = 1 + params.top_logprobs
    if params.logprobs and params.max_tokens * each > _MOST_LOGPROBS:
        raise InvalidRequest(
            f"{limit}={params.max_tokens} with {each} log-probabilities each is more than the limit of {_MOST_LOGPROBS} "
            "log-probabilities in an answer: ask for fewer tokens, or a lower top_logprobs", param=limit,
        )  # fmt: skip
    return params


def require_json(schema: dict[str, Any] | None, name: str) -> None:
    """Raises `InvalidRequest` for a schema in the field `name` that no JSON can be made of again: it is stored and sent."""
    try:
        json.dumps(schema, allow_nan=False, ensure_ascii=False).encode()
        to_json([[[[schema]]]])  # pydantic writes some hundred levels, and of these a response has four around it
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name}: it is not JSON that can be sent again: {error}", param=name) from None


def recall(services: Services, asked: schemas.Recall | Literal[False] | None, usual: Recall | None = None) -> Recall:
    """What an answer is grounded on, where what is not asked for is as `usual`, or as the server has it. Raises
    `InvalidRequest`."""
    sight = services.model.memory.visible_tokens
    if asked and asked.passages and not services.recall.passages:
        raise InvalidRequest(
            f"recall.passages: {asked.passages} passages; this server has recall off (EVERLONG_RECALL_PASSAGES=0)",
            param="recall.passages",
        )
    if asked and asked.tokens is not None and asked.tokens > sight:
        raise InvalidRequest(
            f"recall.tokens: {asked.tokens} tokens; the model sees {sight} at once", param="recall.tokens"
        )
    return _with(usual or services.recall, _kept(asked))


def _kept(asked: schemas.Recall | Literal[False] | None) -> Wish:
    """As a session keeps it."""
    return asked.model_dump(exclude_none=True) if isinstance(asked, schemas.Recall) else asked


def _with(usual: Recall, asked: Wish) -> Recall:
    """What is asked for, and the rest as `usual`."""
    return replace(usual, passages=0) if asked is False else replace(usual, **(asked or {}))


async def _whole(events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    """The complete message."""
    message: dict[str, Any] = {}
    async with contextlib.aclosing(events):
        async for event in events:
            message = event.get("message", message)
    return message
