"""Addresses of Redis, its client, and the names of keys."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from everlong_server.settings import SettingsError, load_settings
from everlong_server.store.records import new_id
from everlong_server.store.redis import keys, scripts
from everlong_server.store.redis.connection import Address, Client, connect
from everlong_server.store.redis.embedded import EmbeddedRedis
from everlong_server.store.rotation import rotate
from everlong_server.store.store_id import existing_owners, has_matching_store_id
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import Vault


def test_where_redis_is() -> None:
    address = Address.of("rediss+sentinel://ann:p%40ss@a:1,[::1],b:3/main/2")
    assert address.kind == "sentinel"
    assert address.hosts == (("a", 1), ("::1", 26379), ("b", 3))
    assert address.service == "main"
    assert dict(address.options) == {"ssl": True, "username": "ann", "password": "p@ss", "db": 2}
    assert Address.of("redis+cluster://:secret@a,b:7/") == Address(
        "cluster", (("a", 6379), ("b", 7)), "", (("password", "secret"),)
    )
    assert Address.of("unix:///tmp/redis.sock").kind == "single"
    assert [connect(f"redis+{rest}").copies for rest in ("sentinel://a/b", "cluster://a")] == [1, 1]
    assert connect("redis://a").copies == 0


KNOWN = "use one of redis, rediss, unix, redis+sentinel, redis+cluster"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://secret@a", f"(EVERLONG_REDIS_URL): unknown scheme 'http': {KNOWN}"),
        (":secret@a:1", f"(EVERLONG_REDIS_URL): the URL begins with no scheme: {KNOWN}"),
        ("redis+ring://:secret@a", f"(EVERLONG_REDIS_URL): unknown scheme 'redis+ring': {KNOWN}"),
        ("redis+sentinel://:secret@a:1", "must have a service name"),
        ("redis+sentinel://:secret@a:1/main/first", "/SERVICE/NUMBER"),
        ("redis+cluster://:secret@a:1/1", "only one database"),
        ("redis+cluster://:secret@,b", "HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(redis_url=url)
    assert complaint in str(caught.value)
    assert "EVERLONG_REDIS_URL" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_all_keys_are_in_one_slot_of_a_cluster() -> None:
    tags = {re.search(r"\{(.+?)\}", kind.pattern).group(1) for kind in keys.KEYS}  # type: ignore[union-attr]
    assert tags == {"everlong"}


@pytest.mark.long
async def test_a_write_that_has_no_copy_is_no_answer(redis_url: str) -> None:
    redis = connect(redis_url, copies=1)
    await redis.flushall()
    with pytest.raises(RedisConnectionError, match="0 Redis replicas have the write, 1 are required"):
        await redis.run_script(scripts.STORE, ["{everlong}:session:a"], ["", "", "", "id", "a"])
    await redis.flushall()
    await redis.aclose()


async def _rotate(redis: Client, blobs: Blobs) -> None:
    await rotate(redis, blobs, Vault({"one": bytes(32)}))


async def _sweep(redis: Client, blobs: Blobs) -> None:
    await redis.set(keys.STORE, "one")
    await existing_owners(redis, [new_id("doc")])


@pytest.mark.long
@pytest.mark.parametrize("work", [_rotate, _sweep, has_matching_store_id])
async def test_nothing_depends_on_a_redis_that_may_have_been_replaced(
    work: Callable[[Client, Blobs], Awaitable[object]], redis_url: str, tmp_path: Path
) -> None:
    """A failover must not bring the mark of an old encryption key back or lose the store ID, and a master that was replaced does not
    know which newer texts have an owner."""
    redis = connect(redis_url, copies=1)
    await redis.flushall()
    with pytest.raises(RedisConnectionError, match="0 Redis replicas have the write, 1 are required"):
        await work(redis, Blobs(f"file://{tmp_path}"))
    await redis.flushall()
    await redis.aclose()


@pytest.mark.parametrize("by", ["uvloop", "another task"])
def test_a_connection_that_was_closed_meanwhile_is_made_anew(by: str) -> None:
    """During a failover, a RuntimeError from uvloop or an AttributeError must not become a 500 of the server."""
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        embedded = EmbeddedRedis(Path(folder))
        embedded.start()

        async def closed() -> None:
            client = connect(embedded.url)
            connection = await client.connection_pool.get_connection()
            if by == "uvloop":
                connection._writer.transport.abort()
                await asyncio.sleep(0)
            sending = asyncio.ensure_future(connection.send_command("PING"))
            if by == "another task":
                await asyncio.sleep(0)
                await connection.disconnect(nowait=True)
            with pytest.raises(RedisConnectionError, match="closed"):
                await sending
            await client.connection_pool.release(connection)
            assert await client.ping()
            await client.aclose()

        try:
            uvloop.run(closed())
        finally:
            embedded.stop()


def test_a_task_that_is_cancelled_while_it_asks_redis_ends(redis_url: str) -> None:
    """Cancelled at any moment. On Python 3.11 a task that had just sent its command kept running for ever."""
    tasks_at_once, rounds = 20, 40

    async def asks(client: Client) -> None:
        while True:
            await client.ping()

    async def scenario() -> list[bool]:
        client, ended = connect(redis_url), []
        for number in range(rounds):
            tasks = [asyncio.create_task(asks(client)) for _ in range(tasks_at_once)]
            await asyncio.sleep(0.001 + 0.0003 * number)
            for task in tasks:
                task.cancel()
            _, going_on = await asyncio.wait(tasks, timeout=30)
            ended += [task.cancelled() for task in tasks]
            for task in going_on:
                while not task.done():
                    task.cancel()
                    await asyncio.sleep(0)
            if going_on:
                break
        await client.aclose()
        return ended

    for run in (asyncio.run, uvloop.run):
        ended = run(scenario())
        assert all(ended), f"{ended.count(False)} of {len(ended)} went on"
        assert len(ended) == rounds * tasks_at_once


async def test_redis_is_asked_in_the_end_of_a_task_that_was_cancelled(redis_url: str) -> None:
    client, said = connect(redis_url), []

    async def works() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append(await client.ping())

    task = asyncio.create_task(works())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert said == [True]
    await client.aclose()
