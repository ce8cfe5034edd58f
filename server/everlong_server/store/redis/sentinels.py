"""`Sentinels`: which Redis is the master, and whether a failover may lose a write that not every replica has.

Sentinel promotes one of the replicas without asking the others. Until the old master is told, which takes about a second, it still takes
writes, and its other replicas still acknowledge them: all of that is lost. So a write is safe if all replicas have it, whichever of them is
promoted. Otherwise the Sentinels are asked whether anybody is being promoted.

Two small gaps remain. A failover by command is known to one Sentinel alone until it ends, and the server may not reach this Sentinel. And a
failover that begins directly after the Sentinels' answer may promote a replica that lacks the write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from everlong_server.store.redis.shared_call import SharedCall

_FRESH_SECONDS = 5.0
_ANSWER_SECONDS = 1.0
_DOWN = frozenset({"s_down", "o_down"})
"""Flags of a master that one Sentinel, or enough of them, cannot reach."""


class SentinelsOfService(Sentinel):
    """redis-py's Sentinels, which find the master that the latest failover chose.

    redis-py takes the master that the first Sentinel names. A client that reaches both sides of a parted network would then stay with the
    old master, because the Sentinel on its side has not heard of the new one.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], service: str, **options: Any) -> None:
        super().__init__(list(hosts), **options)  # type: ignore[no-untyped-call]
        self.asked = Sentinels(self.sentinels, service)

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return address and port of the master. Raises `MasterNotFoundError` if no Sentinel knows one that is up."""
        return await self.asked.master()


class Sentinels:
    """Asks the Sentinels of one service."""

    def __init__(self, clients: Sequence[Any], service: str) -> None:
        self._clients = clients
        self._service = service
        self._known: tuple[int, float] | None = None
        self._copied: tuple[int, float] | None = None
        self._silent: dict[Any, asyncio.Task[None]] = {}
        self._masters = SharedCall(lambda: self._ask("SENTINEL MASTER"))
        self._replicas = SharedCall(lambda: self._ask("SENTINEL SLAVES"))

    async def master(self) -> tuple[str, int]:
        """Return address and port of the master, as the Sentinel says that knows of the latest failover. Asks after this call.

        Raises `MasterNotFoundError` if no Sentinel answers, or none of those sees it up.
        """
        current = _of_latest_failover(await self._masters.call())
        # The Sentinel that leads a failover names the old master until the failover ends.
        for state in sorted(current, key=lambda state: "failover_in_progress" in _flags(state)):
            if _DOWN.isdisjoint(_flags(state)):
                return state["ip"], int(state["port"])
        raise MasterNotFoundError(f"no Sentinel knows a master of {self._service!r} that is up")

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
        """Raise `RedisConnectionError` unless a majority of the Sentinels knows of the latest failover, all of these name the master with
        `run_id` and see it up, and no Sentinel that answers is about to promote another. Asks after this call.

        A Sentinel that was cut off from the others during the latest failover still names the master before it.
        """
        states = await self._masters.call()
        number = max(len(self._clients), *(int(state["num-other-sentinels"]) + 1 for state in states), 1)
        current = _of_latest_failover(states)
        if 2 * len(current) <= number:
            raise RedisConnectionError(
                f"some Redis replicas lack the write, and {len(current)} of {number} Sentinels answer and know the latest master"
            )
        changing = any("failover_in_progress" in _flags(state) for state in states)
        if changing or any(state["runid"] != run_id or not _DOWN.isdisjoint(_flags(state)) for state in current):
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
                if client not in self._silent:
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


def _of_latest_failover(states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of the Sentinels that know of the latest failover: each failover takes a higher number."""
    latest = max((int(state["config-epoch"]) for state in states), default=0)
    return [state for state in states if int(state["config-epoch"]) == latest]


def _flags(state: dict[str, Any]) -> Sequence[str]:
    """Return the flags of a Redis. redis-py returns them as one string, or a set, as its version is."""
    flags = state["flags"]
    return flags.split(",") if isinstance(flags, str) else list(flags)
