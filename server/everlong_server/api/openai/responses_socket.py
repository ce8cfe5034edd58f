"""`WS /v1/responses`: OpenAI's WebSocket mode.

The client sends `response.create`, one at a time; the server sends the same events as over HTTP. The socket stays open after
an error. The client can continue from the socket's last response even if it is not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from everlong_server.api.caller_services import get_services
from everlong_server.api.errors import as_server_error, error_headers
from everlong_server.api.openai.response_events import response_events
from everlong_server.api.openai.response_requests import has_content, parse_request, with_model
from everlong_server.api.openai.response_schemas import CreateResponse
from everlong_server.api.streams.socket import JsonSocket, refuse
from everlong_server.api.streams.sse import error_event
from everlong_server.errors import Conflict, InvalidRequest, Unauthenticated, Unavailable
from everlong_server.services import Services
from everlong_server.store.responses import Response

router = APIRouter()

_HTTP_ONLY = ("stream", "stream_options", "background")


@router.websocket("/v1/responses")
async def socket(socket: WebSocket) -> None:
    """Open a WebSocket for responses, one at a time."""
    await socket.accept()
    try:
        services = get_services(socket)
    except Exception as error:
        await refuse(socket, error)
        return
    await _ResponsesSocket(socket, services).run()


class _ResponsesSocket(JsonSocket):
    def __init__(self, socket: WebSocket, services: Services) -> None:
        super().__init__(socket, services)
        self._last: Response | None = None
        """The last response, if it is not stored."""

    async def receive(self, kind: object, message: dict[str, Any]) -> None:
        """Start a response."""
        if kind != "response.create":
            raise InvalidRequest(
                f"unknown type {str(kind)[:60]!r}: send response.create", param="type", code="unknown_type"
            )
        if self.busy:
            raise Conflict("a response is in progress on this socket: wait for its end", code="response_in_progress")
        for name in _HTTP_ONLY:
            if message.get(name) not in (None, False):
                raise InvalidRequest(
                    f"{name}: not supported over a WebSocket; leave the field out", param=name, code="unknown_parameter"
                )
        try:
            body = CreateResponse.model_validate(message)
        except ValidationError as error:
            raise as_server_error(error) from None
        self.busy = True
        self.answer_task = asyncio.create_task(self._answer(body))

    async def _answer(self, body: CreateResponse) -> None:
        try:
            await self.admit()
            async with contextlib.AsyncExitStack() as held:
                await self._send_answer(self.services.holding(held), body)
        except WebSocketDisconnect:
            return
        except (Unavailable, Unauthenticated) as error:
            await refuse(self.socket, error)
        except Exception as error:
            self.busy = False
            await self.fail(error)

    async def _send_answer(self, services: Services, body: CreateResponse) -> None:
        previous = None
        if self._last is not None and self._last.session and body.previous_response_id == self._last.id:
            previous = self._last
        elif body.previous_response_id:
            previous = await services.response_turns.previous(body.previous_response_id)
        services = await with_model(services, body, previous)
        response, response_turns = await parse_request(services, body, previous), services.response_turns
        await services.wait_for_memory(response.documents, inline=has_content(body))
        answering = await response_turns.begin(response, previous, response_turns.keep if body.store else None)
        async with contextlib.aclosing(response_events(answering)) as pieces:
            async for event in pieces:
                if event.get("response", {}).get("status", "in_progress") != "in_progress":
                    # Set before the event is sent, because the client may send its next request at once.
                    self.busy = False
                    self._last = None if body.store else answering.response
                await self.send(event)

    async def fail(self, error: Exception) -> None:
        """Send an error in the format of OpenAI's API, with the status and headers of its HTTP response."""
        known, event = as_server_error(error), error_event(error)
        if headers := error_headers(known):
            event["error"]["headers"] = {name.lower(): value for name, value in headers.items()}
        await self.send(event | {"status": known.status})
