"""Messages are stored so that servers of 0.1.0 read them during a rolling upgrade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everlong_server.errors import NotFound
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import connect
from everlong_server.store.rotation import rotate
from everlong_server.store.sessions import Sessions
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import Vault

KNOWN = {
    "id", "object", "role", "content", "created_at", "session", "model", "finish_reason", "usage", "seed", "logprobs", "evidence",
}  # fmt: skip
"""The fields of a message that 0.1.0 accepts; of these `finish_reason` is one of the following."""
KNOWN_REASONS = {"stop", "length", "cancelled"}
CITATION = {"start": 0, "end": 4, "evidence": 0, "document": "doc_1", "document_start": 0, "document_end": 4}
MESSAGES: list[dict[str, Any]] = [
    {"id": "msg_1", "object": "message", "role": "user", "content": "Why?", "created_at": 1.0},
    {"id": "msg_2", "object": "message", "role": "assistant", "content": "So so so.", "created_at": 1.0, "evidence": [],
     "citations": [CITATION], "finish_reason": "repetition", "memory_progress": 0.5,
     "standalone_question": "Why so?", "agreement": 0.375},
    {"id": "msg_3", "object": "message", "role": "user", "content": "And?", "created_at": 2.0},
    {"id": "msg_4", "object": "message", "role": "assistant", "content": "No.", "created_at": 2.0, "evidence": [],
     "citations": [], "finish_reason": "stop"},
]  # fmt: skip


def of(redis: Any, vault: Vault | None = None) -> Sessions:
    return Sessions(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), "r1", 60.0, vault or Vault())


async def test_what_0_1_0_does_not_know_is_stored_apart(redis_url: str) -> None:
    redis = connect(redis_url)
    await redis.flushdb()
    sessions = of(redis)
    session = await sessions.create("fingerprint", "model", [], messages=MESSAGES)
    for item in await redis.lrange(keys.session_messages(session.id), 0, -1):
        stored = json.loads(item)
        assert set(stored) <= KNOWN
        assert stored.get("finish_reason", "stop") in KNOWN_REASONS
    assert await sessions.messages(session.id) == MESSAGES
    fork = await sessions.fork(session.id)
    assert await sessions.messages(fork.id, last=3) == MESSAGES[1:]
    await sessions.delete(session.id)
    with pytest.raises(NotFound):
        await sessions.messages(session.id)
    await redis.aclose()


async def test_it_is_encrypted_as_the_message_is(redis_url: str, tmp_path: Path) -> None:
    redis = connect(redis_url)
    await redis.flushdb()
    old, new = Vault({"one": bytes(32)}), Vault({"two": bytes([1]) * 32, "one": bytes(32)})
    session = await of(redis, old).create("fingerprint", "model", [], messages=MESSAGES)
    assert b"doc_1" not in b"".join((await redis.hgetall(keys.session(session.id))).values())
    await redis.set(keys.VAULT, old.mark())
    await rotate(redis, Blobs(f"file://{tmp_path}", new), new)
    assert await of(redis, Vault({"two": bytes([1]) * 32})).messages(session.id) == MESSAGES
    await redis.aclose()
