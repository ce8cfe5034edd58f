"""`AsyncMessageStream`, the events of an answer, and `AsyncConversation`, a session's WebSocket. `make_sync.py` makes `streams.py` from this file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self, Unpack

from websockets.asyncio.client import ClientConnection, connect
from websockets.protocol import State

from everlong_client.errors import EverlongError
from everlong_client.transport import call as calls
from everlong_client.transport.wire import Wire, encode
from everlong_client.types.event import Answer, Event
from everlong_client.types.message import Message, Sampling


class AsyncMessageStream:
    """An async iterator over the events of one answer. After the last event, `message` is the complete answer.

    Iterating raises `StreamError` if the answer fails. Use it with `async with`, or call `close`: both cancel an answer that
    is not complete.
    """

    def __init__(self, answer: Answer, events: AsyncIterator[Event], close: Callable[[], Awaitable[None]]) -> None:
        self._answer = answer
        self._events = events
        self.close = close

    @property
    def message(self) -> Message:
        """The complete answer. Raises `StreamError` until it is complete."""
        return self._answer.message

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConversation:
    """A session's WebSocket, which carries one answer at a time. It connects on first use, and again after an error.

    If an answer is still running when the next message is sent, it is cancelled and the rest of its events are skipped.
    """

    def __init__(self, wire: Wire, session: str) -> None:
        self._wire = wire
        self._call = calls.session_socket(session)
        self._socket: ClientConnection | None = None
        self._answer = Answer.finished()

    async def send(self, content: str, **sampling: Unpack[Sampling]) -> AsyncMessageStream:
        """Send a message and return an async iterator over the answer's events. Closing it early cancels the answer."""
        await self._cancel_and_skip(self._answer)
        async with self._errors():
            socket = await self._open()
            await socket.send(encode(calls.message_create(content, sampling)))
        self._answer = answer = Answer()
        return AsyncMessageStream(answer, self._events(socket, answer), lambda: self._cancel_and_skip(answer))

    async def cancel(self) -> None:
        """Cancel the running answer, if any. Its last event then carries the text generated so far.

        Another task than the one that reads the events may call this.
        """
        if self._socket is not None and not self._answer.ended:
            async with self._errors():
                await self._socket.send(encode({"type": "response.cancel"}))

    async def close(self) -> None:
        """Close the connection. The server cancels a running answer."""
        socket, self._socket, self._answer = self._socket, None, Answer.finished()
        if socket is not None:
            await socket.close()

    async def __aenter__(self) -> Self:
        async with self._errors():
            await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> ClientConnection:
        if (
            self._socket is not None and self._socket.state is not State.OPEN
        ):  # closed by the server since the last answer
            await self.close()
        retrying = self._wire.retrying(self._call, None)
        while self._socket is None:
            try:
                with self._wire.socket_errors():
                    self._socket = await connect(**self._wire.socket(self._call))
            except EverlongError as error:
                await asyncio.sleep(retrying.pause(error))
        return self._socket

    async def _events(self, socket: ClientConnection, answer: Answer) -> AsyncGenerator[Event]:
        while not answer.ended:
            async with self._errors():
                frame = await socket.recv()
            yield answer.feed(frame)

    async def _cancel_and_skip(self, answer: Answer) -> None:
        if self._socket is not None and not answer.ended:
            await self.cancel()
            async for _ in self._events(self._socket, answer):
                pass

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            with self._wire.socket_errors():
                yield
        except EverlongError:
            await self.close()
            raise
