"""`Sentinels`: whether a failover may lose a write that not every replica of Redis has.

Sentinel promotes one of the replicas without asking the others. Until the old master is told, which takes about a second, it still takes
writes, and its other replicas still acknowledge them: all of that is lost. So a write is safe if all replicas have it, whichever of them is
promoted. Otherwise the Sentinels must say that nobody is being promoted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from everlong_server.store.redis.shared_call import SharedCall

_FRESH_SECONDS = 5.0
_ANSWER_SECONDS = 1.0
_CHANGING = frozenset({"s_down", "o_down", "failover_in_progress"})
"""Flags of a master that is being replaced, or may be."""


class Sentinels:
    """Asks the Sentinels of one service.

    `connected`: how many replicas the master had when the last write lacked some; None: the last write lacked none.
    """

    def __init__(self, sentinel: Sentinel, service: str) -> None:
        self.connected: int | None = None
        self._clients: list[Any] = sentinel.sentinels
        self._service = service
        self._known: tuple[int, float] | None = None
        self._states = SharedCall(self._ask)
        self._silent: dict[Any, asyncio.Task[None]] = {}

    async def replicas(self) -> int:
        """Return how many replicas the Sentinels know, also those that are down; at most five seconds old if a Sentinel answers.

        Raises `RedisConnectionError` if no Sentinel has ever answered.
        """
        if self._known is None or time.monotonic() - self._known[1] > _FRESH_SECONDS:
            states = await self._states.call()
            if states:
                self._known = (max(int(state["num-slaves"]) for state in states), time.monotonic())
            elif self._known is None:
                raise RedisConnectionError(f"no Sentinel of {self._service!r} answers")
        return self._known[0]

    async def require_master(self, run_id: str) -> None:
        """Raise `RedisConnectionError` unless a majority of the Sentinels answers, and all of these name the master with `run_id`, see it
        up and know of no failover. Asks after this call."""
        states = await self._states.call()
        everybody = max((int(state["num-other-sentinels"]) + 1 for state in states), default=len(self._clients))
        if 2 * len(states) <= everybody:
            raise RedisConnectionError(
                f"some Redis replicas lack the write, and {len(states)} of {everybody} Sentinels answer"
            )
        for state in states:
            if state["runid"] != run_id or not _CHANGING.isdisjoint(state["flags"]):
                raise RedisConnectionError("some Redis replicas lack the write, and the master is being replaced")

    async def _ask(self) -> list[Mapping[str, Any]]:
        """Return what each Sentinel says of the master that answers within a second."""
        asked = [client for client in self._clients if client not in self._silent]
        tasks = [asyncio.create_task(self._state(client)) for client in asked]
        done, late = await asyncio.wait(tasks, timeout=_ANSWER_SECONDS) if tasks else (set(), set())
        for client, task in zip(asked, tasks, strict=True):
            if task in late:  # cut off: do not wait for it again before it answers
                task.cancel()
                self._silent[client] = asyncio.create_task(self._await_answer(client))
        return [state for task in done if (state := task.result()) is not None]

    async def _await_answer(self, client: Any) -> None:
        """Ask a Sentinel until it answers, so that it is asked with the others again."""
        found = None
        while found is None:
            await asyncio.sleep(_ANSWER_SECONDS)
            found = await self._state(client)
        del self._silent[client]

    async def _state(self, client: Any) -> Mapping[str, Any] | None:
        """Return what a Sentinel says of the master; None if it cannot be reached, or does not know the service."""
        try:
            state: dict[str, Any] = await client.sentinel_master(self._service, return_responses=True)
        except (RedisError, OSError):
            return None
        return state
