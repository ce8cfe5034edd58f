"""`Chats`: where dialogues stood that their callers keep themselves, found again by what was said.

A cache: what it has forgotten is read anew. A chat is never changed, only continued under another digest, so that any
number of callers may go on from the same point, and none has to wait for another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from everlong_server.store import keys
from everlong_server.store.connection import Client
from everlong_server.store.records import Said, Session, pack_tokens


def digests(model: str, documents: Sequence[str], said: Sequence[Said]) -> list[str]:
    """For each message the digest of the dialogue up to and with it. How answers are drawn has no part in it."""
    every = [_digest(model, list(documents))]
    for message in said:
        every.append(_digest(every[-1], message.role, message.content))
    return every[1:]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Chats:
    """A tenant's chats on all replicas. `seconds`: how long one is kept after its last use.

    What another tenant has said is not known, were it the same words: that it was said is a secret too.
    """

    def __init__(self, redis: Client, tenant: str, seconds: float) -> None:
        self._redis = redis
        self._tenant = tenant
        self._seconds = seconds
        self._ms = int(seconds * 1000)

    def of(self, tenant: str) -> Chats:
        """The same for another tenant."""
        return Chats(self._redis, tenant, self._seconds)

    async def find(self, digests: Sequence[str]) -> tuple[int, Session] | None:
        """The first of `digests` that is known: its index, and where that dialogue stood."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for digest in digests:
                pipe.pexpire(keys.chat(self._tenant, digest), self._ms)
            known = await pipe.execute()
        for index, digest in enumerate(digests):
            stored = await self._redis.hgetall(keys.chat(self._tenant, digest)) if known[index] else None
            if stored:  # else it has just expired
                return index, Session.of(stored)
        return None

    async def keep(
        self,
        digest: str,
        before: Session,
        *,
        state: bytes,
        state_bytes: int,
        state_digest: str,
        open: Sequence[int],
        position: int,
        messages: int,
    ) -> None:
        """Where a dialogue stands that has gone on from `before` and has now so many `messages`."""
        fields = Session.fields(digest, before.model, before.model_name, before.documents) | {
            "state_bytes": state_bytes, "state_digest": state_digest, "position": position, "messages": messages,
        }  # fmt: skip
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(keys.chat(self._tenant, digest), mapping={**fields, "state": state, "open": pack_tokens(open)})
            pipe.pexpire(keys.chat(self._tenant, digest), self._ms)
            await pipe.execute()
