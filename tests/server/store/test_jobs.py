"""Jobs: each has one owner; jobs of dead replicas are taken over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as ConnectionError_
from redis.exceptions import ResponseError

from everlong_server.engine.documents.reading import Reader
from everlong_server.store.jobs import Jobs
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, connect

MODEL = "m" * 64


async def test_a_dead_replicas_job_is_taken_over_by_one(url: str) -> None:
    redis = connect(url)
    await redis.flushall()
    dead, a, b = (Jobs(redis, MODEL, name, 5.0) for name in ("dead", "a", "b"))
    for jobs in (dead, a, b):
        await jobs.prepare(alone=False)
    await redis.xadd(keys.jobs(MODEL), {"reading": "r1", "tenant": "t"})
    job = await dead.next(10)
    assert job is not None
    assert await a.next(10) is None, "its owner lives"
    await dead.deregister()
    taken = await asyncio.gather(*(jobs.next(10) for jobs in (a, b) for _ in range(4)))
    assert [job for job in taken if job is not None] == [job]
    await (a if job.entry in a._working else b).done(job)
    assert await redis.xlen(keys.jobs(MODEL)) == 0
    await redis.aclose()


async def held(redis: Client) -> dict[bytes, bytes]:
    """Return the replica that owns each entry."""
    pending = await redis.xpending_range(keys.jobs(MODEL), keys.READERS, "-", "+", 1000)
    return {item["message_id"]: item["consumer"] for item in pending}


async def test_a_job_that_another_replica_took_over_is_left_alone(url: str) -> None:
    """A stalled replica must not remove or requeue a job that another replica is working on."""
    redis = connect(url)
    await redis.flushall()
    stalled, other = (Jobs(redis, MODEL, name, 60.0) for name in ("stalled", "other"))
    for jobs in (stalled, other):
        await jobs.prepare(alone=False)
    await redis.xadd(keys.jobs(MODEL), {"reading": "r1", "tenant": "t"})
    job = await stalled.next(10)
    assert job is not None
    await stalled.deregister()
    assert await other.next(10) == job
    for end in (stalled.done, stalled.requeue):
        await end(job)
        assert await held(redis) == {job.entry.encode(): b"other"}
        assert await redis.xlen(keys.jobs(MODEL)) == 1
    await other.done(job)
    assert await redis.xlen(keys.jobs(MODEL)) == 0
    await redis.aclose()


async def test_a_job_that_is_put_back_twice_is_there_once(url: str) -> None:
    """Requeueing is retried if its reply is lost."""
    redis = connect(url)
    await redis.flushall()
    jobs = Jobs(redis, MODEL, "a", 60.0)
    await jobs.prepare(alone=False)
    await redis.xadd(keys.jobs(MODEL), {"reading": "r1", "tenant": "t"})
    job = await jobs.next(10)
    assert job is not None
    for _ in range(2):
        await jobs.requeue(job)
    assert await redis.xlen(keys.jobs(MODEL)) == 1
    later = await jobs.next(10)
    assert later is not None
    assert (later.id, later.fields) == (job.id, job.fields)
    await jobs.done(job)
    assert await redis.xlen(keys.jobs(MODEL)) == 1, "ending the old entry does not end the new one"
    await redis.xdel(keys.jobs(MODEL), later.entry)  # deleted by hand
    await jobs.requeue(later)
    assert await redis.xlen(keys.jobs(MODEL)) == 0
    assert await held(redis) == {}
    await redis.aclose()


async def test_of_two_entries_for_one_job_a_replica_does_one(url: str) -> None:
    """Two workers of one replica would take it from each other until the document is given up."""
    redis = connect(url)
    await redis.flushall()
    jobs = Jobs(redis, MODEL, "a", 60.0)
    await jobs.prepare(alone=False)
    for _ in range(2):
        await redis.xadd(keys.jobs(MODEL), {"reading": "r1", "tenant": "t"})
    job = await jobs.next(10)
    assert job is not None
    assert await jobs.next(10) is None
    assert await held(redis) == {job.entry.encode(): b"a"}
    assert await redis.xlen(keys.jobs(MODEL)) == 1
    # The job was requeued, and its worker does not know yet: only the new entry is left.
    await Jobs(redis, MODEL, "a", 60.0).requeue(job)
    again = await jobs.next(10)
    assert again is not None
    assert again.id == "r1"
    await jobs.drop(again, job.entry)
    assert await held(redis) == {again.entry.encode(): b"a"}, "the other entry is gone"
    await redis.aclose()


async def test_jobs_of_dead_replicas_are_found_after_any_number_of_jobs_of_living_ones(url: str) -> None:
    redis = connect(url)
    await redis.flushall()
    alive, dead, idle = (Jobs(redis, MODEL, name, 60.0) for name in ("alive", "dead", "idle"))
    for jobs in (alive, dead, idle):
        await jobs.prepare(alone=False)
    async with redis.pipeline() as pipe:
        for n in range(1102):
            pipe.xadd(keys.jobs(MODEL), {"reading": f"r{n}", "tenant": "t"})
        await pipe.execute()
    entries = [entry for entry, _ in await redis.xrange(keys.jobs(MODEL))]
    await redis.xclaim(keys.jobs(MODEL), keys.READERS, "alive", 0, entries[:1100], force=True)
    last = [await dead.next(10) for _ in range(2)]
    await dead.deregister()
    assert last[0] is not None
    await redis.xdel(keys.jobs(MODEL), last[0].entry)  # nobody said that it was done
    calls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    found = await idle.next(10)
    assert found == last[1]
    assert found.redelivered
    assert last[0].entry.encode() not in await held(redis)
    assert await idle.next(10) is None
    polls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"] - calls
    assert polls <= 4, "one script for all that others have"
    await redis.aclose()


async def test_a_job_whose_delivery_got_lost_comes_again(url: str) -> None:
    redis = connect(url)
    await redis.flushall()
    jobs = Jobs(redis, MODEL, "a", 5.0)
    await jobs.prepare(alone=False)
    await redis.xadd(keys.jobs(MODEL), {"reading": "r1", "tenant": "t"})
    await redis.xreadgroup(keys.READERS, "a", {keys.jobs(MODEL): ">"})  # carried out, but nobody took it
    job = await jobs.next(10)
    assert job is not None
    assert job.id == "r1"
    assert await jobs.next(10) is None, "it is in hand"
    await redis.aclose()


async def test_tenants_take_turns_and_their_own_jobs_are_done_as_they_came(url: str) -> None:
    redis = connect(url)
    await redis.flushall()
    a, b = (Jobs(redis, MODEL, name, 60.0) for name in "ab")
    for jobs in (a, b):
        await jobs.prepare(alone=False)
    for job in ("m1", "m2", "m3", "m4", "x1", "x2", "y1"):
        await redis.xadd(keys.jobs(MODEL), {"reading": job, "tenant": {"m": "many", "x": "x", "y": "y"}[job[0]]})
    assert await a.has_waiting()
    taken = []
    for jobs in (a, b, b, a):
        taken.append(await jobs.next(10))
    assert [job.id for job in taken if job] == ["m1", "x1", "y1", "m2"]
    assert taken[1] is not None
    await b.requeue(taken[1])  # behind x2 now, and still of x
    rest = [await a.next(10) for _ in range(4)]
    assert [job.id for job in rest if job] == ["x2", "m3", "x1", "m4"]
    assert not await a.has_waiting(), "all are taken"
    assert await a.next(10) is None
    assert 0 < await redis.ttl(keys.turns(keys.jobs(MODEL))) <= 86400
    await redis.aclose()


async def test_whoever_waits_for_a_job_has_it_when_it_comes(url: str) -> None:
    redis, other = connect(url), connect(url)
    await redis.flushall()
    jobs = Jobs(redis, MODEL, "a", 60.0)
    await jobs.prepare(alone=False)
    waits = asyncio.create_task(jobs.next(60_000))
    while not any("xread" in client["cmd"] for client in await other.client_list()):
        await asyncio.sleep(0.01)
    await other.xadd(keys.jobs(MODEL), {"reading": "r1", "tenant": "t"})
    job = await asyncio.wait_for(waits, 10)
    assert job is not None
    assert job.id == "r1"
    await redis.aclose()
    await other.aclose()


async def test_dead_consumers_without_entries_are_removed(url: str) -> None:
    """Each start of a server adds a consumer under a new name."""
    redis = connect(url)
    await redis.flushall()
    for name in ("idle", "alive", "holds"):
        jobs = Jobs(redis, MODEL, name, 60.0)
        await jobs.prepare(alone=False)
        await redis.xadd(keys.jobs(MODEL), {"reading": name, "tenant": "t"})
        job = await jobs.next(10)
        assert job is not None
        if name != "holds":
            await jobs.done(job)
        if name != "alive":
            await jobs.deregister()
    await Jobs(redis, MODEL, "new", 60.0).prepare(alone=False)
    takers = {taker["name"]: taker["pending"] for taker in await redis.xinfo_consumers(keys.jobs(MODEL), keys.READERS)}
    assert takers == {b"holds": 1, b"alive": 0}
    await redis.aclose()


async def test_a_reader_outlives_a_redis_that_is_away_once_more() -> None:
    """After losing its data it may be away again at the very next call."""
    heard: list[str] = []

    async def following(wait_ms: int) -> None:
        heard.append("next")
        if len(heard) > 3:
            raise asyncio.CancelledError
        raise ResponseError("NOGROUP No such key")

    async def prepare(*, alone: bool) -> None:
        heard.append("prepare")
        raise ConnectionError_("away")

    none: Any = None
    jobs: Any = SimpleNamespace(next=following, prepare=prepare)
    with pytest.raises(asyncio.CancelledError):
        await Reader(none, none, none, none, none, jobs, none, none, 1.0, 1.0).run()
    assert heard == ["next", "prepare", "next", "prepare", "next"]
