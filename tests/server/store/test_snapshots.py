"""Snapshots in hashes: what was stored is read back, and an older value never remains."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Session
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.sessions import Sessions
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.vault import Vault


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Client]:
    client = connect(redis_url)
    await client.flushdb()
    await client.set(keys.replica("r1"), 1, px=60_000)
    yield client
    await client.aclose()


@pytest.fixture
def sessions(redis: Client) -> Sessions:
    return Sessions(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), "r1", 60.0, Vault())


@pytest.mark.parametrize("start", [None, 0, 300])
def test_the_fields_of_a_snapshot_are_the_snapshot(start: int | None) -> None:
    snapshot = Snapshot(b"state", 5, "digest", (1, 2), 302, start)
    fields = {name.encode(): v if isinstance(v, bytes) else str(v).encode() for name, v in snapshot.fields().items()}
    assert Snapshot.of(fields) == snapshot


async def test_an_answer_replaces_where_the_context_of_the_last_one_began(sessions: Sessions) -> None:
    session = await sessions.create("model", "model", [])
    for start in (300, 0, None):
        lease = await sessions.acquire(session.id)
        session = await sessions.get(session.id)
        answer = AnswerMessage("msg_1", session.id, "model", 0.0, 0)
        await sessions.commit(session, lease, Snapshot(b"state", 5, position=400, context_start=start), "Why?", answer)
        await sessions.release(lease)
        assert (await sessions.get(session.id)).snapshot.context_start == start
        assert (await sessions.fork(session.id)).snapshot.context_start == start


async def test_a_session_copies_a_reading_of_an_older_server(redis: Client, sessions: Sessions) -> None:
    """Such a reading has no `context_start`."""
    reading = Session("ses_1", "model", "model", ("doc_1",)).reading
    assert reading is not None
    stored = Snapshot(b"state", 5, "digest", (1,), 257).fields()
    del stored["context_start"]
    await redis.hset(keys.reading(reading), mapping={**stored, "status": "ready", "tenant": "ann"})
    session = await sessions.create("model", "model", ["doc_1"])
    assert (await sessions.get(session.id, with_state=True)).snapshot == Snapshot(b"state", 5, "digest", (1,), 257)
