"""The store while Redis restarts, has lost its data, or is full: no text is swept, and what is counted stays right."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio.connection import AbstractConnection

from everlong_server.engine.answering.responses import ResponseTurns
from everlong_server.errors import RateLimited
from everlong_server.store.documents import Documents
from everlong_server.store.jobs import Jobs
from everlong_server.store.records import DEFAULT_TENANT, Document, Message, new_id, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import all_keys, connect
from everlong_server.store.responses import Response, Responses
from everlong_server.store.store_id import existing_owners, has_matching_store_id
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import Vault
from tests.server.store.redis.conftest import OwnRedis

pytestmark = pytest.mark.long


class Restarting:
    """Kills Redis and starts it again before something is sent to it for the `before`th time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, redis: OwnRedis) -> None:
        self.before = 0
        send: Any = AbstractConnection.send_packed_command

        async def sent(*args: Any, **kwargs: Any) -> None:
            self.before -= 1
            if self.before == 0:
                redis.kill()
                redis.start()
            await send(*args, **kwargs)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", sent)


@pytest.fixture
def restarting(monkeypatch: pytest.MonkeyPatch, own_redis: OwnRedis) -> Restarting:
    """Redis has thousands of keys, so that a SCAN takes several calls."""
    with redis.Redis(port=own_redis.port).pipeline(transaction=False) as pipe:
        for _ in range(5_000):
            pipe.hset(keys.session(new_id("ses")), "tenant", "default")
        pipe.execute()
    return Restarting(monkeypatch, own_redis)


async def test_a_redis_that_starts_again_during_a_sweep_costs_no_text(
    restarting: Restarting, own_redis: OwnRedis, tmp_path: Path
) -> None:
    client, blobs = connect(own_redis.url), Blobs(f"file://{tmp_path}/blobs")
    assert await has_matching_store_id(client, blobs)
    everybodys = Documents(client, None, Quota(client, DEFAULT_TENANT, Limits(), StreamSlots(client, "r")), Vault())
    for number in range(8):
        document = Document(new_id("doc"), None, 5, 0, now())
        writer = await blobs.create(document.id)
        await writer.write(b"hello")
        await writer.commit()
        assert await everybodys.of(f"tenant{number}").create(document, "model")
    lost = await blobs.create(new_id("doc"))
    await lost.write(b"nobody's")
    await lost.commit()
    there = set(blobs.names())
    for before in range(1, 9):
        restarting.before = before
        there -= set(await blobs.sweep(partial(existing_owners, client)))
        assert len(there) == 8
    assert set(blobs.names()) == there
    await client.aclose()


async def test_a_redis_that_has_lost_its_data_meanwhile_knows_of_nothing(redis_url: str, tmp_path: Path) -> None:
    client, blobs = connect(redis_url), Blobs(f"file://{tmp_path}/blobs")
    await client.flushall()
    assert await has_matching_store_id(client, blobs)
    (tmp_path / "blobs" / new_id("doc")).write_text("hello")
    await client.flushall()
    with pytest.raises(redis.exceptions.ConnectionError, match="lost"):
        await blobs.sweep(partial(existing_owners, client))
    assert len(blobs.names()) == 1
    await client.aclose()


async def test_every_key_is_found_though_redis_starts_again(restarting: Restarting, own_redis: OwnRedis) -> None:
    client = connect(own_redis.url)
    for before in (2, 4, 6):
        restarting.before = before
        assert len(await all_keys(client, keys.session("*"))) == 5_000
    await client.aclose()


@pytest.fixture
async def full(own_redis: OwnRedis) -> AsyncIterator[tuple[Any, Callable[[int], Awaitable[Any]]]]:
    """A client, and how to set Redis's most bytes: 1 is full, 0 is not."""
    client = connect(own_redis.url)
    await client.config_set("maxmemory-policy", "noeviction")
    yield client, partial(client.config_set, "maxmemory")
    await client.aclose()


async def test_a_redis_that_is_full_counts_requests_and_knows_who_lives(full: Any) -> None:
    """Otherwise nothing could be deleted, and all replicas would seem dead."""
    client, limit = full
    jobs = Jobs(client, "model", "r1", 60.0)
    await jobs.heartbeat()
    await limit(1)
    quota = Quota(client, "ann", Limits(requests=3), StreamSlots(client, "r1"))
    left = [(await quota.request())["x-ratelimit-remaining-requests"] for _ in range(3)]
    assert left == ["2", "1", "0"]
    with pytest.raises(RateLimited):
        await quota.request()
    await client.pexpire(keys.replica("r1"), 1_000)
    await jobs.heartbeat()
    assert await client.pttl(keys.replica("r1")) > 1_000
    await limit(0)
    await client.delete(keys.replica("r1"))
    await jobs.heartbeat()
    assert await client.get(keys.replica("r1")) == b"model"


async def test_a_redis_that_is_full_lets_go_of_what_is_counted(full: Any) -> None:
    client, limit = full
    quota = Quota(client, "ann", Limits(), StreamSlots(client, "r1"))
    for id in ("resp_1", "resp_2"):
        await quota.reserve(id, 100, 60.0)
    await limit(1)
    with pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
        await quota.reserve("resp_3", 100, 60.0)
    await quota.release("resp_1")
    assert await client.get(keys.stored("ann")) == b"100"
    assert await client.hgetall(keys.reservation_sizes("ann")) == {b"resp_2": b"100"}


async def test_a_response_whose_bytes_cannot_be_released_can_be_deleted_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, none = connect(redis_url), Any
    await client.flushall()
    store, quota = Responses(client, "ann", 60.0, Vault()), Quota(client, "ann", Limits(), StreamSlots(client, "r1"))
    said = (Message("user", "Who?"),)
    response = Response(new_id("resp"), "model", 0.0, False, None, (), said, None, {}, "completed", tenant="ann")
    response_turns = ResponseTurns(none, none, store, none, none, quota, none)
    await response_turns.keep(response)

    async def away(_: str) -> None:
        raise redis.exceptions.ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(quota, "release", away)
        with pytest.raises(redis.exceptions.ConnectionError):
            await response_turns.delete(response.id)
    await response_turns.delete(response.id)
    assert await client.get(keys.stored("ann")) == b"0"
    assert not await client.exists(keys.response(response.id))
    await client.aclose()
