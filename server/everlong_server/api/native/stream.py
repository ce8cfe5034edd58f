"""`WS /v1/sessions/{id}/stream`: messages and answers of a session over one WebSocket.

The client sends `message.create` and `response.cancel`; the server sends `response.created`, `response.evidence`,
`response.output_text.delta`, `response.completed` and `error`. After an error the socket stays open, unless the server is
overloaded or shutting down, the session was deleted, or the API key is no longer valid.
`response.cancel` may have a `response_id`; it then cancels only that response.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from everlong_server.api import schemas
from everlong_server.api.answer_events import native_event
from everlong_server.api.caller_services import get_services, session_services
from everlong_server.api.errors import as_server_error
from everlong_server.api.streams.socket import JsonSocket, refuse
from everlong_server.api.turn_parameters import turn_arguments
from everlong_server.engine.answering.events import AnswerEvent, EventStream, ResponseCompleted, TurnEvents
from everlong_server.engine.answering.turn import Turn
from everlong_server.errors import InvalidRequest, NotFound, Overloaded, SessionBusy, Unauthenticated, Unavailable
from everlong_server.services import Services

router = APIRouter()


@router.websocket("/v1/sessions/{session_id}/stream")
async def stream(socket: WebSocket, session_id: str) -> None:
    """Open a WebSocket to a session."""
    await socket.accept()
    try:
        services = get_services(socket)
        await services.sessions.get(session_id)
    except Exception as error:
        await refuse(socket, error)
        return
    await _SessionSocket(socket, services, session_id).run()


class _SessionSocket(JsonSocket):
    def __init__(self, socket: WebSocket, services: Services, session_id: str) -> None:
        super().__init__(socket, services)
        self._session_id = session_id
        self._turn: Turn | None = None

    async def receive(self, kind: object, message: dict[str, Any]) -> None:
        """Answer a message, or cancel the running answer."""
        if kind == "message.create":
            self._create(message)
        elif kind == "response.cancel":
            self._cancel(message)
        else:
            raise InvalidRequest(
                f"unknown type {str(kind)[:60]!r}: send message.create or response.cancel",
                param="type",
                code="unknown_type",
            )

    def _cancel(self, message: dict[str, Any]) -> None:
        response_id = message.pop("response_id", None)
        if message:
            raise InvalidRequest(f"response.cancel has no field {next(iter(message))!r}", code="unknown_parameter")
        if not isinstance(response_id, str | None):
            raise InvalidRequest("response_id: send a string", param="response_id")
        if self._turn is not None and response_id in (None, self._turn.id):
            self._turn.cancel()

    def _create(self, message: dict[str, Any]) -> None:
        if self.busy:
            raise SessionBusy(f"session {self._session_id!r} is generating an answer", param="session_id")
        message.pop("stream", None)  # a WebSocket always streams
        try:
            body = schemas.CreateMessage.model_validate(message)
        except ValidationError as error:
            raise as_server_error(error) from None
        self._turn, self.busy = Turn(), True
        self.answer_task = asyncio.create_task(self._answer(body, self._turn))

    async def _begin(self, body: schemas.CreateMessage, turn: Turn, services: Services) -> TurnEvents:
        """Start the turn and return its events."""
        session = await services.sessions.get(self._session_id)
        services = await session_services(services, session, body.model)
        await services.session_turns.send(
            self._session_id,
            *turn_arguments(services, body, session),
            turn=turn,
            instructions=body.instructions,
            detached=body.on_disconnect == "finish",
            continues=body.continue_answer,
        )
        return turn.events

    async def _answer(self, body: schemas.CreateMessage, turn: Turn) -> None:
        try:
            await self.admit()
            held = contextlib.AsyncExitStack()
            begin = self._begin(body, turn, self.services.holding(held))
            if body.on_disconnect == "finish":
                await self._send_events(self.services.shared.detached_answers.start(begin, held))
            else:
                async with held:
                    await self._send_events(begin)
        except (Overloaded, Unavailable, NotFound, Unauthenticated) as error:
            await refuse(self.socket, error)
        except WebSocketDisconnect:
            return
        except Exception as error:
            self.busy = False
            await self.fail(error)

    async def _send_events(self, begin: Coroutine[Any, Any, EventStream[AnswerEvent]]) -> None:
        async with contextlib.aclosing(await begin) as events:
            async for event in events:
                # Set before the event is sent, because the client may send its next message at once.
                self.busy = not isinstance(event, ResponseCompleted)
                await self.send(native_event(event))
