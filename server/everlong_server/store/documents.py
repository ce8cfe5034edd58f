"""`Documents`: uploaded documents and their readings, in Redis."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everlong_server.errors import NotFound
from everlong_server.observability.tracing import current
from everlong_server.store.records import (
    Cursor,
    Document,
    Reading,
    is_id,
    pack_tokens,
    reading_id,
)
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.scripts import CLAIMING, Scripts, flat
from everlong_server.store.tenants.quota import OVER_BYTES, OVER_QUEUED, Quota, today
from everlong_server.store.vault import Vault

# Creates a document and queues its reading, and completes the upload that it is made of.
# KEYS: document, documents, document_readings, reading, jobs, stored, queued; for a document made of an upload also the
# upload and its parts
# ARGV: document id, creation time, reading id, number of document fields n, bytes, limit of bytes or '', limit of queued
# readings or '', n fields and values of the document, fields and values of the reading
# Returns 1, 0 (exists already), -1 (the upload is not pending), -1001 (too many bytes), -1002 (too many queued)
_CREATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if ARGV[6] ~= '' and tonumber(redis.call('GET', KEYS[6]) or 0) + tonumber(ARGV[5]) > tonumber(ARGV[6]) then return -1001 end
if ARGV[7] ~= '' and redis.call('SCARD', KEYS[7]) >= tonumber(ARGV[7]) then return -1002 end
if KEYS[8] then
  if redis.call('HGET', KEYS[8], 'status') ~= 'pending' then return -1 end
  redis.call('HSET', KEYS[8], 'status', 'completed', 'file', ARGV[1])
  redis.call('DEL', KEYS[9])
end
redis.call('INCRBY', KEYS[6], ARGV[5])
redis.call('SADD', KEYS[7], ARGV[3])
local n = tonumber(ARGV[4])
redis.call('HSET', KEYS[1], unpack(ARGV, 8, 7 + n))
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[4], unpack(ARGV, 8 + n))
redis.call('XADD', KEYS[5], '*', 'reading', ARGV[3], 'tenant', redis.call('HGET', KEYS[4], 'tenant'))
return 1
"""

# Removes an id from an index. Keeps its score for an hour, so that a client can delete what it lists page by page and still
# continue after a deleted id.
REMOVE_FROM_INDEX = """
local function take_out(index, id, deleted)
  local place = redis.call('ZSCORE', index, id)
  if place then redis.call('SET', deleted, place, 'EX', 3600) end
  redis.call('ZREM', index, id)
end
"""

# Deletes a document with every reading that involves it, since their states hold what it said.
# KEYS: document, documents, document_readings, stored, deleted
# ARGV: document id, prefix of reading keys, prefix of document keys, prefix of the tenant's queues
_DELETE = (
    REMOVE_FROM_INDEX
    + """
local size = redis.call('HMGET', KEYS[1], 'bytes', 'text_offset')
if redis.call('DEL', KEYS[1]) == 0 then return end
redis.call('DECRBY', KEYS[4], size[1] + size[2])
take_out(KEYS[2], ARGV[1], KEYS[5])
for _, id in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local documents, model = unpack(redis.call('HMGET', ARGV[2] .. id, 'documents', 'model'))
  if documents then
    redis.call('SREM', ARGV[4] .. model, id)
    for _, other in ipairs(cjson.decode(documents)) do redis.call('SREM', ARGV[3] .. other .. ':readings', id) end
  end
  redis.call('DEL', ARGV[2] .. id, ARGV[2] .. id .. ':children')
end
redis.call('DEL', KEYS[3])
"""
)

# Creates a reading. Queues it at once, or when its parent ends if that is still being read.
# KEYS: reading, jobs, queued, then n pairs document, document_readings, then the parent reading and its children, if any
# ARGV: reading id, limit of queued readings or '', n, fields and values of the reading
# Returns 1 (created), 0 (exists already), -k (the k-th document is gone), -1002 (too many queued)
_ENSURE_READING = """
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
# Returns {token, attempts} for the claimant, who alone may write from now on; or nothing if the reading has ended or is gone.
_CLAIM_READING = (
    CLAIMING
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if not status or status == 'ready' or status == 'failed' then return nil end
redis.call('HSET', KEYS[1], 'status', 'reading')
return claim(KEYS[1], KEYS[2], ARGV[1])
"""
)

# KEYS: reading. ARGV: token. Sets the attempts back to 0 if the token is the current one.
_UNTRY_READING = (
    "if redis.call('HGET', KEYS[1], 'fence') == ARGV[1] then redis.call('HSET', KEYS[1], 'attempts', 0) end"
)

# Writes a checkpoint. At the end of a reading, queues the readings that wait for it.
# KEYS: reading, children, jobs, queued, tokens of the day
# ARGV: token, expected version, 1 if the reading ends, tokens read or '' if they are not counted, nonce of the write, fields
# and values
# Returns the new version, 0 (the reading is gone), -1 (another reader has claimed it, or another write came first)
_CHECKPOINT_READING = """
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
redis.call('HSET', KEYS[1], 'attempts', 0, 'write', ARGV[5], unpack(ARGV, 6))
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


class StaleClaim(Exception):
    """The claim on a reading no longer holds: another reader has it, it is gone, or its version changed. Nothing was written."""


@dataclass(frozen=True, slots=True)
class ReadingClaim:
    """The right to write a reading. `token`: the fencing token. `attempts`: claims since the reading last made progress."""

    token: int
    attempts: int


class Documents:
    """One tenant's documents and the readings of them. Documents of other tenants are not found.

    `tenant` None: the documents of all tenants, for the server's own background work.
    """

    def __init__(self, redis: Client, tenant: str | None, quota: Quota, vault: Vault | None = None) -> None:
        self._redis = redis
        self._vault = vault or Vault()
        self._scripts = Scripts(redis)
        self._tenant = tenant
        self._quota = quota

    def of(self, tenant: str) -> Documents:
        """Return the documents of another tenant."""
        return Documents(self._redis, tenant, self._quota.of(tenant), self._vault)

    async def create(self, document: Document, model: str, *, upload: str | None = None, reserved: int = 0) -> bool:
        """Store the document and queue its reading by `model`, in one step. A document that exists already is left as it is.

        `upload`: the upload whose parts it is made of; it is completed in the same step. `reserved`: the bytes that the quota
        already counts for that upload. Returns False, and stores nothing, if the upload is no longer pending. Raises
        `RateLimited`.
        """
        assert self._tenant is not None, "creating a document takes a tenant"
        fields = flat(self._vault.sealed(document.fields()) | {"tenant": self._tenant})
        reading, limits = (
            Reading.fields(model, [document.id], self._tenant, current().traceparent),
            self._quota.limits,
        )
        await self._quota.require_tokens()
        done = await self._scripts.run(
            _CREATE,
            [
                keys.document(document.id), keys.documents(self._tenant), keys.document_readings(document.id),
                keys.reading(str(reading["id"])), keys.jobs(model), keys.stored(self._tenant),
                keys.queued(self._tenant, model),
                *([] if upload is None else [keys.upload(upload), keys.upload_parts(upload)]),
            ],
            [
                document.id, document.created_at, reading["id"], len(fields), document.text_offset + document.bytes,
                _or_empty(None if limits.bytes is None else limits.bytes + reserved), _or_empty(limits.queued), *fields, *flat(reading),
            ],
        )  # fmt: skip
        if done == OVER_BYTES:
            raise self._quota.no_room()
        if done == OVER_QUEUED:
            raise await self._quota.queue_full(model)
        return int(done) >= 0

    async def get(self, document_id: str) -> Document:
        """Return the document. Raises `NotFound`."""
        stored = await self._redis.hgetall(keys.document(document_id)) if is_id("doc", document_id) else None
        if not stored or self._foreign(stored.get(b"tenant")):
            raise _no_document(document_id, "document_id")
        return Document.of(self._vault.opened(stored))

    def _foreign(self, tenant: bytes | None) -> bool:
        """Whether a stored `tenant` is another one, or missing since there is no such document."""
        return tenant is None or (self._tenant is not None and tenant.decode() != self._tenant)

    async def exists(self, document_id: str) -> bool:
        """Whether the document exists for any tenant. The answer must not reach a client of another tenant."""
        return is_id("doc", document_id) and bool(await self._redis.exists(keys.document(document_id)))

    async def newest(self, limit: int, after: str | None) -> tuple[list[Document], bool]:
        """Return a page of documents, newest first, and whether more follow. `after`: the last id of the page before."""
        assert self._tenant is not None, "only a tenant has a list"
        ids, more = await page(self._redis, keys.documents(self._tenant), limit, after)
        async with self._redis.pipeline(transaction=False) as pipe:
            for document_id in ids:
                pipe.hgetall(keys.document(document_id))
            return [Document.of(self._vault.opened(stored)) for stored in await pipe.execute() if stored], more

    async def delete(self, document_id: str) -> None:
        """Delete the document and all readings that involve it. Raises `NotFound`."""
        await self.get(document_id)  # checks the tenant, which never changes: it need not be in the same step
        tenant = self._tenant
        assert tenant is not None, "deleting a document takes a tenant"
        await self._scripts.run(
            _DELETE,
            [
                keys.document(document_id), keys.documents(tenant), keys.document_readings(document_id),
                keys.stored(tenant), keys.deleted(keys.documents(tenant), document_id),
            ],
            [document_id, keys.reading(""), keys.document(""), keys.queued(tenant, "")],
        )  # fmt: skip

    # Readings

    async def ensure_reading(self, model: str, documents: Sequence[str]) -> str:
        """Return the id of the reading of `documents`, in this order, by `model`.

        Creates and queues it if it does not exist, with the readings of the shorter sequences that it starts from. Raises
        `NotFound`, which names the missing document, and `RateLimited`.
        """
        assert self._tenant is not None, "creating a reading takes a tenant"
        queue_limit = _or_empty(self._quota.limits.queued)
        for document_id in documents:
            if not is_id("doc", document_id) or self._foreign(
                await self._redis.hget(keys.document(document_id), "tenant")
            ):
                raise _no_document(document_id, "documents")
        for n in range(1, len(documents) + 1):
            fields = Reading.fields(model, documents[:n], self._tenant, current().traceparent)
            parent = reading_id(model, documents[: n - 1]) if n > 1 else ""
            pairs = [key for d in documents[:n] for key in (keys.document(d), keys.document_readings(d))]
            done = await self._scripts.run(
                _ENSURE_READING,
                [
                    keys.reading(str(fields["id"])), keys.jobs(model), keys.queued(self._tenant, model), *pairs,
                    *([keys.reading(parent), keys.reading_children(parent)] if parent else []),
                ],
                [fields["id"], queue_limit, n, *flat(fields)],
            )  # fmt: skip
            if done == OVER_QUEUED:
                raise await self._quota.queue_full(model)
            if done == 1:
                queue_limit = ""  # the longer sequences wait for this one, so together they take one place in the queue
            if done < 0:
                raise _no_document(documents[-int(done) - 1], "documents")
        return reading_id(model, documents)

    async def reading(self, id: str, *, with_state: bool = False) -> Reading | None:
        """Return the reading, or None. `with_state`: also fetch its state."""
        if with_state:
            stored = await self._redis.hgetall(keys.reading(id))
            return Reading.of(self._vault.opened(stored)) if stored else None
        values = await self._redis.hmget(keys.reading(id), _FACTS)
        stored = {field: value for field, value in zip(_FACTS, values, strict=True) if value is not None}
        return Reading.of(self._vault.opened(stored)) if stored else None

    async def claim(self, id: str, by: str) -> ReadingClaim | None:
        """Claim the reading for the claimant `by`, ending any earlier claim. Returns None if the reading has ended or is gone.

        A retry with the same `by` returns the same claim, unless another claimant came in between.
        """
        result = await self._scripts.run(_CLAIM_READING, [keys.reading(id), keys.FENCE], [by])
        return ReadingClaim(int(result[0]), int(result[1])) if result else None

    async def reset_attempts(self, id: str, claim: ReadingClaim) -> None:
        """Set the attempts back to 0: the attempt under `claim` failed for a reason outside the reading."""
        await self._scripts.run(_UNTRY_READING, [keys.reading(id)], [claim.token])

    async def holder(self, id: str) -> tuple[int, str] | None:
        """Return the fencing token and the claimant of the reading; None if nobody reads it."""
        status, fence, claim = await self._redis.hmget(keys.reading(id), "status", "fence", "claim")
        if status != b"reading":
            return None
        return int(fence), claim.decode().rpartition(":")[0]

    async def checkpoint(
        self, reading: Reading, claim: ReadingClaim, cursor: Cursor, state: bytes | None, **more: Any
    ) -> int:
        """Write state and cursor together, and return the new version.

        `more`: fields that end the reading (`status`, `error`, `state_digest`, …); readings that wait for it are then queued.
        Raises `StaleClaim`, having written nothing, if the claim was lost or `reading.version` is no longer current. The
        version also changes when an earlier write lands late, after its caller stopped waiting.
        """
        fields: dict[str, Any] = {
            "offset": cursor.offset, "bytes": cursor.bytes, "skip": cursor.skip, "tokens": cursor.tokens, "position": cursor.position,
            "segments": cursor.segments, "seconds": cursor.seconds, "open": pack_tokens(cursor.open), **more,
        }  # fmt: skip
        if state is not None:
            fields["state"] = state
        if isinstance(fields.get("error"), dict):
            fields["error"] = json.dumps(fields["error"])
        version = await self._scripts.run(
            _CHECKPOINT_READING,
            [
                keys.reading(reading.id), keys.reading_children(reading.id), keys.jobs(reading.model),
                keys.queued(reading.tenant, reading.model), keys.tokens(reading.tenant, today()),
            ],
            [
                claim.token, reading.version, int("status" in more),
                "" if self._quota.limits.tokens is None else cursor.tokens, uuid.uuid4().hex,
                *flat(self._vault.sealed(fields)),
            ],
        )  # fmt: skip
        if version <= 0:
            raise StaleClaim(
                f"reading {reading.id} is {'gone' if version == 0 else 'claimed by another reader, or changed meanwhile'}"
            )
        return int(version)


_FACTS = [
    b"id", b"model", b"documents", b"status", b"version", b"offset", b"skip", b"tokens", b"position", b"segments", b"bytes",
    b"seconds", b"open", b"state_bytes", b"state_digest", b"error", b"tenant",
]  # fmt: skip


def _or_empty(limit: int | None) -> int | str:
    """A limit as a script's argument: "" is none."""
    return "" if limit is None else limit


def _no_document(document_id: str, param: str) -> NotFound:
    return NotFound(f"no document {document_id[:64]!r}", param=param, code="document_not_found")


async def page(redis: Client, index: str, limit: int, after: str | None) -> tuple[list[str], bool]:
    """Return at most `limit` ids of an index, newest first, and whether more follow.

    `after`: the id to continue after; it may have been deleted within the last hour. Raises `NotFound` if it is unknown.
    """
    start = 0
    if after is not None:
        rank = await redis.zrevrank(index, after)
        start = await _rank_after_deleted(redis, index, after) if rank is None else int(rank) + 1
    members = await redis.zrevrange(index, start, start + limit)
    return [member.decode() for member in members[:limit]], len(members) > limit


async def _rank_after_deleted(redis: Client, index: str, after: str) -> int:
    score = await redis.get(keys.deleted(index, after))
    if score is None:
        raise NotFound(f"`after`: no object {after!r} to continue after", param="after")
    newer = await redis.zcount(index, f"({score.decode()}", "+inf")
    same_score = await redis.zrangebyscore(index, score, score)  # Redis orders these by id
    return int(newer) + sum(member > after.encode() for member in same_score)
