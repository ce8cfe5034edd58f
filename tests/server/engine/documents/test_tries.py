"""Which failures count as tries of a reading: errors of the job itself, but no outages and no repeated commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from everlong_server.engine.documents.reading import Reader, ReadingError
from everlong_server.errors import KeyMissing
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.jobs import Claim, Jobs
from everlong_server.store.records import Cursor, Reading, reading_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.search.passages import Passages
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.texts.blobs import Blobs
from tests.server.engine.documents.tries import (
    MODEL,
    OUTAGE,
    documents,
    engine,
    failing,
    redis,
    replica,
    taken,
    uploaded,
)

__all__ = ["redis"]


class FakeReader(Reader):
    """A reader without a device. `doing`: replaces the prefill of a text."""

    def __init__(self, redis: Client, blobs: Blobs, jobs: Jobs, max_jobs: int = 1) -> None:
        self.metrics = Metrics()
        none: Any = None
        super().__init__(
            engine(), documents(redis), blobs, none, none, jobs, self.metrics, Tracing(), 1.0, 1.0, max_jobs
        )
        self.tries: list[int] = []

    async def doing(self, what: Reading, claim: Claim) -> None:
        """Nothing."""

    async def _advance(self, what: Reading, claim: Claim, alone: AsyncExitStack) -> tuple[Cursor, bool]:
        self.tries.append(claim.attempts)
        document = await self._documents.get(what.documents[-1])
        assert self._blobs.check(document.id, document.bytes, document.digest) is None
        await self.doing(what, claim)
        cursor = Cursor(offset=document.bytes, bytes=document.bytes)
        await self._documents.readings.checkpoint(what, claim, cursor, Snapshot(b"state"), status="ready")
        return cursor, True


async def test_claims_without_a_redis_replica_do_not_count_as_tries(redis: Client, tmp_path: Path) -> None:
    """Redis executes each claim, but refuses it since no Redis replica has it."""
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    await uploaded(redis, blobs)
    job, reader = await taken(jobs), FakeReader(redis, blobs, jobs)
    store, refused = reader._documents.readings.claim, []

    async def claim(id: str, by: str) -> Claim | None:
        refused.append(by)
        redis.copies = int(len(refused) <= OUTAGE)
        return await store(id, by)

    reader._documents.readings.claim = claim  # type: ignore[method-assign]
    await reader.work_on(job)
    assert len(refused) == OUTAGE + 1
    assert reader.tries == [1]
    assert await redis.hget(keys.reading(job.id), "status") == b"ready"
    assert await jobs.length() == 0


async def test_a_document_that_is_deleted_when_its_reading_begins_is_no_error(
    redis: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    document = await uploaded(redis, blobs)
    job, reader = await taken(jobs), FakeReader(redis, blobs, jobs)
    store = reader._documents.readings.get

    async def get(id: str, *, with_state: bool = False) -> Reading | None:
        found = await store(id, with_state=with_state)
        await documents(redis, "ann").delete(document.id)
        return found

    reader._documents.readings.get = get  # type: ignore[method-assign]
    await reader.work_on(job)
    assert reader.tries == [1]
    assert await jobs.length() == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_errors_of_a_reading_count_as_tries(redis: Client, tmp_path: Path) -> None:
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    await uploaded(redis, blobs)
    job, reader = await taken(jobs), FakeReader(redis, blobs, jobs)
    reader.doing = failing(OUTAGE, RuntimeError("out of memory"), reader.doing)  # type: ignore[method-assign]
    await reader.work_on(job)
    assert reader.tries == list(range(1, Reader.max_tries + 1))
    assert b"too_many_attempts" in await redis.hget(keys.reading(job.id), "error")


def killed(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` in a fork of this process, which it must kill."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            asyncio.run(work())  # type: ignore[arg-type]
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


async def read_and_killed(redis_url: str, blobs: Blobs, name: str, killer: str) -> None:
    """Read in a process that dies over the document `killer`, with room for two jobs, and remove its replica key."""

    async def work() -> None:
        redis = connect(redis_url)
        reader = FakeReader(redis, blobs, await replica(redis, name), max_jobs=2)
        other = asyncio.Event()

        async def doing(what: Reading, claim: Claim) -> None:
            if what.documents[-1] == killer:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):  # so that others begin, too, if they may
                        await other.wait()
                os.kill(os.getpid(), signal.SIGKILL)
            other.set()
            if not claim.starts:
                await asyncio.Event().wait()

        reader.doing = doing  # type: ignore[method-assign]
        await reader.run()

    await asyncio.to_thread(killed, work)
    redis = connect(redis_url)
    await redis.delete(keys.replica(name))
    await redis.aclose()


async def test_a_document_that_kills_its_process_fails(redis: Client, redis_url: str, tmp_path: Path) -> None:
    """After three deaths, and not the document that was read at the same time."""
    blobs = Blobs(f"file://{tmp_path}")
    killer, innocent = [await uploaded(redis, blobs) for _ in range(2)]
    reading = keys.reading(reading_id(MODEL, (killer.id,)))
    for death in range(Reader.max_deaths):
        assert await redis.hget(reading, "status") != b"failed"
        await read_and_killed(redis_url, blobs, f"dies{death}", killer.id)
        assert int(await redis.hget(reading, "starts")) == death + 1
    jobs = await replica(redis, "lives")
    reader = FakeReader(redis, blobs, jobs)
    while await jobs.length():
        await reader.work_on(await taken(jobs))
    status, error = await redis.hmget(reading, "status", "error")
    assert (status, json.loads(error)["code"]) == (b"failed", "reading_killed")
    assert "3 times" in json.loads(error)["message"]
    assert await redis.hget(keys.reading(reading_id(MODEL, (innocent.id,))), "status") == b"ready"


async def test_a_stop_of_the_server_is_no_death(redis: Client, tmp_path: Path) -> None:
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    await uploaded(redis, blobs)
    for stop in range(OUTAGE):
        begun, jobs = asyncio.Event(), await replica(redis, f"r{stop}")
        reader = FakeReader(redis, blobs, jobs)

        async def waits(what: Reading, claim: Claim, begun: asyncio.Event = begun) -> None:
            begun.set()
            await asyncio.Event().wait()

        reader.doing = waits  # type: ignore[method-assign]
        job = await taken(jobs)
        working = asyncio.create_task(reader.work_on(job))
        async with asyncio.timeout(10):
            await begun.wait()
        assert int(await redis.hget(keys.reading(job.id), "starts")) == 1
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await jobs.deregister()
        assert int(await redis.hget(keys.reading(job.id), "starts")) == 0


async def test_an_outage_of_redis_is_no_death(redis: Client, tmp_path: Path) -> None:
    """Redis cannot be told that the work has ended."""
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    await uploaded(redis, blobs)
    job, reader, away = await taken(jobs), FakeReader(redis, blobs, jobs), RedisConnectionError("connection refused")
    counters = reader._documents.readings.set_counters

    async def set_counters(id: str, claim: Claim, **given: int) -> None:
        if given.get("starts") == 0:
            raise away
        await counters(id, claim, **given)

    reader._documents.readings.set_counters = set_counters  # type: ignore[method-assign]
    reader.doing = failing(OUTAGE, away, reader.doing)  # type: ignore[method-assign]
    await reader.work_on(job)
    assert reader.tries == [1] * (OUTAGE + 1)
    assert await redis.hget(keys.reading(job.id), "status") == b"ready"


async def test_a_reading_without_its_key_is_left_to_other_replicas(redis: Client, tmp_path: Path) -> None:
    """However often this replica gets it first, since no replica with the key runs yet."""
    jobs, other = [await replica(redis, name) for name in "ab"]
    blobs = Blobs(f"file://{tmp_path}")
    await uploaded(redis, blobs)
    for _ in range(OUTAGE):
        reader = FakeReader(redis, blobs, jobs)
        reader.doing = failing(1, KeyMissing("encrypted with the key 'two'"), reader.doing)  # type: ignore[method-assign]
        await reader.work_on(await taken(jobs))
    assert await jobs.length() == 1
    reader, job = FakeReader(redis, blobs, other), await taken(other)
    await reader.work_on(job)
    assert reader.tries == [1]
    assert await redis.hget(keys.reading(job.id), "status") == b"ready"


async def test_a_reading_waits_for_its_blob_store(redis: Client, tmp_path: Path) -> None:
    """First its folder is not mounted, then it cannot be read."""
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}/texts")
    blobs.set_store_id("word")
    await uploaded(redis, blobs)
    reader = FakeReader(redis, blobs, jobs)
    claim, claims = reader._documents.readings.claim, []

    async def back(id: str, by: str) -> Claim | None:
        claims.append(by)
        if len(claims) == OUTAGE:
            (tmp_path / "away").rename(tmp_path / "texts")
        return await claim(id, by)

    (tmp_path / "texts").rename(tmp_path / "away")
    reader._documents.readings.claim = back  # type: ignore[method-assign]
    reader.doing = failing(OUTAGE, OSError(5, "Input/output error"), reader.doing)  # type: ignore[method-assign]
    while await jobs.length():
        job = await taken(jobs)
        await reader.work_on(job)
    assert reader.tries == [1] * (2 * OUTAGE)
    assert await redis.hget(keys.reading(job.id), "status") == b"ready"


async def test_unreadable_texts_do_not_stop_all_reading(redis: Client, tmp_path: Path) -> None:
    """They must not occupy all readers, but wait behind other documents."""
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    broken = [await uploaded(redis, blobs) for _ in range(2)]
    for document in broken:
        (tmp_path / document.id).unlink()
        (tmp_path / document.id).mkdir()
    other = await uploaded(redis, blobs)
    reader = FakeReader(redis, blobs, jobs)
    async with asyncio.timeout(30):
        for _ in range(OUTAGE):
            await reader.work_on(await taken(jobs))
    assert reader.tries == [1] * OUTAGE
    assert await redis.hget(keys.reading(reading_id(MODEL, (other.id,))), "status") == b"ready"
    assert await jobs.length() == len(broken)


async def test_a_missing_text_waits_if_its_store_may_be_missing(redis: Client, tmp_path: Path) -> None:
    """Whether only the text is missing cannot be checked, so this is no try."""
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    document = await uploaded(redis, blobs)
    await blobs.delete(document.id)
    (tmp_path / Blobs.STORE_ID_FILE).mkdir()  # reading it raises an `OSError`
    reader = FakeReader(redis, blobs, jobs)
    for _ in range(OUTAGE):
        job = await taken(jobs)
        await reader.work_on(job)
    assert reader.tries == [1] * OUTAGE
    assert await redis.hget(keys.reading(job.id), "status") != b"failed"
    assert await jobs.length() == 1


async def test_a_missing_text_fails_at_once(redis: Client, tmp_path: Path) -> None:
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    blobs.set_store_id("word")
    document = await uploaded(redis, blobs)
    await blobs.delete(document.id)
    job, reader = await taken(jobs), FakeReader(redis, blobs, jobs)
    await reader.work_on(job)
    assert reader.tries == [1]
    assert b"reading_failed" in await redis.hget(keys.reading(job.id), "error")
    assert await jobs.length() == 0


async def test_an_index_that_cannot_be_written_raises_an_oserror(redis: Client, tmp_path: Path) -> None:
    blobs = Blobs(f"file://{tmp_path}/texts")
    document = await uploaded(redis, blobs)
    (tmp_path / "texts").rename(tmp_path / "away")
    with pytest.raises(OSError, match="cannot be written"):
        await Passages(blobs, documents(redis)).ensure(document)


async def test_a_failure_is_stored_after_a_late_checkpoint(redis: Client, tmp_path: Path) -> None:
    """Redis executed the cancelled write of a checkpoint, so the failure must not look like that write repeated."""
    jobs, blobs = await replica(redis), Blobs(f"file://{tmp_path}")
    await uploaded(redis, blobs)
    job, reader = await taken(jobs), FakeReader(redis, blobs, jobs)
    store = reader._documents
    current = store.readings.get
    late: list[Claim] = []

    async def fails(what: Reading, claim: Claim) -> None:
        late[:] = [claim] if what.version == 0 else []
        raise ReadingError("broken", "it cannot be read")

    async def looked_up(id: str, **how: bool) -> Reading | None:
        found = await current(id, **how)
        if late and found is not None:
            await store.readings.checkpoint(found, late.pop(), Cursor(bytes=7), Snapshot(b"state"))
        return found

    reader.doing = fails  # type: ignore[method-assign]
    store.readings.get = looked_up  # type: ignore[method-assign]
    await reader.work_on(job)
    status, error, bytes = await redis.hmget(keys.reading(job.id), "status", "error", "bytes")
    assert (status, bytes) == (b"failed", b"7")
    assert b"broken" in error
    assert len(reader.tries) == 2, "the late write is its own, and nobody else has the reading"
    assert await jobs.length() == 0


async def test_a_fenced_reader_leaves_one_entry_to_the_other(redis: Client, tmp_path: Path) -> None:
    """Two replicas with an entry each for one reading, as older servers could create, must not take it from each other."""
    blobs = Blobs(f"file://{tmp_path}")
    a, b = await replica(redis, "a"), await replica(redis, "b")
    await uploaded(redis, blobs)
    job = await taken(a)
    await redis.xadd(keys.jobs(MODEL), dict(zip(job.fields[::2], job.fields[1::2], strict=True)))
    other, reader = await taken(b), FakeReader(redis, blobs, a)
    assert other.id == job.id

    async def claimed(what: Reading, claim: Claim) -> None:
        await documents(redis).readings.claim(job.id, other.claimant())

    reader.doing = claimed  # type: ignore[method-assign]
    await reader.work_on(job)
    assert reader.tries == [1]
    assert [entry for entry, _ in await redis.xrange(keys.jobs(MODEL))] == [other.entry.encode()]
    assert await a.next(10) is None
    assert 'everlong_lease_losses_total{of="reading"} 1.0' in reader.metrics.render().decode()
