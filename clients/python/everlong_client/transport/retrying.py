"""Retries of a call: which errors are transient, how long to wait, and the idempotency key. No I/O."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from everlong_client.errors import APIConnectionError, APIStatusError, APITimeoutError, EverlongError, NotFoundError
from everlong_client.transport.call import Call

RETRIES = 3
LONGEST_WAIT = 60.0  # seconds; if the server asks for a longer delay, the error is raised and the caller decides
LONGEST_PAUSE = 8.0  # seconds
RESTART_WAIT = 60.0  # seconds for which calls with `waits_for_restart` are retried

_TRANSIENT = {429, 502, 503, 504}


def new_key() -> str:
    """Return a random `Idempotency-Key`."""
    return uuid.uuid4().hex


class Retrying:
    """The retries of one call: at most `retries`, or for a minute if the call waits for restarts.

    Retries calls that the server refuses for now, and calls without a response. Each POST has an `Idempotency-Key`, so
    that the server does nothing twice. `random` returns numbers from 0 to 1, `clock` seconds.
    """

    def __init__(
        self,
        call: Call[Any],
        retries: int,
        random: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = retries if call.body is None or call.body.repeatable else 0
        self._clock = clock
        self._until = None if not call.waits_for_restart or not retries else clock() + RESTART_WAIT
        self._deletes = call.method == "DELETE"
        self._attempt = 0
        self._lost = False
        self._random = random
        self.headers: Mapping[str, str] = {"Idempotency-Key": call.key or new_key()} if call.method == "POST" else {}

    def already_done(self, error: EverlongError) -> bool:
        """Whether an earlier try succeeded although its response was lost: `error` is the 404 of a repeated DELETE."""
        return self._deletes and self._lost and isinstance(error, NotFoundError)

    def pause(self, error: EverlongError) -> float:
        """Return the seconds to wait before the next try. Raises `error` if there is no further try."""
        seconds = self._seconds(error)
        over = self._left <= 0 if self._until is None else self._clock() >= self._until
        if over or seconds is None:
            raise error
        self._left -= 1
        self._attempt += 1
        self._lost = self._lost or isinstance(error, APIConnectionError)
        return seconds

    def _seconds(self, error: EverlongError) -> float | None:
        """Return the delay before the next try; None if a retry cannot help."""
        if isinstance(error, APIStatusError):
            if error.status not in _TRANSIENT and error.code != "idempotency_in_progress":
                return None
            if error.retry_after is not None:
                return error.retry_after if error.retry_after <= LONGEST_WAIT else None
        elif not isinstance(error, APIConnectionError) and not (
            isinstance(error, APITimeoutError) and error.connecting
        ):
            return None
        # Jitter, so that many clients do not retry at the same moment.
        return min(0.25 * 2.0**self._attempt, LONGEST_PAUSE) * (0.75 + self._random() / 2)
