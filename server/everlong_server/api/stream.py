"""`WS /v1/sessions/{id}/stream`: a conversation over one socket.

The client sends `message.create` and `response.cancel`; the server sends `response.created`, `response.evidence`,
`response.output_text.delta`, `response.completed` and `error`. An error of a message leaves the socket open.
`response.cancel` may name the `response_id` that it means; it then has no effect on another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import MutableMapping
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from everlong_server.api import schemas
from everlong_server.api.errors import as_server_error
from everlong_server.api.events import error_event
from everlong_server.api.sessions import said
from everlong_server.api.views import get_services
from everlong_server.engine.turn import Turn
from everlong_server.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    ServerError,
    SessionBusy,
    Unauthenticated,
    Unavailable,
)
from everlong_server.services import Services

router = APIRouter()

# RFC 6455 and the IANA registry.
GOING_AWAY, POLICY, RESTART, TRY_LATER = 1001, 1008, 1012, 1013


@router.websocket("/v1/sessions/{session_id}/stream")
async def stream(socket: WebSocket, session_id: str) -> None:
    """One conversation."""
    await socket.accept()
    try:
        services = get_services(socket)
        await services.sessions.get(session_id)
    except Exception as error:
        await _refuse(socket, error)
        return
    await _Conversation(socket, services, session_id).run()


async def _refuse(socket: WebSocket, error: Exception) -> None:
    """Says why, then closes with the code that fits."""
    known = as_server_error(error)
    code = POLICY
    if isinstance(known, Unavailable):
        code = RESTART
    elif isinstance(known, Overloaded):
        code = TRY_LATER
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client has gone already
        await socket.send_json(error_event(known))
        await socket.close(code, known.message.encode()[:120].decode(errors="ignore"))


class _Conversation:
    def __init__(self, socket: WebSocket, services: Services, session_id: str) -> None:
        self._socket = socket
        self._services = services
        self._session_id = session_id
        self._turn: Turn | None = None
        self._answering: asyncio.Task[None] | None = None
        self._busy = False
        self._cancel_asked = False

    async def run(self) -> None:
        """Until the client leaves, is silent for too long, or may not go on."""
        try:
            while self._socket.client_state is WebSocketState.CONNECTED:
                async with asyncio.timeout(self._services.settings.websocket_idle_seconds):
                    frame = await self._socket.receive()
                if frame["type"] == "websocket.disconnect":
                    return
                try:
                    await self._receive(frame)
                except ServerError as error:
                    await self._send(error_event(error))
        except TimeoutError:
            await self._socket.close(GOING_AWAY, "idle for too long")
        except WebSocketDisconnect:
            return
        finally:
            # The client has gone: its answer ends within one step, and the session is as it was before.
            if self._answering is not None:
                self._answering.cancel()
                await asyncio.gather(self._answering, return_exceptions=True)

    async def _receive(self, frame: MutableMapping[str, Any]) -> None:
        text = frame.get("text")
        if text is None:
            raise InvalidRequest("frames are JSON text, this one was binary", code="invalid_frame")
        try:
            message = json.loads(text)
        except ValueError as error:
            raise InvalidRequest(f"the frame is not valid JSON: {error}", code="invalid_json") from None
        except RecursionError:
            raise InvalidRequest("the frame's JSON is nested too deeply", code="invalid_json") from None
        if not isinstance(message, dict):
            raise InvalidRequest("a frame is a JSON object", code="invalid_frame")
        kind = message.pop("type", None)
        if kind == "message.create":
            await self._create(message)
        elif kind == "response.cancel":
            self._cancel(message)
        else:
            raise InvalidRequest(
                f"unknown type {str(kind)[:60]!r}; send message.create or response.cancel",
                param="type",
                code="unknown_type",
            )

    def _cancel(self, message: dict[str, Any]) -> None:
        meant = message.pop("response_id", None)
        if message:
            raise InvalidRequest(f"response.cancel has no field {next(iter(message))!r}", code="unknown_parameter")
        if not isinstance(meant, str | None):
            raise InvalidRequest("response_id: it is a string", param="response_id")
        if self._turn is not None and meant in (None, self._turn.id):
            self._turn.cancel()
        elif meant is None:
            self._cancel_asked = True  # the answer has no id yet

    async def _create(self, message: dict[str, Any]) -> None:
        if self._busy:
            raise SessionBusy(f"session {self._session_id!r} is generating an answer", param="session_id")
        message.pop("stream", None)  # it is one
        try:
            body = schemas.CreateMessage.model_validate(message)
        except ValidationError as error:
            raise as_server_error(error) from None
        self._turn, self._busy, self._cancel_asked = None, True, False
        self._answering = asyncio.create_task(self._answer(body))

    async def _answer(self, body: schemas.CreateMessage) -> None:
        try:
            # A key that was good when the socket was opened may have been revoked since.
            await self._services.credentials.check(self._socket.state.caller)
            await self._services.allowance.request()
            turn = await self._services.conversations.send(self._session_id, *said(self._services, body))
            self._turn = turn
            if self._cancel_asked:
                turn.cancel()
            async with contextlib.aclosing(turn.events) as events:
                async for event in events:
                    # Before it is sent: the client may answer with its next message at once.
                    self._busy = event["type"] != "response.completed"
                    await self._send(event)
        except (Overloaded, Unavailable, NotFound, Unauthenticated) as error:
            await _refuse(self._socket, error)
        except WebSocketDisconnect:
            return
        except Exception as error:
            self._busy = False
            await self._send(error_event(error))

    async def _send(self, event: dict[str, Any]) -> None:
        try:
            await self._socket.send_text(json.dumps(event, ensure_ascii=False))
        except RuntimeError as error:  # starlette's word for a socket that was closed meanwhile
            raise WebSocketDisconnect(1006) from error
