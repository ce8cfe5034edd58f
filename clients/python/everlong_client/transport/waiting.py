"""Waiting until something is read: what to make of each look at it, when to look again, when to give up. No I/O."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from everlong_client.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    EverlongError,
    InternalServerError,
    RateLimitError,
    ReadingFailedError,
    ServiceUnavailableError,
    StreamError,
)
from everlong_client.transport.sse import ServerSentEvent
from everlong_client.types.document import Document
from everlong_client.types.record import from_json
from everlong_client.types.session import Session

__all__ = ["Waiting", "document_of"]

T = TypeVar("T", Document, Session)

READ_TIMEOUT = 10.0  # seconds without a byte after which the question is asked anew
MAX_OUTAGE = 60.0  # seconds for which a server may be away, restarting, before its absence is an error
LONGEST_PAUSE = 2.0  # seconds

# What a restarting server, or the proxy before it, may answer.
_TRANSIENT = (
    APIConnectionError,
    APITimeoutError,
    StreamError,
    RateLimitError,
    ServiceUnavailableError,
    InternalServerError,
)


class Waiting(Generic[T]):
    """One wait for the document or session `id`, for `timeout` seconds, or for ever if that is None.

    `progress` is called with each new look at it. Reads no clock but `clock`, in seconds.
    """

    def __init__(
        self,
        id: str,
        progress: Callable[[T], object] | None,
        timeout: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._id = id
        self._progress: Callable[[T], object] | None = progress
        self._timeout = timeout
        self._clock = clock
        self._deadline = math.inf if timeout is None else clock() + timeout
        self._last: T | None = None
        self._away_since: float | None = None
        self._pause = 0.05
        self._retry_after = 0.0

    def observe(self, subject: T) -> bool:
        """Whether the wait is over. Raises `ReadingFailedError` if the server gave up on it."""
        self._away_since, self._retry_after = None, 0.0
        if subject != self._last:
            self._last = subject
            if self._progress is not None:
                self._progress(subject)
        if subject.status == "failed":
            reason = subject.error.message if subject.error else "the server does not say why"
            code = subject.error.code if subject.error else None
            raise ReadingFailedError(f"{self._id} could not be read: {reason}", id=self._id, code=code)
        return subject.status == "ready"

    @contextmanager
    def tolerating_outage(self) -> Iterator[None]:
        """Swallows the errors of a server that is away for a while: the work goes on when it is back.

        The first look must succeed, so that a wrong address is an error at once.
        """
        try:
            yield
        except _TRANSIENT as error:
            self._tolerate(error)

    @property
    def may_stream(self) -> bool:
        """Whether to follow its events. Near the deadline it is only asked: events could fall silent beyond it."""
        return self._deadline - self._clock() > READ_TIMEOUT

    @property
    def read_timeout(self) -> float:
        """Seconds that a request may wait for its next byte."""
        return min(READ_TIMEOUT, max(1.0, self._deadline - self._clock()))

    def pause(self) -> float:
        """Seconds to sleep before the next look. Raises `APITimeoutError` when the time is up."""
        left = self._deadline - self._clock()
        if left <= 0:
            status = self._last.status if self._last else "unknown"
            raise APITimeoutError(f"{self._id} is not ready after {self._timeout:g} s: its status is {status}")
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return min(max(self._pause, self._retry_after), left)

    def _tolerate(self, error: EverlongError) -> None:
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if self._last is None or now - self._away_since > MAX_OUTAGE:
            raise error
        if isinstance(error, APIStatusError):
            self._retry_after = error.retry_after or 0.0


def document_of(event: ServerSentEvent) -> Document | None:
    """The document that a `document.…` event shows; None for events that show none, like `document.deleted`."""
    try:
        data = json.loads(event.data)
    except ValueError as error:
        raise StreamError(f"an event that cannot be understood: {event.data[:200]!r}") from error
    shown = data.get("document", data) if isinstance(data, dict) else None
    return from_json(Document, shown) if shown and "status" in shown else None
