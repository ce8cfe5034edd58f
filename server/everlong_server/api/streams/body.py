"""`StreamBody`: the body of a response that is sent while it is generated."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Generic, TypeVar

Part = TypeVar("Part")


class StreamBody(AsyncIterator[Part], Generic[Part]):
    """Encodes `events`. If they fail, the encoded error is the last part.

    `aclose` ends the work behind the events even if none was sent, as when the client disconnects before the response's head. A
    generator that has not started runs none of its code when it is closed, so what it should release would be held for ever.
    """

    def __init__(
        self,
        events: AsyncGenerator[dict[str, Any], None],
        encode: Callable[[dict[str, Any]], Part],
        encode_error: Callable[[Exception], Part],
        end: Part | None = None,
    ) -> None:
        """`end`: the part after the last event, if nothing failed."""
        self._events = events
        self._parts = self._encoded(encode, encode_error, end)
        self._started = False

    async def _encoded(
        self, encode: Callable[[dict[str, Any]], Part], encode_error: Callable[[Exception], Part], end: Part | None
    ) -> AsyncGenerator[Part, None]:
        async with contextlib.aclosing(self._events):
            try:
                async for event in self._events:
                    yield encode(event)
                if end is not None:
                    yield end
            except Exception as error:
                yield encode_error(error)

    async def __anext__(self) -> Part:
        self._started = True
        return await anext(self._parts)

    async def aclose(self) -> None:
        """Close the events."""
        if not self._started:  # the first event is available: all work begins with it before there is a response
            await anext(self, None)
        await self._parts.aclose()
