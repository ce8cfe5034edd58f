"""`DetachedAnswers`: completes answers even if their clients disconnect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

from everlong_server.engine.answering.events import EventStream

E = TypeVar("E")

log = logging.getLogger(__name__)


class DetachedAnswers:
    """The tasks of answers that their readers do not cancel."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself holds only weak references

    async def start(self, begin: Coroutine[Any, Any, EventStream[E]], held: AsyncExitStack) -> AsyncGenerator[E, None]:
        """Return a generator of the events that `begin` returns. Raises what `begin` raises. Closes `held` when the answer has ended.

        Cancelling this call or closing the generator does not end the answer.
        """
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        events: asyncio.Queue[E | Exception | None] = asyncio.Queue()
        task = asyncio.create_task(_run(begin, begun, events, held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(begun)
        return _read(events)


async def _run(
    begin: Coroutine[Any, Any, EventStream[E]],
    begun: asyncio.Future[None],
    events: asyncio.Queue[E | Exception | None],
    held: AsyncExitStack,
) -> None:
    async with held:
        try:
            generated = await begin
        except BaseException as error:
            begun.set_exception(error)
            begun.exception()  # its reader may have left; asyncio would log an error that nobody retrieves
            return
        begun.set_result(None)
        try:
            async with aclosing(generated):
                async for event in generated:
                    events.put_nowait(event)
            events.put_nowait(None)
        except Exception as error:
            # The error's message may quote the request.
            log.info("an answer with `on_disconnect: finish` failed: %s", type(error).__name__)
            events.put_nowait(error)


async def _read(events: asyncio.Queue[E | Exception | None]) -> AsyncGenerator[E, None]:
    while (event := await events.get()) is not None:
        if isinstance(event, Exception):
            raise event
        yield event
