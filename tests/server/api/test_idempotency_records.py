"""The records behind `Idempotency-Key`: who begins, who waits, who takes over, and what a failure of Redis leaves."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from redis.exceptions import ConnectionError as RedisAway

from everlong_server.api.idempotency import content_of
from everlong_server.errors import Conflict, InvalidRequest, NotFound
from everlong_server.store import idempotency as stored
from everlong_server.store.idempotency import IdempotencyRecord, IdempotencyRecords
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.vault import Vault


@pytest.fixture
async def redis(redis: Client) -> AsyncIterator[Client]:
    for replica in ("r1", "r2"):
        await redis.set(keys.replica(replica), 1, px=60_000)
    yield redis
    for name in await redis.keys("{everlong}:attempt:*"):
        assert 0 < await redis.pttl(name) <= 60_000


def attempts(
    redis: Client, tenant: str = "ann", replica: str = "r1", left: list[IdempotencyRecord] | None = None
) -> IdempotencyRecords:
    return IdempotencyRecords(redis, tenant, replica, 60.0, [] if left is None else left, Vault())


async def test_an_answer_is_replayed(redis: Client) -> None:
    first = await attempts(redis).begin("k")
    assert (first.first, first.answer) == (True, None)
    await first.check_same_request("a", "b")
    await first.finish({"id": "x"})
    again = await attempts(redis, replica="r2").begin("k")
    assert (again.first, again.answer, again.id) == (False, {"id": "x"}, first.id)
    await again.check_same_request("a", "b")
    with pytest.raises(InvalidRequest) as caught:
        await again.check_same_request("a", "c")
    assert caught.value.code == "idempotency_key_reused"
    assert (await attempts(redis, "bob").begin("k")).first
    assert (await attempts(redis).begin(None)).id != (await attempts(redis).begin(None)).id


async def test_a_record_of_a_server_of_version_0_1_is_continued(redis: Client) -> None:
    """That version records the digest of all fields it knows, in the field `fingerprint`. Today's schemas have other fields."""
    record = keys.attempt("ann", hashlib.sha256(b"k").hexdigest())
    await redis.hset(record, mapping={"owner": "", "id": "x", "fingerprint": "of all fields"})
    await redis.pexpire(record, 60_000)
    again = await attempts(redis).begin("k")
    await again.check_same_request("a")
    await again.finish({"id": "x"})
    assert (await attempts(redis).begin("k")).answer == {"id": "x"}


def test_fields_that_a_version_adds_or_moves_change_nothing_about_the_content() -> None:
    class Older(BaseModel):
        text: str
        stream: bool = False

    class Newer(BaseModel):
        effort: int | None = None
        stream: bool = False
        text: str

    asked = {"text": "hello", "stream": True}
    assert content_of(Older(**asked)) == content_of(Newer(**asked))
    assert content_of(Older(text="hello")) == content_of(Newer(text="hello"))
    assert content_of(Newer(**asked)) != content_of(Newer(**asked, effort=2))
    assert content_of(Newer(**asked), "stream") == content_of(Newer(text="hello"))


async def test_the_page_of_a_conversion_is_known_while_the_request_runs(redis: Client) -> None:
    records = attempts(redis)
    with pytest.raises(NotFound, match="no request with this Idempotency-Key is running"):
        await records.page("k")
    record = await records.begin("k")
    assert await records.page("k") is None
    await record.report_page(2, 12)
    assert await attempts(redis, replica="r2").page("k") == (2, 12)
    with pytest.raises(NotFound):
        await attempts(redis, "bob").page("k")
    await redis.delete(keys.replica("r1"))
    with pytest.raises(NotFound):
        await records.page("k")
    await redis.set(keys.replica("r1"), 1, px=60_000)
    await record.finish({"id": "x"})
    with pytest.raises(NotFound):
        await records.page("k")
    await (await records.begin(None)).report_page(1, 2)  # nobody can ask for it


async def test_a_retry_waits_for_a_running_request_and_takes_over_from_a_dead_server(redis: Client) -> None:
    first = await attempts(redis).begin("k")
    await first.check_same_request("a")
    for replica in ("r1", "r2"):
        with pytest.raises(Conflict) as caught:
            await attempts(redis, replica=replica).begin("k")
        assert (caught.value.code, caught.value.retry_after) == ("idempotency_in_progress", 1)
    await redis.delete(keys.replica("r1"))
    again = await attempts(redis, replica="r2").begin("k")
    assert (again.first, again.answer, again.id) == (False, None, first.id)
    with pytest.raises(InvalidRequest):
        await again.check_same_request("b")
    await again.check_same_request("a")
    # The one that was thought dead wakes: it has lost the request, and can neither go on nor answer.
    with pytest.raises(Conflict):
        await first.check_same_request("a")
    await first.finish("stale")
    await again.finish("good")
    assert (await attempts(redis).begin("k")).answer == "good"


async def test_a_refused_request_can_be_corrected_and_a_failed_one_keeps_its_id(redis: Client) -> None:
    for error, kept in ((NotFound("no"), False), (RuntimeError("a defect"), True), (KeyboardInterrupt(), True)):
        with pytest.raises(type(error)):
            async with await attempts(redis).begin(f"k{kept}") as first:
                await first.check_same_request("a")
                raise error
        second = await attempts(redis, replica="r2").begin(f"k{kept}")
        assert (second.id == first.id) is kept
        assert second.first is not kept
        await second.give_up(RuntimeError("not what is tried here"))


async def test_an_idempotency_record_is_released_once_redis_is_back(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[IdempotencyRecord] = []
    store = attempts(redis, left=left)
    first = await store.begin("k")

    async def away(*arguments: Any) -> None:
        raise RedisAway("away")

    with monkeypatch.context() as context:
        context.setattr(redis, "run_script", away)
        await first.give_up(RedisAway("away"))
    with pytest.raises(Conflict):
        await attempts(redis, replica="r2").begin("k")
    await store.release_pending()
    assert left == []
    assert (await attempts(redis, replica="r2").begin("k")).id == first.id


@pytest.mark.parametrize("error", [RedisAway("cut off"), asyncio.CancelledError()], ids=["cut off", "caller gone"])
async def test_a_lost_reply_from_redis_does_not_block_the_key(
    redis: Client, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Otherwise the request would count as running until the record expires, by default for a day."""
    left: list[IdempotencyRecord] = []
    store = attempts(redis, left=left)
    run = redis.run_script

    async def deaf(script: str, *arguments: Any) -> None:
        if script == stored._BEGIN:
            await run(script, *arguments)
        raise error if script == stored._BEGIN else RedisAway("still away")

    with monkeypatch.context() as context:
        context.setattr(redis, "run_script", deaf)
        with pytest.raises(type(error)):
            await store.begin("k")
    with pytest.raises(Conflict):
        await attempts(redis, replica="r2").begin("k")
    await store.release_pending()
    assert left == []
    again = await attempts(redis, replica="r2").begin("k")
    assert not again.first
    await again.finish("good")
