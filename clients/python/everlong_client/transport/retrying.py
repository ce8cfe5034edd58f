"""Trying a call again: which errors pass, how long to wait, how the server knows the call again. No I/O."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from everlong_client.errors import APIConnectionError, APIStatusError, APITimeoutError, EverlongError, NotFoundError
from everlong_client.transport.call import Call

__all__ = ["RETRIES", "Retrying"]

RETRIES = 3
LONGEST_WAIT = 60.0  # seconds; a longer one is the caller's to decide on
LONGEST_PAUSE = 8.0  # seconds
RESTART_WAIT = 60.0  # seconds for which a server may be away, restarting, while a patient call is tried again

_TRANSIENT = {429, 502, 503, 504}


class Retrying:
    """The tries of one call, `retries` of them beside the first; of a patient one, those of a minute.

    What the server refuses for now is tried again, and what had no answer; a POST has an `Idempotency-Key`, by which the
    server knows it again and does nothing twice. `random` gives numbers from 0 to 1, `clock` seconds.
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
        self.headers: Mapping[str, str] = {"Idempotency-Key": uuid.uuid4().hex} if call.method == "POST" else {}

    def already_done(self, error: EverlongError) -> bool:
        """Whether `error` says that the call was done by a try before, whose answer was lost: what it deletes is gone."""
        return self._deletes and self._lost and isinstance(error, NotFoundError)

    def pause(self, error: EverlongError) -> float:
        """Seconds to wait before the next try. Raises `error` if there is none."""
        seconds = self._seconds(error)
        over = self._left <= 0 if self._until is None else self._clock() >= self._until
        if over or seconds is None:
            raise error
        self._left -= 1
        self._attempt += 1
        self._lost = self._lost or isinstance(error, APIConnectionError)
        return seconds

    def _seconds(self, error: EverlongError) -> float | None:
        """None: it would be of no use."""
        if isinstance(error, APIStatusError):
            if error.status not in _TRANSIENT and error.code != "idempotency_in_progress":
                return None
            if error.retry_after is not None:
                return error.retry_after if error.retry_after <= LONGEST_WAIT else None
        elif not isinstance(error, APIConnectionError) and not (
            isinstance(error, APITimeoutError) and error.connecting
        ):
            return None
        # Not all clients at the same moment.
        return min(0.25 * 2.0**self._attempt, LONGEST_PAUSE) * (0.75 + self._random() / 2)
