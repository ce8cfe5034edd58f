"""When Sentinels say that the master may be replaced, a write that not all replicas have is not acknowledged.

A failover of a real Redis under writes is in tests/lab/chaos/test_partitions.py.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from everlong_server.store.redis.sentinels import Sentinels

MASTER = {"runid": "a1", "flags": {"master"}, "num-slaves": 2, "num-other-sentinels": 2}


class Client:
    """A Sentinel that answers with `state`; None: it does not answer."""

    def __init__(self, state: dict[str, Any] | None) -> None:
        self.state = state

    async def sentinel_master(self, service: str, *, return_responses: bool) -> dict[str, Any]:
        assert (service, return_responses) == ("main", True)
        if self.state is None:
            raise RedisConnectionError("no route to host")
        return self.state


def sentinels(*states: dict[str, Any] | None) -> Sentinels:
    return Sentinels(SimpleNamespace(sentinels=[Client(state) for state in states]), "main")  # type: ignore[arg-type]


@pytest.mark.parametrize("states", [(MASTER, MASTER, MASTER), (MASTER, None, MASTER)])
async def test_a_majority_that_knows_of_no_change(states: tuple[dict[str, Any] | None, ...]) -> None:
    await sentinels(*states).require_master("a1")


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ((MASTER, None, None), "1 of 3 Sentinels answer"),
        ((None, None, None), "0 of 3 Sentinels answer"),
        ((MASTER, MASTER, MASTER | {"runid": "b2"}), "being replaced"),
        ((MASTER, MASTER, MASTER | {"flags": {"master", "failover_in_progress"}}), "being replaced"),
        ((MASTER, MASTER | {"flags": {"master", "s_down"}}, None), "being replaced"),
    ],
)
async def test_what_may_lose_a_write(states: tuple[dict[str, Any] | None, ...], why: str) -> None:
    with pytest.raises(RedisConnectionError, match=why):
        await sentinels(*states).require_master("a1")


async def test_replicas_that_a_sentinel_learns_of_late_count() -> None:
    assert await sentinels(MASTER | {"num-slaves": 1}, None, MASTER).replicas() == 2
    with pytest.raises(RedisConnectionError, match="no Sentinel of 'main' answers"):
        await sentinels(None).replicas()


async def test_the_number_of_replicas_is_remembered_while_no_sentinel_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong_server.store.redis.sentinels._FRESH_SECONDS", -1)
    client = Client(MASTER)
    asked = Sentinels(SimpleNamespace(sentinels=[client]), "main")  # type: ignore[arg-type]
    assert await asked.replicas() == 2
    client.state = None
    assert await asked.replicas() == 2
    client.state = MASTER | {"num-slaves": 3}
    assert await asked.replicas() == 3


async def test_a_sentinel_that_is_cut_off_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class CutOff(Client):
        def __init__(self) -> None:
            super().__init__(MASTER)
            self.mended = asyncio.Event()

        async def sentinel_master(self, service: str, *, return_responses: bool) -> dict[str, Any]:
            await self.mended.wait()
            return await super().sentinel_master(service, return_responses=return_responses)

    cut_off, waits = CutOff(), list[int]()
    wait = asyncio.wait

    async def counted(tasks: list[Any], **how: Any) -> Any:
        waits.append(len(tasks))
        return await wait(tasks, **how)

    monkeypatch.setattr("everlong_server.store.redis.sentinels._ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(asyncio, "wait", counted)
    asked = Sentinels(SimpleNamespace(sentinels=[Client(MASTER), cut_off, Client(MASTER)]), "main")  # type: ignore[arg-type]
    for _ in range(3):
        await asked.require_master("a1")
    assert waits == [3, 2, 2]
    cut_off.mended.set()
    async with asyncio.timeout(30):
        while waits[-1] == 2:
            await asyncio.sleep(0)
            await asked.require_master("a1")
    assert waits[-1] == 3
