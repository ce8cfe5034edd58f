"""`/v1/sessions`: create, list, change, fork and delete sessions; send messages; inspect the memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from everlong_server.api import memory_schemas, schemas
from everlong_server.api.answer_events import NativeEvent, replayed_events
from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices, session_services
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of, record_when_complete, run_once
from everlong_server.api.native.new_session import ClientName, CreateSession, past_messages
from everlong_server.api.schemas import AfterId, PageLimit
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.api.streams.sse import event_stream
from everlong_server.api.turn_parameters import answer_recall, stored_recall, turn_arguments
from everlong_server.api.views import memory_view, session_view
from everlong_server.engine.answering.turn import Turn
from everlong_server.errors import InvalidRequest, missing_in
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import title_of
from everlong_server.store.search.conversations import Page

QUERY = (
    "only sessions that have all these words in the title, the messages or the names of the documents; case and accents do not count, and "
    "a word may be a part of a longer one"
)
BRANCHES = "only this session and those that branched off from the same one, by their `parent`"

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post("", status_code=201)
async def create(
    body: CreateSession, services: CallerServices, key: IdempotencyKey = None, client: ClientName = "api"
) -> schemas.Session:
    """Creates a session over documents, even while the server is still reading them. You can send messages at once;
    with the search off, only when `status` is "ready"."""

    async def make(record: IdempotencyRecord) -> schemas.Session:
        return await _created(services, body, f"ses_{record.id}", client)

    return await run_once(services, key, ("session", content_of(body)), schemas.Session, make)


async def _created(services: Services, body: CreateSession, session_id: str, client: str) -> schemas.Session:
    services = await services.with_model(body.model)
    model, limit = services.shared.model, services.shared.settings.max_session_documents
    if len(body.documents) > limit:
        raise InvalidRequest(f"documents: {len(body.documents)} documents, the limit is {limit}", param="documents")
    twice = next((id for n, id in enumerate(body.documents) if id in body.documents[:n]), None)
    if twice is not None:
        raise InvalidRequest(f"documents: {twice!r} is listed twice", param="documents")
    answer_recall(services, body.recall)  # raises an error if it is invalid
    messages = past_messages(body.messages, services.shared.settings.max_message_chars)
    if body.documents:
        await services.documents.readings.ensure(model.fingerprint, body.documents)
    session = await services.sessions.create(
        model.fingerprint, model.name, body.documents, recall=stored_recall(body.recall), messages=messages,
        title=body.title or next((title_of(message["content"]) for message in messages), None), parent=body.parent,
        id=session_id, client=client,
    )  # fmt: skip
    return await session_view(services, session)


@router.get("", response_model=schemas.SessionList)
async def index(
    request: Request,
    services: CallerServices,
    limit: PageLimit = 20,
    after: AfterId = None,
    query: Annotated[str | None, Query(min_length=1, max_length=200, pattern=r"\S", description=QUERY)] = None,
    branches_of: Annotated[str | None, Query(max_length=128, description=BRANCHES)] = None,
) -> schemas.SessionList:
    """Lists all sessions, or those with some words, newest first."""
    if query is not None and branches_of is not None:
        raise InvalidRequest("query and branches_of: send one of them", param="query")
    if query is not None:
        listing = services.conversations.with_words(query, limit, after)
    elif branches_of is not None:
        listing = _branches(services, branches_of, limit, after)
    else:
        listing = services.sessions.newest(limit, after)
    # A search reads the messages of many sessions.
    sessions, more = await run_unless_disconnected(request, listing)
    return schemas.SessionList(data=[await session_view(services, session) for session in sessions], has_more=more)


async def _branches(services: Services, session_id: str, limit: int, after: str | None) -> Page:
    with missing_in("branches_of"):
        return await services.conversations.branches_of(session_id, limit, after)


@router.get("/{session_id}")
async def get(session_id: str, services: CallerServices) -> schemas.Session:
    """Returns a session."""
    return await session_view(services, await services.sessions.get(session_id))


@router.patch("/{session_id}")
async def update(session_id: str, body: schemas.UpdateSession, services: CallerServices) -> schemas.Session:
    """Changes a session's title or recall. Its memory and its messages stay unchanged."""
    if body.recall:
        bound = await services.with_model_of(await services.sessions.get(session_id))
        answer_recall(bound, body.recall)  # raises an error if it is invalid
    fields = {"title": body.title, "recall": stored_recall(body.recall)}
    given = {name: fields[name] for name in body.model_fields_set}
    return await session_view(services, await services.sessions.update(session_id, given))


@router.delete("/{session_id}")
async def delete(session_id: str, services: CallerServices) -> schemas.Deleted:
    """Deletes a session, its memory and its messages."""
    await services.sessions.delete(session_id)
    return schemas.Deleted(id=session_id, object="session.deleted")


@router.post("/{session_id}/fork", status_code=201)
async def fork(
    session_id: str, services: CallerServices, key: IdempotencyKey = None, client: ClientName = "api"
) -> schemas.Session:
    """Creates an independent copy of a session as of its last complete answer."""

    async def make(record: IdempotencyRecord) -> schemas.Session:
        copy = await services.sessions.fork(session_id, id=f"ses_{record.id}", client=client)
        return await session_view(services, copy)

    return await run_once(services, key, ("fork", session_id), schemas.Session, make)


@router.get("/{session_id}/memory")
async def memory(session_id: str, services: CallerServices) -> memory_schemas.SessionMemory:
    """Returns the content and the use of a session's memory, as of the last committed turn. Does not wait for a running turn."""
    services = await services.with_model_of(await services.sessions.get(session_id))
    return memory_view(services, await services.memory_views.view(session_id))


@router.get("/{session_id}/messages", response_model_exclude_none=True)
async def messages(session_id: str, services: CallerServices) -> schemas.MessageList:
    """Lists all messages of a session, oldest first, and the one that is being answered."""
    await services.sessions.get(session_id)
    # In this order, so that a turn that is committed in between is in one of them.
    running = (
        await services.sessions.turns.get(session_id) if await services.sessions.is_answering(session_id) else None
    )
    stored = await services.sessions.messages(session_id)
    if running is not None and any(message["id"] == running.id for message in stored[-1:]):
        running = None
    return schemas.MessageList(
        data=[schemas.Message(**message) for message in stored],
        running=None if running is None else schemas.RunningTurn(**asdict(running)),
    )


@router.post("/{session_id}/cancel")
async def cancel(session_id: str, services: CallerServices) -> schemas.Session:
    """Ends the answer to a message that was sent with `on_disconnect` "finish", within about a second, and keeps its text so far.

    Changes nothing if there is none.
    """
    session = await services.sessions.get(session_id)
    await services.sessions.turns.cancel(session_id)
    return await session_view(services, session)


@router.post(
    "/{session_id}/messages",
    response_model=schemas.Message,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def send(
    session_id: str, body: schemas.CreateMessage, request: Request, services: CallerServices, key: IdempotencyKey = None
) -> Response:
    """Sends a message and returns its answer, as JSON or, with `stream`, as server-sent events.

    If the caller disconnects before the answer is complete, the session stays unchanged, unless `on_disconnect` is "finish". A retry
    with the same Idempotency-Key returns the first answer at once and does not change the session again.
    """
    if body.on_disconnect == "finish":
        held = AsyncExitStack()  # the answer may outlive the request
        begin = services.shared.detached_answers.start(_events(services.holding(held), session_id, body, key), held)
    else:
        begin = _events(services, session_id, body, key)
    events = await run_unless_disconnected(request, begin)
    if body.stream:
        return event_stream(events, services.shared.settings.keepalive_seconds)
    return JSONResponse(await run_unless_disconnected(request, _whole(events)))


async def _events(
    services: Services, session_id: str, body: schemas.CreateMessage, key: str | None
) -> AsyncGenerator[NativeEvent, None]:
    """Return the events of the answer, or of the recorded one. Raises every refusal before the first event."""
    record = await services.idempotency.begin(key)
    try:
        # Also checked for a recorded answer, as the session may have been deleted or belong to another tenant.
        session = await services.sessions.get(session_id)
        asked = content_of(body, "on_disconnect")  # it changes nothing about the answer
        await record.check_same_request("message", session_id, asked)
        message, message_id = record.answer, f"msg_{record.id}"
        if message is None and not record.first:  # the first server died, perhaps after it committed the turn
            message = await services.sessions.message(session_id, message_id)
        if message is None:
            services = await session_services(services, session, body.model)
            turn = await services.session_turns.send(
                session_id,
                *turn_arguments(services, body, session),
                turn=Turn(message_id),
                instructions=body.instructions,
                detached=body.on_disconnect == "finish",
                continues=body.continue_answer,
            )
            return record_when_complete(record, turn.events)
        message = {"session": session_id, **message}
        await record.finish(message)
        return replayed_events(message)
    except BaseException as error:
        await record.give_up(error)
        raise


async def _whole(events: AsyncGenerator[NativeEvent, None]) -> dict[str, Any]:
    """Return the complete message."""
    message: dict[str, Any] = {}
    async with contextlib.aclosing(events):
        async for event in events:
            message = event.get("message", message)
    return message
