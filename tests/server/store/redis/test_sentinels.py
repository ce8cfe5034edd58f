"""When Sentinels say that the master may be replaced, a write that not all replicas have is not acknowledged.

A failover of a real Redis under writes is in tests/lab/chaos/test_partitions.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from everlong_server.store.redis.sentinels import Sentinels
from everlong_server.store.redis.shared_call import SharedCall

MASTER: dict[str, Any] = {
    "runid": "a1", "flags": "master", "num-other-sentinels": 2, "replicas": ["b", "c"],
    "ip": "a", "port": 6379, "config-epoch": 1,
}  # fmt: skip
"""What a Sentinel says, as redis-py returns it, and the addresses of the replicas that it knows."""


class Client:
    """A Sentinel that answers with `state`; None: it does not answer."""

    def __init__(self, state: dict[str, Any] | None) -> None:
        self.state = state

    async def execute_command(self, command: str, service: str) -> Any:
        assert service == "main"
        if self.state is None:
            raise RedisConnectionError("no route to host")
        if command == "SENTINEL MASTER":
            return self.state
        assert command == "SENTINEL SLAVES"
        return [{"ip": address, "port": 6379} for address in self.state["replicas"]]


def sentinels(*states: dict[str, Any] | None) -> Sentinels:
    return Sentinels([Client(state) for state in states], "main")


NEXT = MASTER | {"runid": "b2", "ip": "b", "config-epoch": 2}
DOWN = {"flags": "s_down,master"}


@pytest.mark.parametrize(
    ("states", "run_id"),
    [
        ((MASTER, MASTER, MASTER), "a1"),
        ((MASTER, None, MASTER), "a1"),
        ((MASTER, NEXT, NEXT), "b2"),
        ((MASTER | DOWN, NEXT, NEXT), "b2"),
    ],
)
async def test_a_majority_that_knows_of_no_change(states: tuple[dict[str, Any] | None, ...], run_id: str) -> None:
    await sentinels(*states).require_master(run_id)


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ((MASTER, None, None), "1 of 3 Sentinels answer"),
        ((None, None, None), "0 of 3 Sentinels answer"),
        ((MASTER | {"num-other-sentinels": 0}, None, None), "1 of 3 Sentinels answer"),
        ((MASTER | {"num-other-sentinels": 4}, MASTER, None), "2 of 5 Sentinels answer"),
        ((MASTER, MASTER, MASTER | {"runid": "b2"}), "being replaced"),
        ((MASTER, MASTER, MASTER | {"flags": "master,failover_in_progress,force_failover"}), "being replaced"),
        ((MASTER, MASTER | DOWN, None), "being replaced"),
        ((MASTER, MASTER, NEXT), "1 of 3 Sentinels answer and know the latest master"),
        ((MASTER, NEXT, NEXT), "being replaced"),
        (
            (NEXT | {"runid": "a1"}, NEXT | {"runid": "a1"}, MASTER | {"flags": "master,failover_in_progress"}),
            "being replaced",
        ),
    ],
)
async def test_what_may_lose_a_write(states: tuple[dict[str, Any] | None, ...], why: str) -> None:
    with pytest.raises(RedisConnectionError, match=why):
        await sentinels(*states).require_master("a1")


@pytest.mark.parametrize(
    ("states", "address"),
    [
        ((MASTER, MASTER, MASTER), "a"),
        ((MASTER, NEXT, NEXT), "b"),
        ((MASTER, None, NEXT), "b"),
        ((MASTER | DOWN, MASTER, None), "a"),
        ((NEXT | {"ip": "a", "flags": "master,failover_in_progress"}, NEXT, None), "b"),
    ],
)
async def test_the_master_is_the_one_of_the_latest_failover(
    states: tuple[dict[str, Any] | None, ...], address: str
) -> None:
    assert await sentinels(*states).master() == (address, 6379)


@pytest.mark.parametrize("states", [(None, None), (MASTER | DOWN, None), (MASTER, NEXT | DOWN)])
async def test_no_master_is_found(states: tuple[dict[str, Any] | None, ...]) -> None:
    with pytest.raises(RedisConnectionError, match="no Sentinel knows a master of 'main' that is up"):
        await sentinels(*states).master()


async def test_all_replicas_that_any_sentinel_knows_count() -> None:
    assert await sentinels(MASTER | {"replicas": ["b"]}, None, MASTER | {"replicas": ["c"]}).replicas() == 2
    with pytest.raises(RedisConnectionError, match="no Sentinel of 'main' answers"):
        await sentinels(None).replicas()


async def test_the_number_of_replicas_is_remembered_while_no_sentinel_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong_server.store.redis.sentinels._FRESH_SECONDS", -1)
    client = Client(MASTER)
    asked = Sentinels([client], "main")
    assert await asked.replicas() == 2
    client.state = None
    assert await asked.replicas() == 2
    client.state = MASTER | {"replicas": ["b", "c", "d"]}
    assert await asked.replicas() == 3


async def test_replicas_that_missed_a_write_are_not_waited_for_until_a_while_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = sentinels(MASTER)
    assert asked.expected is None
    asked.missed(1)
    assert asked.expected == 1
    monkeypatch.setattr("everlong_server.store.redis.sentinels._FRESH_SECONDS", -1)
    assert asked.expected is None


async def test_a_sentinel_that_two_calls_wait_for_in_vain_is_awaited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong_server.store.redis.sentinels._ANSWER_SECONDS", 0.01)
    answers = asyncio.Event()

    class Silent(Client):
        async def execute_command(self, command: str, service: str) -> Any:
            await answers.wait()
            return await super().execute_command(command, service)

    asked = Sentinels([Silent(MASTER)], "main")
    await asyncio.gather(asked.master(), asked.replicas(), return_exceptions=True)
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    answers.set()
    ended, _ = await asyncio.wait(waiting, timeout=30)
    assert [task.exception() for task in ended if not task.cancelled()] == [None]
    assert await asked.replicas() == 2


async def test_a_shared_call_that_was_cancelled_before_it_began_is_replaced() -> None:
    calls = list[int]()

    async def function() -> int:
        calls.append(1)
        return len(calls)

    shared = SharedCall(function)
    first = asyncio.create_task(shared.call())
    await asyncio.sleep(0)
    (begun,) = [task for task in asyncio.all_tasks() if task not in (first, asyncio.current_task())]
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert [await call for call in [asyncio.create_task(shared.call()) for _ in range(2)]] == [1, 1]


async def test_a_sentinel_that_is_cut_off_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class CutOff(Client):
        def __init__(self) -> None:
            super().__init__(MASTER)
            self.mended = asyncio.Event()

        async def execute_command(self, command: str, service: str) -> Any:
            await self.mended.wait()
            return await super().execute_command(command, service)

    cut_off, waits = CutOff(), list[int]()
    wait = asyncio.wait

    async def counted(tasks: list[Any], **how: Any) -> Any:
        waits.append(len(tasks))
        return await wait(tasks, **how)

    monkeypatch.setattr("everlong_server.store.redis.sentinels._ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(asyncio, "wait", counted)
    asked = Sentinels([Client(MASTER), cut_off, Client(MASTER)], "main")
    for _ in range(3):
        await asked.require_master("a1")
    assert waits == [3, 2, 2]
    cut_off.mended.set()
    async with asyncio.timeout(30):
        while waits[-1] == 2:
            await asyncio.sleep(0)
            await asked.require_master("a1")
    assert waits[-1] == 3
