"""Jobs: each has one owner; jobs of dead replicas are taken over. Blobs: sweeps and the store ID."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from redis.exceptions import ConnectionError as ConnectionError_
from redis.exceptions import ResponseError

from everlong_server.engine.documents.reading import Reader
from everlong_server.store.jobs import Jobs
from everlong_server.store.records import new_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.redis.embedded import EmbeddedRedis
from everlong_server.store.store_id import has_matching_store_id
from everlong_server.store.texts import blobs as blobs_module
from everlong_server.store.texts.blobs import Blobs

MODEL = "m" * 64


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="evl"))
    redis = EmbeddedRedis(folder)
    redis.start()
    yield redis.url
    redis.stop()
    shutil.rmtree(folder)


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


async def test_a_sweep_takes_only_our_own_leavings(tmp_path: Path) -> None:
    blobs = Blobs(f"file://{tmp_path}")
    keep, lost = f"doc_{'a' * 32}", f"doc_{'b' * 32}"
    for name in (keep, lost, f".doc_{'c' * 32}.part", "thesis.txt", "doc_short"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()

    async def known(_: set[str]) -> set[str]:
        return {keep}

    assert await blobs.sweep(known, untouched=3600) == [], "somebody may be at it"
    partial = tmp_path / f".doc_{'c' * 32}.part"
    os.utime(partial, (1, 1))
    assert await blobs.sweep(known, untouched=3600) == [partial.name]
    assert await blobs.sweep(known) == [lost]
    assert {path.name for path in tmp_path.iterdir()} == {keep, "thesis.txt", "doc_short", "folder"}


async def test_a_redis_and_a_blob_store_know_each_other(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = connect(url)
    await redis.flushdb()
    one, other = Blobs(f"file://{tmp_path}/one"), Blobs(f"file://{tmp_path}/other")
    assert await has_matching_store_id(redis, one), "they meet"
    assert await has_matching_store_id(redis, one)
    assert await has_matching_store_id(redis, other), "it never met a Redis"
    assert one.store_id() == other.store_id() is not None
    assert one.names() == []
    assert await one.sweep(set_of()) == []
    await redis.flushdb()
    assert not await has_matching_store_id(redis, one)
    assert not await redis.exists(keys.STORE), "it stays another one"
    await redis.set(keys.STORE, "another")
    assert not await has_matching_store_id(redis, one)
    full = Blobs(f"file://{tmp_path}/full")

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobs_module, "_publish", no_room)
    assert not await has_matching_store_id(redis, full), "nobody knows"
    assert list((tmp_path / "full").iterdir()) == []
    await redis.aclose()


async def test_an_empty_folder_in_place_of_the_blob_store_is_none(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A volume that is not mounted. Readings wait for its texts as long as the folder has no store ID."""
    redis, blobs = connect(url), Blobs(f"file://{tmp_path}/blobs")
    await redis.flushall()
    assert await has_matching_store_id(redis, blobs)
    await write(blobs, id := new_id("doc"), b"text")
    await redis.zadd(keys.documents("ann"), {id: 1})
    (tmp_path / "blobs").rename(tmp_path / "volume")
    (tmp_path / "blobs").mkdir()
    for _ in range(2):
        assert not await has_matching_store_id(redis, blobs)
        assert blobs.store_id() is None
    assert "check that its disk is mounted" in caplog.text
    (tmp_path / "blobs").rmdir()
    (tmp_path / "volume").rename(tmp_path / "blobs")
    assert await has_matching_store_id(redis, blobs)
    # An operator who deletes the store ID of a store with texts confirms that the store is the right one.
    await redis.set(keys.STORE, "another")
    assert not await has_matching_store_id(redis, blobs)
    (tmp_path / "blobs" / Blobs.STORE_ID_FILE).unlink()
    assert await has_matching_store_id(redis, blobs)
    # Without documents in Redis, an empty store is a new one.
    await redis.delete(keys.documents("ann"))
    assert await has_matching_store_id(redis, Blobs(f"file://{tmp_path}/new"))
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


def set_of(*names: str) -> Any:
    async def known(_: set[str]) -> set[str]:
        return set(names)

    return known


async def test_a_sweep_goes_by_the_clock_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose clock is two hours ahead must not delete what another server is receiving."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=2)

    async def known(_: set[str]) -> set[str]:
        return set()

    monkeypatch.setattr(blobs_module, "datetime", Ahead)
    monkeypatch.setattr(time, "time", lambda: Ahead.now(UTC).timestamp())
    fresh = tmp_path / f"doc_{'a' * 32}"
    fresh.write_text("x")
    assert await Blobs(f"file://{tmp_path}").sweep(known, untouched=3600) == []
    assert list(tmp_path.iterdir()) == [fresh]


class BucketAwayError(Exception):
    """An error as remote file systems raise it: no OSError."""


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """Caches listings, like the file system for S3; each instance is another server's. `away`: it cannot be reached."""

    protocol = "everlong-bucket"
    cachable = False
    away = False

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._reach()
        if (found := self._ls_from_cache(path)) is None:
            found = self.dircache[path] = super().ls(path, detail=True)
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **kwargs: Any) -> Any:
        self._reach()
        if self._parent(path) in self.dircache and not self._ls_from_cache(path):
            raise FileNotFoundError(path)
        return super().info(path)

    def exists(self, path: str, **kwargs: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if "r" in mode:
            self.info(path)
        self._reach()
        return super()._open(path, mode, **kwargs)

    def cat_file(self, path: str, **kwargs: Any) -> Any:
        self._reach()
        return super().cat_file(path, **kwargs)

    def _reach(self) -> None:
        if Bucket.away:
            raise BucketAwayError("no endpoint")


fsspec.register_implementation(Bucket.protocol, Bucket, clobber=True)


async def write(blobs: Blobs, name: str, text: bytes) -> None:
    writer = await blobs.create(name)
    await writer.write(text)
    await writer.commit()


async def test_what_another_server_puts_into_a_bucket_is_there(tmp_path: Path) -> None:
    one, other = (Blobs(f"{Bucket.protocol}://{tmp_path.name}") for _ in range(2))
    await write(one, first := new_id("doc"), b"text")
    assert await other.sweep(set_of(first)) == []
    await write(one, second := new_id("doc"), b"more")
    assert other.exists(second)
    with other.open(second) as file:
        assert file.read() == b"more"
    assert set(other.names()) == {first, second}


async def test_a_bucket_that_is_away_is_no_error_of_the_text(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, blobs = connect(url), Blobs(f"{Bucket.protocol}://{tmp_path.name}")
    await redis.flushall()
    assert await has_matching_store_id(redis, blobs)
    await write(blobs, name := new_id("doc"), b"text")
    file = blobs.open(name)
    monkeypatch.setattr(Bucket, "away", True)
    for ask in (
        blobs.store_id,
        blobs.names,
        lambda: blobs.exists(name),
        lambda: blobs.open(name),
        lambda: blobs.check(name, 4, None),
    ):
        with pytest.raises(OSError, match="BucketAwayError: no endpoint"):
            ask()
    with pytest.raises(OSError, match="BucketAwayError"):
        await blobs.create(new_id("doc"))
    assert not await has_matching_store_id(redis, blobs)
    assert file.read() == b"text"
    monkeypatch.setattr(type(file._wrapped), "read", Bucket._reach)
    with pytest.raises(OSError, match="BucketAwayError"):
        file.read()
    await redis.aclose()


@pytest.mark.parametrize("url", ["file", "memory"])
async def test_a_blob_that_others_delete_too_is_gone(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(f"file://{tmp_path}" if url == "file" else "memory://everlong-race")
    writer = await blobs.create("doc_1")
    await writer.write(b"text")
    await writer.commit()
    there = threading.Barrier(2)
    remove = blobs._fs.rm_file

    def both_at_once(path: str) -> None:
        there.wait(10)
        remove(path)

    monkeypatch.setattr(blobs._fs, "rm_file", both_at_once)
    await asyncio.gather(blobs.delete("doc_1"), blobs.delete("doc_1"))
    assert not blobs.exists("doc_1")


async def test_blobs_need_no_local_disk() -> None:
    blobs = Blobs("memory://everlong-test")
    writer = await blobs.create("doc_1")
    await writer.write(b"some text")
    await writer.commit()
    with blobs.open("doc_1", 5) as file:
        assert file.read() == b"text"
    other = await blobs.create("doc_2")
    await other.write(b"half")
    await other.abort()
    await blobs.delete("doc_1")
    with pytest.raises(FileNotFoundError):
        blobs.open("doc_2")
