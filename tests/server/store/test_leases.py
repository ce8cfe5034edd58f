"""A session's lease, when Redis grants it but the reply is lost; and its messages, when it is deleted meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisAway

from everlong_server.errors import NotFound, SessionBusy
from everlong_server.store import sessions as stored
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import connect
from everlong_server.store.sessions import Sessions
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.vault import Vault


@pytest.mark.parametrize("error", [RedisAway, asyncio.CancelledError])
async def test_a_lease_whose_reply_was_lost_is_released(redis_url: str, error: type[BaseException]) -> None:
    redis = connect(redis_url)
    await redis.flushdb()
    await redis.set(keys.replica("r1"), 1, px=60_000)
    sessions = Sessions(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), "r1", 60.0, Vault())
    run = redis.run_script

    async def lost(text: str, *arguments: Any) -> Any:
        done = await run(text, *arguments)
        if text == stored._ACQUIRE_LEASE:
            raise error
        return done

    redis.run_script = lost
    with pytest.raises(error):
        await sessions.acquire("ses_1")
    redis.run_script = run
    lease = await sessions.acquire("ses_1")
    with pytest.raises(SessionBusy):
        await sessions.acquire("ses_1")
    assert await sessions.renew(lease), "only the lease whose reply was lost was released"
    await redis.aclose()


async def test_messages_of_a_session_that_is_deleted_meanwhile(redis_url: str) -> None:
    """They are not found. An empty list would look like a session without messages."""
    redis = connect(redis_url)
    await redis.flushdb()
    sessions = Sessions(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), "r1", 60.0, Vault())
    session = await sessions.create("fingerprint", "model", [])
    assert await sessions.messages(session.id) == []
    await sessions.get(session.id)
    await sessions.delete(session.id)
    with pytest.raises(NotFound):
        await sessions.messages(session.id)
    await redis.aclose()


async def test_one_of_several_deletions_at_once_deletes(redis_url: str) -> None:
    """The others find no session. A retry whose reply was lost has deleted it."""
    redis = connect(redis_url)
    await redis.flushdb()
    sessions = Sessions(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), "r1", 60.0, Vault())
    session = await sessions.create("fingerprint", "model", [])
    ended = await asyncio.gather(*(sessions.delete(session.id) for _ in range(8)), return_exceptions=True)
    assert sorted(map(str, ended)) == ["None", *[f"no session {session.id!r}"] * 7]
    again = await sessions.create("fingerprint", "model", [])
    run = redis.run_script

    async def run_twice(*args: Any) -> Any:
        await run(*args)
        return await run(*args)

    redis.run_script = run_twice
    await sessions.delete(again.id)
    with pytest.raises(NotFound):
        await sessions.get(again.id)
    await redis.aclose()
