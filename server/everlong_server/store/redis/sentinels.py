"""`Sentinels`: whether a failover may lose a write that not every replica of Redis has.

Sentinel promotes one of the replicas without asking the others. Until the old master is told, which takes about a second, it still takes
writes, and its other replicas still acknowledge them: all of that is lost. So a write is safe if all replicas have it, whichever of them is
promoted. Otherwise the Sentinels are asked whether anybody is being promoted.

That leaves two gaps, both small: a failover by command is known to one Sentinel alone until it ends, which may be cut off; and a failover
that begins directly after the question may promote a replica that lacks the write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
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
    """Asks the Sentinels of one service."""

    def __init__(self, sentinel: Sentinel, service: str) -> None:
        self._clients: list[Any] = sentinel.sentinels
        self._service = service
        self._known: tuple[int, float] | None = None
        self._copied: tuple[int, float] | None = None
        self._silent: dict[Any, asyncio.Task[None]] = {}
        self._masters = SharedCall(lambda: self._ask("SENTINEL MASTER"))
        self._replicas = SharedCall(lambda: self._ask("SENTINEL SLAVES"))

    async def replicas(self) -> int:
        """Return how many replicas any of the Sentinels knows, also those that are down; at most five seconds old if a Sentinel answers.

        Raises `RedisConnectionError` if no Sentinel has ever answered.
        """
        if self._known is None or time.monotonic() - self._known[1] > _FRESH_SECONDS:
            if answers := await self._replicas.call():
                addresses = {(state["ip"], state["port"]) for replicas in answers for state in replicas}
                self._known = (len(addresses), time.monotonic())
            elif self._known is None:
                raise RedisConnectionError(f"no Sentinel of {self._service!r} answers")
        return self._known[0]

    @property
    def expected(self) -> int | None:
        """How many replicas had a write within the last five seconds that not all had; None: all are expected to have the next one."""
        if self._copied is None or time.monotonic() - self._copied[1] > _FRESH_SECONDS:
            return None
        return self._copied[0]

    def missed(self, copied: int) -> None:
        """Note that only `copied` replicas have a write, so that the next ones do not wait for the others."""
        if self.expected != copied:
            self._copied = (copied, time.monotonic())

    async def require_master(self, run_id: str) -> None:
        """Raise `RedisConnectionError` unless a majority of the Sentinels answers, and all of these name the master with `run_id`, see it
        up and know of no failover. Asks after this call."""
        states = await self._masters.call()
        number = max(len(self._clients), *(int(state["num-other-sentinels"]) + 1 for state in states), 1)
        if 2 * len(states) <= number:
            raise RedisConnectionError(
                f"some Redis replicas lack the write, and {len(states)} of {number} Sentinels answer"
            )
        for state in states:
            if state["runid"] != run_id or not _CHANGING.isdisjoint(_flags(state)):
                raise RedisConnectionError(
                    "some Redis replicas lack the write, and the master is being replaced, or has just started"
                )

    async def _ask(self, command: str) -> list[Any]:
        """Return the answer of each Sentinel that answers within a second."""
        asked = [client for client in self._clients if client not in self._silent]
        tasks = [asyncio.create_task(self._answer(client, command)) for client in asked]
        done, late = await asyncio.wait(tasks, timeout=_ANSWER_SECONDS) if tasks else (set(), set())
        for client, task in zip(asked, tasks, strict=True):
            if task in late:  # cut off: do not wait for it again before it answers
                task.cancel()
                self._silent[client] = asyncio.create_task(self._await_answer(client))
        return [answer for task in done if (answer := task.result()) is not None]

    async def _await_answer(self, client: Any) -> None:
        """Ask a Sentinel until it answers, so that it is asked with the others again."""
        try:
            found = None
            while found is None:
                await asyncio.sleep(_ANSWER_SECONDS)
                found = await self._answer(client, "SENTINEL MASTER")
        finally:
            del self._silent[client]

    async def _answer(self, client: Any, command: str) -> Any:
        """Return a Sentinel's answer about the service; None if it cannot be reached, or does not know the service."""
        try:
            return await client.execute_command(command, self._service)
        except (RedisError, OSError):
            return None


def _flags(state: dict[str, Any]) -> Sequence[str]:
    """Return the flags of a Redis. redis-py returns them as one string, or a set, as its version is."""
    flags = state["flags"]
    return flags.split(",") if isinstance(flags, str) else list(flags)
