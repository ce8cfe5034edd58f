"""`Socket`: a WebSocket that speaks JSON objects, each with its type, until one side has enough."""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from everlong_server.api.errors import as_server_error
from everlong_server.api.sse import error_event
from everlong_server.errors import InvalidRequest, Overloaded, ServerError, Unavailable

# RFC 6455 and the IANA registry.
GOING_AWAY, POLICY, RESTART, TRY_LATER = 1001, 1008, 1012, 1013


async def refuse(socket: WebSocket, error: Exception) -> None:
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


class JsonSocket(ABC):
    """`answering`: the answer under way, which ends when the client goes."""

    def __init__(self, socket: WebSocket, idle_seconds: float) -> None:
        self.socket = socket
        self._idle_seconds = idle_seconds
        self.answer_task: asyncio.Task[None] | None = None

    @abstractmethod
    async def receive(self, kind: object, message: dict[str, Any]) -> None:
        """What the client says, without its type. Raises `ServerError`, which the client is told."""

    async def run(self) -> None:
        """Until the client leaves, is silent for too long, or may not go on."""
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
            # The client has gone: its answer ends within one step, and all is as it was before.
            if self.answer_task is not None:
                self.answer_task.cancel()
                await asyncio.gather(self.answer_task, return_exceptions=True)

    async def _next_frame(self) -> MutableMapping[str, Any]:
        """The client's next frame. Raises `TimeoutError` if it is silent for too long, and no answer is under way."""
        hearing = asyncio.create_task(self.socket.receive())
        try:
            while not (await asyncio.wait([hearing], timeout=self._idle_seconds))[0]:
                if self.answer_task is None or self.answer_task.done():
                    raise TimeoutError
                await asyncio.wait([hearing, self.answer_task], return_when=asyncio.FIRST_COMPLETED)
            return await hearing
        finally:
            hearing.cancel()

    async def send(self, event: dict[str, Any]) -> None:
        """Raises `WebSocketDisconnect` if the client has gone."""
        try:
            await self.socket.send_text(json.dumps(event, ensure_ascii=False))
        except RuntimeError as error:  # starlette's word for a socket that was closed meanwhile
            raise WebSocketDisconnect(1006) from error

    async def fail(self, error: Exception) -> None:
        """Tells the client."""
        await self.send(error_event(error))


def _parsed(frame: MutableMapping[str, Any]) -> dict[str, Any]:
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
    return message
