"""`Chats`: where chat_turns stood that their callers keep themselves, found again by what was said.

A cache: what it has forgotten is read anew. A chat is never changed, only continued under another digest, so that any
number of callers may go on from the same point, and none has to wait for another.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from everlong_server.errors import Damaged, KeyMissing
from everlong_server.store.records import Message, Session
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, all_keys
from everlong_server.store.redis.scripts import Scripts, flat
from everlong_server.store.vault import Vault

log = logging.getLogger(__name__)

# KEYS: chat, then its documents. ARGV: milliseconds, fields and values
# Returns 1, or 0 if a document is gone: what it taught goes with it.
_KEEP = """
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return 0 end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""


def digests(model: str, documents: Sequence[str], said: Sequence[Message], after: str | None = None) -> list[str]:
    """For each message the digest of the dialogue up to and with it. How answers are drawn has no part in it.

    `after`: the digest of what was said before, if anything was.
    """
    every = [after or _digest(model, list(documents))]
    for message in said:
        every.append(_digest(every[-1], message.role, message.content))
    return every[1:]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Chats:
    """A tenant's chats on all replicas. `seconds`: how long one is kept after its last use.

    What another tenant has said is not known, were it the same words: that it was said is a secret too.
    """

    def __init__(self, redis: Client, tenant: str, seconds: float, vault: Vault | None = None) -> None:
        self._redis = redis
        self._vault = vault or Vault()
        self._scripts = Scripts(redis)
        self._tenant = tenant
        self._seconds = seconds
        self._ms = int(seconds * 1000)

    def of(self, tenant: str) -> Chats:
        """The same for another tenant."""
        return Chats(self._redis, tenant, self._seconds, self._vault)

    async def find(self, digests: Sequence[str]) -> tuple[int, Session] | None:
        """The first of `digests` that is known: its index, and where that dialogue stood."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for digest in digests:
                pipe.pexpire(keys.chat(self._tenant, digest), self._ms)
            known = await pipe.execute()
        for index, digest in enumerate(digests):
            stored = await self._redis.hgetall(keys.chat(self._tenant, digest)) if known[index] else None
            if stored:  # else it has just expired
                try:
                    return index, Session.of(self._vault.opened(stored))
                except (LookupError, ValueError, Damaged, KeyMissing) as error:
                    log.warning("a chat that cannot be understood is dropped: %r", error)
                    await self.drop(digest)
        return None

    async def keep(self, stands: Session) -> None:
        """Where a dialogue stands, under the digest that is its id.

        Nothing is kept of one about a document that was deleted meanwhile.
        """
        await self._scripts.run(
            _KEEP,
            [keys.chat(self._tenant, stands.id), *map(keys.document, stands.documents)],
            [self._ms, *flat(self._vault.sealed(stands.all_fields()))],
        )

    async def drop(self, digest: str) -> None:
        """Forgets how that dialogue stood."""
        await self._redis.delete(keys.chat(self._tenant, digest))

    async def forget(self, document_id: str) -> None:
        """Forgets every dialogue about the document. Looks at all chats of the tenant: for what is done seldom."""
        named = json.dumps(document_id).encode()
        for key in await all_keys(self._redis, keys.chat(self._tenant, "*")):
            if named in (await self._redis.hget(key, "documents") or b""):
                await self._redis.delete(key)
