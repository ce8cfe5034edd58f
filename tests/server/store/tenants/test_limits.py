"""The limits of a tenant: counted in Redis, so that replicas agree."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from redis.exceptions import ConnectionError as ConnectionError_

from everlong_server.errors import NotFound, RateLimited
from everlong_server.store.documents import Documents
from everlong_server.store.records import Cursor, Document, new_id, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.sessions import Sessions
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots, today
from everlong_server.store.vault import Vault

MODEL = "fingerprint"


@pytest.fixture
async def redis(redis: Client) -> AsyncIterator[Client]:
    yield redis
    for key in await redis.keys("*"):
        (kind,) = [kind for kind in keys.KEYS if kind.matches(key.decode())]
        assert (await redis.pttl(key) >= 0) == kind.expires, key
        assert (await redis.type(key)).decode() == kind.type


def quota(redis: Client, tenant: str = "ann", replica: str = "r1", **limits: int) -> Quota:
    return Quota(redis, tenant, Limits(**limits), StreamSlots(redis, replica))


def documents(redis: Client, tenant: str = "ann", **limits: int) -> Documents:
    return Documents(redis, tenant, quota(redis, tenant, **limits), Vault())


def document(size: int = 10) -> Document:
    return Document(new_id("doc"), None, size, 0, now())


async def finish(store: Documents, reading_id: str, status: str = "ready", tokens: int = 7) -> None:
    """End a reading, as a reader does."""
    reading, claim = await store.readings.get(reading_id), await store.readings.claim(reading_id, "reader")
    assert reading is not None
    assert claim is not None
    await store.readings.checkpoint(reading, claim, Cursor(tokens=tokens), Snapshot(b""), status=status)


# Requests


async def test_requests_are_counted_by_the_minute(redis: Client) -> None:
    one, other = quota(redis, requests=5), quota(redis, replica="r2", requests=5)
    start = time.monotonic()
    left = [(await which.request())["x-ratelimit-remaining-requests"] for which in (one, other, one, other, one)]
    assert left == ["4", "3", "2", "1", "0"]
    with pytest.raises(RateLimited) as caught:
        await other.request()
    error, passed = caught.value, time.monotonic() - start
    assert error.code == "requests_limit"
    assert error.retry_after is not None
    assert 12 - passed <= error.retry_after <= 12  # a fifth of a minute
    assert error.headers["x-ratelimit-limit-requests"] == "5"
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert "5 requests a minute" in error.message
    assert "EVERLONG_TENANT_REQUESTS_PER_MINUTE" in error.message
    await one.of("bob").request()

    # Twelve seconds on there is one more, and after a minute all five: the clock is Redis' own, so the bucket is moved.
    async def pass_by(seconds: float) -> None:
        key = keys.requests("ann")
        await redis.set(key, float(await redis.get(key)) - 1000 * seconds, keepttl=True)

    await pass_by(12)
    await one.request()
    with pytest.raises(RateLimited):
        await other.request()
    await pass_by(60)
    for _ in range(5):
        await one.request()
    with pytest.raises(RateLimited):
        await one.request()


async def test_without_limits_nothing_is_counted(redis: Client) -> None:
    free = quota(redis)
    assert await free.request() == {}
    async with free.stream(1.0) as spent:
        spent.tokens = 10
    await free.require_room(1 << 60, MODEL)
    assert await redis.keys("*") == []


# Streams


async def test_a_slot_that_redis_takes_late_is_released(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that was sent on a broken connection takes the slot only after the answer has ended."""
    tenant, run, late = quota(redis, streams=2), redis.run_script, list[Any]()
    await redis.set(keys.replica("r1"), 1, px=60_000)

    async def unheard(*asked: Any) -> Any:
        late.append(lambda: run(*asked))
        raise ConnectionError_("it broke")

    async with tenant.stream(1.0):
        with monkeypatch.context() as patch:
            patch.setattr(redis, "run_script", unheard)
            with pytest.raises(ConnectionError_):
                await contextlib.AsyncExitStack().enter_async_context(tenant.stream(1.0))
        await late[0]()
        assert await redis.scard(keys.streams("ann")) == 2
        async with tenant.stream(1.0):
            assert await redis.scard(keys.streams("ann")) == 2
            assert await late[0]() == 0, "it takes nobody's place"
            assert await redis.scard(keys.streams("ann")) == 2
    assert await redis.exists(keys.streams("ann")) == 0


async def test_streams_are_counted_across_replicas(redis: Client) -> None:
    one, other = quota(redis, streams=2), quota(redis, replica="r2", streams=2)
    for replica in ("r1", "r2"):
        await redis.set(keys.replica(replica), 1, px=60_000)
    async with one.stream(10.0), other.stream(10.0):
        with pytest.raises(RateLimited) as caught:
            await contextlib.AsyncExitStack().enter_async_context(one.stream(10.0))
        assert (caught.value.code, caught.value.retry_after) == ("streams_limit", 5)
        async with one.of("bob").stream(10.0):
            pass
    async with one.stream(10.0), one.stream(10.0):
        # A replica that was killed gives nothing back: its answers count for as long as it is taken to be alive.
        await redis.delete(keys.replica("r1"))
        async with other.stream(10.0):
            assert await redis.scard(keys.streams("ann")) == 1
    assert await redis.exists(keys.streams("ann")) == 0


async def test_a_slot_that_could_not_be_released_is_released_later(redis: Client) -> None:
    class Away:
        """A Redis that is away for a moment."""

        calls = 0

        async def srem(self, *arguments: Any) -> None:
            self.calls += 1
            if self.calls == 1:
                raise ConnectionError_("away")
            await redis.srem(*arguments)

    from redis.exceptions import ConnectionError as ConnectionError_

    slots = StreamSlots(Away(), "r1")  # type: ignore[arg-type]
    await redis.set(keys.replica("r1"), 1, px=60_000)
    async with Quota(redis, "ann", Limits(streams=1), slots).stream(1.0):
        pass
    assert await redis.scard(keys.streams("ann")) == 1
    await slots.release_pending()
    assert await redis.scard(keys.streams("ann")) == 0


async def test_a_slot_whose_reply_was_lost_is_released(redis: Client, monkeypatch: Any) -> None:
    """The script took the slot, but its reply was lost, or the request was cancelled meanwhile."""
    from redis.exceptions import ConnectionError as Lost

    tenant, run = quota(redis, streams=1), redis.run_script
    await redis.set(keys.replica("r1"), 1, px=60_000)
    for error in (Lost, asyncio.CancelledError):

        async def carried_out(*arguments: Any, error: Any = error) -> None:
            assert await run(*arguments) == 1
            raise error

        monkeypatch.setattr(redis, "run_script", carried_out)
        with pytest.raises(error):
            await contextlib.AsyncExitStack().enter_async_context(tenant.stream(1.0))
        monkeypatch.setattr(redis, "run_script", run)
        assert await redis.scard(keys.streams("ann")) == 0
    async with tenant.stream(1.0):
        pass


# Documents and sessions


async def test_bytes_are_counted_in_the_step_that_stores_them(redis: Client) -> None:
    store = documents(redis, bytes=25)
    first, second = document(), document()
    await store.create(first, MODEL)
    await store.create(first, MODEL)  # sent again
    await store.create(second, MODEL)
    assert int(await redis.get(keys.stored("ann"))) == 20
    with pytest.raises(RateLimited) as caught:
        await store.create(document(), MODEL)
    assert (caught.value.code, caught.value.retry_after) == ("bytes_limit", None)
    assert caught.value.headers["x-should-retry"] == "false"
    with pytest.raises(RateLimited):
        await quota(redis, bytes=25).require_room(6, MODEL)
    await quota(redis, bytes=25).require_room(5, MODEL)
    await documents(redis, "bob", bytes=25).create(document(), MODEL)
    await store.delete(first.id)
    with pytest.raises(NotFound):
        await store.delete(first.id)
    await store.create(document(15), MODEL)
    assert int(await redis.get(keys.stored("ann"))) == 25


async def test_reserved_bytes_are_counted_until_the_reservation_ends(redis: Client) -> None:
    tenant = quota(redis, bytes=100)
    await tenant.reserve("resp_1", 60, 1000)
    await tenant.reserve("resp_1", 60, 1000)  # sent again
    await tenant.reserve("upload_1", 40, 1000)
    for more in (tenant.reserve("resp_2", 1, 1000), tenant.reserve("upload_1", 41, 1000), tenant.require_bytes(1)):
        with pytest.raises(RateLimited) as caught:
            await more
        assert caught.value.code == "bytes_limit"
    with pytest.raises(RateLimited):
        await documents(redis, bytes=100).create(document(1), MODEL)
    assert int(await redis.get(keys.stored("ann"))) == 100
    await tenant.reserve("resp_1", 70, 1000, limited=False)  # it turned out to be longer
    assert int(await redis.get(keys.stored("ann"))) == 110
    await tenant.reserve("resp_1", 60, 1000)  # less is always allowed
    await tenant.of("bob").reserve("resp_1", 100, 1000)
    for _ in range(2):
        await tenant.release("upload_1")
    await tenant.require_bytes(40)
    # An hour later, by Redis' own clock: one was used again meanwhile and one was not.
    await tenant.reserve("resp_3", 30, 1000)
    await redis.zadd(keys.reservations("ann"), {"resp_1": 1, "resp_3": 1}, xx=True)
    await tenant.extend_reservation("resp_1", 1000)
    await tenant.extend_reservation("resp_none", 1000)
    await tenant.require_bytes(40)
    assert int(await redis.get(keys.stored("ann"))) == 60
    assert await redis.hgetall(keys.reservation_sizes("ann")) == {b"resp_1": b"60"}
    await tenant.release("resp_1")
    assert await redis.exists(keys.reservations("ann"), keys.reservation_sizes("ann")) == 0


async def test_a_full_queue_says_when_there_is_room(redis: Client) -> None:
    store = documents(redis, queued=3)

    async def refused() -> int | None:
        with pytest.raises(RateLimited) as caught:
            await store.create(document(), MODEL)
        return caught.value.retry_after

    for size, read, seconds in ((1_000, 100, 10.0), (1_000, 500, 20.0), (1_000_000, 0, 0.0)):
        queued = document(size)
        await store.create(queued, MODEL)
        reading = await store.readings.get(await store.readings.ensure(MODEL, [queued.id]))
        assert reading is not None
        if read:
            claim = await store.readings.claim(reading.id, "reader")
            assert claim is not None
            await store.readings.checkpoint(reading, claim, Cursor(bytes=read, seconds=seconds), Snapshot(b""))
    assert await refused() == 20, "the second has half to go, and took 20 seconds for the other half"
    await redis.delete(*[key async for key in redis.scan_iter(keys.reading("*"))])
    assert await refused() == 5, "nothing is known of what is queued"


async def test_only_as_many_documents_wait(redis: Client) -> None:
    store = documents(redis, queued=2)
    first, second, third = document(), document(), document()
    await store.create(first, MODEL)
    await store.create(second, MODEL)
    with pytest.raises(RateLimited) as caught:
        await store.create(third, MODEL)
    assert caught.value.code == "queued_limit"
    with pytest.raises(RateLimited):
        await store.readings.ensure(MODEL, [first.id, second.id])
    with pytest.raises(RateLimited):
        await quota(redis, queued=2).require_room(1, MODEL)
    assert await store.readings.get(await store.readings.ensure(MODEL, [first.id])) is not None  # it was there
    await finish(store, await store.readings.ensure(MODEL, [first.id]))
    await store.create(third, MODEL)
    await finish(store, await store.readings.ensure(MODEL, [third.id]), "failed")
    await store.delete(second.id)  # before it was read
    assert await redis.exists(keys.queued("ann", MODEL)) == 0
    # A chain of documents is read one after the other: it waits as one.
    chain = [document() for _ in range(4)]
    roomy = documents(redis)
    for one in chain:
        await roomy.create(one, MODEL)
        await finish(roomy, await roomy.readings.ensure(MODEL, [one.id]))
    await store.readings.ensure(MODEL, [one.id for one in chain])
    with pytest.raises(RateLimited):
        await store.readings.ensure(MODEL, [one.id for one in reversed(chain)])


async def test_sessions_are_counted(redis: Client) -> None:
    store = Sessions(redis, "ann", quota(redis, sessions=2), "r1", 15.0, Vault())
    first = await store.create(MODEL, "m", [])
    await store.fork(first.id)
    for more in (store.create(MODEL, "m", []), store.fork(first.id)):
        with pytest.raises(RateLimited) as caught:
            await more
        assert caught.value.code == "sessions_limit"
    await store.of("bob").create(MODEL, "m", [])
    await store.delete(first.id)
    await store.create(MODEL, "m", [])


# Tokens


async def test_tokens_of_documents_are_counted_once(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = documents(redis, tokens=100), document()
    await store.create(read, MODEL)
    id = await store.readings.ensure(MODEL, [read.id])
    everybodys = Documents(redis, None, quota(redis, tokens=100), Vault())
    run = redis.run_script

    async def sent_again(*script: Any) -> Any:
        await run(*script)
        return await run(*script)

    monkeypatch.setattr(redis, "run_script", sent_again)
    claim = await everybodys.readings.claim(id, "reader")
    assert claim is not None
    for tokens in (40, 60):
        reading = await everybodys.readings.get(id)
        assert reading is not None
        await everybodys.readings.checkpoint(reading, claim, Cursor(tokens=tokens), Snapshot(b""))
    assert int(await redis.get(keys.tokens("ann", today()))) == 60
    assert await redis.get(keys.tokens("default", today())) is None
    await finish(everybodys, id, tokens=100)
    with pytest.raises(RateLimited) as caught:
        await store.create(document(), MODEL)
    assert caught.value.code == "tokens_limit"
    midnight = 86400 - time.time() % 86400
    assert abs((caught.value.retry_after or 0) - midnight) < 60
    await documents(redis, "bob", tokens=100).create(document(), MODEL)


async def test_an_answer_is_charged_however_it_ends(redis: Client) -> None:
    tenant = quota(redis, tokens=100)
    with pytest.raises(asyncio.CancelledError):
        async with tenant.stream(1.0) as spent:
            spent.tokens = 60
            raise asyncio.CancelledError
    async with tenant.stream(1.0) as spent:
        spent.tokens = 60  # what has begun is finished
    with pytest.raises(RateLimited):
        await contextlib.AsyncExitStack().enter_async_context(tenant.stream(1.0))
    assert int(await redis.get(keys.tokens("ann", today()))) == 120


async def test_an_answer_is_charged_whose_caller_left(redis: Client) -> None:
    """The stream's task is then cancelled, and again at every await."""
    tenant = quota(redis, "eve", tokens=100, streams=1)
    await redis.set(keys.replica("r1"), 1, px=60_000)
    with anyio.CancelScope() as scope:
        async with tenant.stream(1.0) as spent:
            spent.tokens = 60
            scope.cancel()
            await anyio.sleep(60)
    async with asyncio.timeout(10):
        while await redis.get(keys.tokens("eve", today())) != b"60" or await redis.exists(keys.streams("eve")):
            await asyncio.sleep(0.01)
