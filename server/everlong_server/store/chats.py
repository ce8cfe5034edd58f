"""`Chats`: a cache of the states of chats, which callers keep themselves and send whole with each request.

An entry is found by the digest of the messages that led to its state. Losing one costs time only: the chat is prefilled
again. An entry is never changed, only continued under another digest. So any number of callers can continue from the same
point at once without waiting for each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everlong_server.errors import Damaged, KeyMissing
from everlong_server.store.records import Message, Session
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, all_keys
from everlong_server.store.redis.scripts import flat
from everlong_server.store.vault import Vault

log = logging.getLogger(__name__)

# Stores a chat, unless one of its documents was deleted: the state holds what the document said.
# KEYS: chat, then its documents. ARGV: milliseconds to live, fields and values
# Returns 1, or 0 if a document is gone.
_KEEP = """
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return 0 end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""


def digests(
    model: str, documents: Sequence[str], messages: Sequence[Message], after: str | None = None, tools: str = ""
) -> list[str]:
    """Return, for each message, the digest of the chat up to and including it.

    `after`: the digest of the messages that came before these, if any. `tools`: the definitions of the chat's tools. Sampling
    parameters are not part of a digest.
    """
    digest = after or _digest(model, list(documents), *([tools] if tools else []))
    found = []
    for message in messages:
        digest = _digest(digest, message.role, message.content)
        found.append(digest)
    return found


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(eq=False)
class Chats:
    """One tenant's chats, shared by all replicas. `seconds`: how long a chat is kept after its last use.

    Tenants never share entries, not even for equal messages: a cache hit would reveal what another tenant wrote.
    """

    redis: Client
    tenant: str
    seconds: float
    vault: Vault

    def of(self, tenant: str) -> Chats:
        """Return the chats of another tenant."""
        return replace(self, tenant=tenant)

    async def find(self, digests: Sequence[str]) -> tuple[int, Session] | None:
        """Return the first of `digests` that is cached, as its index and the chat's state; None if none is.

        Extends the life of every cached entry among `digests`. Drops an entry that cannot be decoded.
        """
        async with self.redis.pipeline(transaction=False) as pipe:
            for digest in digests:
                pipe.pexpire(keys.chat(self.tenant, digest), int(self.seconds * 1000))
            is_cached = await pipe.execute()
        for index, digest in enumerate(digests):
            stored = await self.redis.hgetall(keys.chat(self.tenant, digest)) if is_cached[index] else None
            if stored:  # empty if it has expired since
                try:
                    return index, Session.of(self.vault.opened(stored))
                except (LookupError, ValueError, Damaged, KeyMissing) as error:
                    log.warning("dropped a cached chat that cannot be decoded: %r", error)
                    await self.drop(digest)
        return None

    async def keep(self, chat: Session) -> None:
        """Cache a chat's state under its id, which is its digest.

        Does nothing if one of its documents was deleted meanwhile.
        """
        await self.redis.run_script(
            _KEEP,
            [keys.chat(self.tenant, chat.id), *map(keys.document, chat.documents)],
            [int(self.seconds * 1000), *flat(self.vault.sealed(chat.fields()))],
        )

    async def drop(self, digest: str) -> None:
        """Remove the cached chat with that digest."""
        await self.redis.delete(keys.chat(self.tenant, digest))

    async def forget(self, document_id: str) -> None:
        """Remove every cached chat about the document. Scans all chats of the tenant, so call it rarely."""
        quoted_id = json.dumps(document_id).encode()
        for key in await all_keys(self.redis, keys.chat(self.tenant, "*")):
            if quoted_id in (await self.redis.hget(key, "documents") or b""):
                await self.redis.delete(key)
