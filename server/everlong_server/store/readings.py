"""`Readings`: the prefills of sequences of documents, in Redis, and the claim that allows one writer at a time for each."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from everlong_server.errors import NotFound
from everlong_server.observability.tracing import current_span
from everlong_server.store.jobs import Claim, StaleClaim, claim_work, newer_claimant
from everlong_server.store.records import Cursor, Reading, reading_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash, stored_hash
from everlong_server.store.redis.scripts import CLAIMING, flat
from everlong_server.store.snapshot import FACTS, Snapshot
from everlong_server.store.tenants.quota import OVER_QUEUED, Quota, limit_argument, today
from everlong_server.store.vault import Vault

# Creates a reading. Queues it at once, or when its parent ends if that is still being read.
# KEYS: reading, jobs, queued, then n pairs document, document_readings, then the parent reading and its children, if any
# ARGV: reading id, limit of queued readings or '', n, fields and values of the reading
# Returns 1 (created), 0 (exists already), -k (the k-th document is gone), -1002 (too many queued)
_ENSURE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local last = 3 + 2 * ARGV[3]
for i = 4, last, 2 do
  if redis.call('EXISTS', KEYS[i]) == 0 then return -(i - 2) / 2 end
end
if ARGV[2] ~= '' and redis.call('SCARD', KEYS[3]) >= tonumber(ARGV[2]) then return -1002 end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
for i = 4, last, 2 do redis.call('SADD', KEYS[i + 1], ARGV[1]) end
local parent = KEYS[last + 1] and redis.call('HGET', KEYS[last + 1], 'status')
if parent == 'queued' or parent == 'reading' then
  redis.call('SADD', KEYS[last + 2], ARGV[1])
else
  redis.call('XADD', KEYS[2], '*', 'reading', ARGV[1], 'tenant', redis.call('HGET', KEYS[1], 'tenant'))
end
return 1
"""

# KEYS: reading, fence. ARGV: claimant
# Returns {token, attempts, starts} for the claimant, who alone may write from now on; or nothing if the reading has ended or is
# gone.
_CLAIM = (
    CLAIMING
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if not status or status == 'ready' or status == 'failed' then return nil end
redis.call('HSET', KEYS[1], 'status', 'reading')
local claimed = claim(KEYS[1], KEYS[2], ARGV[1])
claimed[3] = redis.call('HGET', KEYS[1], 'starts') or 0
return claimed
"""
)

# KEYS: reading. ARGV: token, counters and their values. Sets the counters if the token is the current one.
_SET_COUNTERS = (
    "if redis.call('HGET', KEYS[1], 'fence') == ARGV[1] then redis.call('HSET', KEYS[1], unpack(ARGV, 2)) end"
)

# Writes a checkpoint. At the end of a reading, queues the readings that wait for it.
# KEYS: reading, children, jobs, queued, tokens of the day
# ARGV: token, expected version, 1 if the reading ends, tokens read or '' if they are not counted, nonce of the write, fields
# and values
# Returns the new version, 0 (the reading is gone), -1 (another reader has claimed it, or another write came first)
_CHECKPOINT = """
local now = redis.call('HMGET', KEYS[1], 'fence', 'version', 'write')
if not now[2] then return 0 end
if now[1] ~= ARGV[1] then return -1 end
if now[3] == ARGV[5] then return tonumber(now[2]) end -- a retry: the reply was lost
if now[2] ~= ARGV[2] then return -1 end
if ARGV[4] ~= '' then
  local more = tonumber(ARGV[4]) - tonumber(redis.call('HGET', KEYS[1], 'tokens') or 0)
  if more > 0 then
    redis.call('INCRBY', KEYS[5], more)
    redis.call('EXPIRE', KEYS[5], 172800)
  end
end
redis.call('HSET', KEYS[1], 'attempts', 0, 'starts', 1, 'write', ARGV[5], unpack(ARGV, 6))
if ARGV[3] == '1' then
  redis.call('SREM', KEYS[4], redis.call('HGET', KEYS[1], 'id'))
  local tenant = redis.call('HGET', KEYS[1], 'tenant')
  for _, child in ipairs(redis.call('SMEMBERS', KEYS[2])) do
    redis.call('XADD', KEYS[3], '*', 'reading', child, 'tenant', tenant)
  end
  redis.call('DEL', KEYS[2])
end
return redis.call('HINCRBY', KEYS[1], 'version', 1)
"""


@dataclass(eq=False)
class Readings:
    """The readings of one tenant's documents.

    `tenant` None: the readings of all tenants, for the readers.
    """

    redis: Client
    tenant: str | None
    quota: Quota
    vault: Vault

    async def ensure(self, model: str, documents: Sequence[str]) -> str:
        """Return the id of the reading of `documents`, in this order, by `model`.

        Creates and queues it if it does not exist, with the readings of the shorter sequences that it starts from. Raises
        `NotFound`, which names the missing document, and `RateLimited`.
        """
        assert self.tenant is not None, "creating a reading takes a tenant"
        queue_limit = limit_argument(self.quota.limits.queued)
        for document_id in documents:
            if not await owned_hash(self.redis, self.tenant, keys.document, "doc", document_id, [b"tenant"]):
                raise no_document(document_id, "documents")
        for n in range(1, len(documents) + 1):
            fields = Reading.fields(model, documents[:n], self.tenant, current_span().traceparent)
            parent = reading_id(model, documents[: n - 1]) if n > 1 else ""
            pairs = [key for d in documents[:n] for key in (keys.document(d), keys.document_readings(d))]
            done = await self.redis.run_script(
                _ENSURE,
                [
                    keys.reading(str(fields["id"])), keys.jobs(model), keys.queued(self.tenant, model), *pairs,
                    *([keys.reading(parent), keys.reading_children(parent)] if parent else []),
                ],
                [fields["id"], queue_limit, n, *flat(fields)],
            )  # fmt: skip
            if done == OVER_QUEUED:
                raise await self.quota.queue_full(model)
            if done == 1:
                queue_limit = ""  # the longer sequences wait for this one, so together they take one place in the queue
            if done < 0:
                raise no_document(documents[-int(done) - 1], "documents")
        return reading_id(model, documents)

    async def get(self, id: str, *, with_state: bool = False) -> Reading | None:
        """Return the reading, or None. `with_state`: also fetch its state."""
        stored = await stored_hash(self.redis, keys.reading(id), () if with_state else _FACTS)
        return Reading.of(self.vault.opened(stored)) if stored else None

    async def claim(self, id: str, by: str) -> Claim | None:
        """Claim the reading for the claimant `by`: see `claim_work`."""
        return await claim_work(self.redis, _CLAIM, keys.reading(id), by)

    async def set_counters(self, id: str, claim: Claim, **counters: int) -> None:
        """Set `attempts` or `starts` (see `Claim`). Does nothing if another claimant has taken the reading over."""
        await self.redis.run_script(_SET_COUNTERS, [keys.reading(id)], [claim.token, *flat(counters)])

    async def holder(self, id: str, claim: Claim) -> str | None:
        """Return the claimant that has taken the reading over since `claim`; None if it is over, or nobody has."""
        return await newer_claimant(self.redis, keys.reading(id), claim)

    async def checkpoint(
        self,
        reading: Reading,
        claim: Claim,
        cursor: Cursor,
        snapshot: Snapshot,
        *,
        status: str | None = None,
        error: dict[str, str] | None = None,
    ) -> int:
        """Write snapshot and cursor together, and return the new version.

        `status`: the status that ends the reading, with its `error`; readings that wait for it are then queued.
        Raises `StaleClaim`, having written nothing, if the claim was lost or `reading.version` is no longer current. The
        version also changes when an earlier write lands late, after its caller stopped waiting.
        """
        fields: dict[str, Any] = {
            **asdict(cursor), **snapshot.fields(), **({"status": status} if status is not None else {}),
            **({"error": json.dumps(error)} if error is not None else {}),
        }  # fmt: skip
        version = await self.redis.run_script(
            _CHECKPOINT,
            [
                keys.reading(reading.id), keys.reading_children(reading.id), keys.jobs(reading.model),
                keys.queued(reading.tenant, reading.model), keys.tokens(reading.tenant, today()),
            ],
            [
                claim.token, reading.version, int(status is not None),
                "" if self.quota.limits.tokens is None else cursor.tokens, uuid.uuid4().hex,
                *flat(self.vault.sealed(fields)),
            ],
        )  # fmt: skip
        if version <= 0:
            raise StaleClaim(
                f"reading {reading.id} is {'deleted' if version == 0 else 'claimed or changed by another reader'}"
            )
        return int(version)


_FACTS = (
    b"id", b"model", b"documents", b"status", b"version", b"offset", b"skip", b"tokens", b"segments", b"bytes", b"seconds",
    *FACTS, b"error", b"tenant",
)  # fmt: skip


def no_document(document_id: str, param: str) -> NotFound:
    """Return the error for a document that does not exist."""
    return NotFound(f"no document {document_id[:64]!r}", param=param, code="document_not_found")
