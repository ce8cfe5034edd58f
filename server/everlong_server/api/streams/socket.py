"""`JsonSocket`: a WebSocket that exchanges JSON objects with a `type`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from everlong_server.api.bodies.json_body import parse_json
from everlong_server.api.errors import as_server_error
from everlong_server.api.streams.sse import error_event
from everlong_server.errors import InvalidRequest, Overloaded, ServerError, Unavailable
from everlong_server.services import Services
from everlong_server.tasks import cancel

# Close codes of RFC 6455 and the IANA registry.
GOING_AWAY, POLICY, RESTART, TRY_LATER = 1001, 1008, 1012, 1013


async def refuse(socket: WebSocket, error: Exception) -> None:
    """Send the error, then close the socket with the matching code."""
    known = as_server_error(error)
    code = POLICY
    if isinstance(known, Unavailable):
        code = RESTART
    elif isinstance(known, Overloaded):
        code = TRY_LATER
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client has disconnected
        await socket.send_json(error_event(known))
        await socket.close(code, known.message.encode()[:120].decode(errors="ignore"))


class JsonSocket(ABC):
    """Base of the WebSocket endpoints. `busy`: whether an answer is running. `answer_task` is its task, which is cancelled when the
    client disconnects."""

    def __init__(self, socket: WebSocket, services: Services) -> None:
        self.socket = socket
        self.services = services
        self._idle_seconds = services.shared.settings.websocket_idle_seconds
        self.busy = False
        self.answer_task: asyncio.Task[None] | None = None

    @abstractmethod
    async def receive(self, kind: object, message: dict[str, Any]) -> None:
        """Handle a message of the type `kind`. A raised `ServerError` is sent to the client."""

    async def admit(self) -> None:
        """Count a request of the client. Raises `RateLimited`, and `Unauthenticated` if its key was revoked since the socket was opened."""
        await self.services.shared.credentials.check(self.socket.state.caller)
        await self.services.quota.request()

    async def run(self) -> None:
        """Handle messages until the client disconnects, is idle for too long, or is refused."""
        try:
            while self.socket.client_state is WebSocketState.CONNECTED:
                frame = await self._next_frame()
                if frame["type"] == "websocket.disconnect":
                    return
                try:
                    message = _parsed(frame)
                    await self.receive(message.pop("type", None), message)
                except ServerError as error:
                    await self.fail(error)
        except TimeoutError:
            await self.socket.close(GOING_AWAY, "idle for too long")
        except WebSocketDisconnect:
            return
        finally:
            # Cancelling stops the answer within one decode step and leaves the session unchanged.
            if self.answer_task is not None:
                await cancel(self.answer_task)

    async def _next_frame(self) -> MutableMapping[str, Any]:
        """Return the next frame. Raises `TimeoutError` if the client is idle for too long and no answer is running."""
        frame = asyncio.create_task(self.socket.receive())
        try:
            while not (await asyncio.wait([frame], timeout=self._idle_seconds))[0]:
                if self.answer_task is None or self.answer_task.done():
                    raise TimeoutError
                await asyncio.wait([frame, self.answer_task], return_when=asyncio.FIRST_COMPLETED)
            return await frame
        finally:
            frame.cancel()

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event. Raises `WebSocketDisconnect` if the client has disconnected."""
        try:
            await self.socket.send_text(json.dumps(event, ensure_ascii=False))
        except RuntimeError as error:  # Starlette raises it for a socket that was closed in the meantime
            raise WebSocketDisconnect(1006) from error

    async def fail(self, error: Exception) -> None:
        """Send an error."""
        await self.send(error_event(error))


def _parsed(frame: MutableMapping[str, Any]) -> dict[str, Any]:
    text = frame.get("text")
    if text is None:
        raise InvalidRequest("the frame is binary: send JSON text", code="invalid_frame")
    try:
        message = parse_json(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the frame is not valid JSON: {error.msg}", code="invalid_json") from None
    if not isinstance(message, dict):
        raise InvalidRequest("the frame is not a JSON object: send one", code="invalid_frame")
    return message
