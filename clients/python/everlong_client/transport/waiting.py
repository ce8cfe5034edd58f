"""The polling logic of `wait`: when to ask for the state again, which outages to tolerate, when to give up. No I/O."""

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

T = TypeVar("T", Document, Session)

READ_TIMEOUT = 10.0  # seconds without a byte after which the request is repeated
MAX_OUTAGE = (
    60.0  # seconds for which the server may be unreachable, for example while it restarts, before that is an error
)
LONGEST_PAUSE = 2.0  # seconds

# The errors of a restarting server, or of the proxy in front of it.
_TRANSIENT = (
    APIConnectionError,
    APITimeoutError,
    StreamError,
    RateLimitError,
    ServiceUnavailableError,
    InternalServerError,
)


class Waiting(Generic[T]):
    """One wait for the document or session `id`, of at most `timeout` seconds; None waits for ever.

    `progress` is called with the document or session each time that it changes. `clock` returns seconds.
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
        """Record the current state and return whether the wait is over. Raises `ReadingFailedError` if reading failed."""
        self._away_since, self._retry_after = None, 0.0
        if subject != self._last:
            self._last = subject
            if self._progress is not None:
                self._progress(subject)
        if subject.status == "failed":
            reason = subject.error.message if subject.error else "the server gave no reason"
            code = subject.error.code if subject.error else None
            raise ReadingFailedError(f"{self._id} could not be read: {reason}", id=self._id, code=code)
        return subject.status == "ready"

    @contextmanager
    def tolerating_outage(self) -> Iterator[None]:
        """Suppress transient errors for up to `MAX_OUTAGE` seconds.

        The first request must succeed, so that a wrong address is an error at once.
        """
        try:
            yield
        except _TRANSIENT as error:
            self._tolerate(error)

    @property
    def may_stream(self) -> bool:
        """Whether to follow the event stream. Near the deadline only polling is used: a silent stream could exceed it."""
        return self._deadline - self._clock() > READ_TIMEOUT

    @property
    def read_timeout(self) -> float:
        """The seconds that a request may wait for its next byte."""
        return min(READ_TIMEOUT, max(1.0, self._deadline - self._clock()))

    def pause(self) -> float:
        """Return the seconds to sleep before the next request. Raises `APITimeoutError` after the timeout."""
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
    """Return the document in a `document.…` event; None for events without one, like `document.deleted`."""
    try:
        data = json.loads(event.data)
    except ValueError as error:
        raise StreamError(f"the server sent an invalid event: {event.data[:200]!r}") from error
    shown = data.get("document", data) if isinstance(data, dict) else None
    return from_json(Document, shown) if shown and "status" in shown else None
