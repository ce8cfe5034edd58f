"""`Documents` and `Readings` in Redis."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from everlong_server.errors import NotFound
from everlong_server.observability.tracing import current_span
from everlong_server.store.records import (
    DEFAULT_TENANT,
    Cursor,
    Document,
    Reading,
    belongs,
    is_id,
    pack_tokens,
    reading_id,
)
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, every
from everlong_server.store.redis.scripts import CLAIMING, Scripts, flat
from everlong_server.store.tenants.quota import MISSING_QUEUE, MISSING_ROOM, Quota, today
from everlong_server.store.vault import Vault

# KEYS: document, documents, document_readings, reading, jobs, stored, queued, and the upload and its parts that it is
# made of, if it is
# ARGV: document id, created, reading id, number of document fields n, bytes, most bytes or '', most queued or '',
# n fields and values, then those of the reading
# Returns 1, 0 (there already), -1 (the upload is not pending), -1001 (too many bytes), -1002 (too many queued)
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

# Takes an id out of an index. Who lists and deletes goes on behind what was deleted: its place is kept for an hour.
TAKE_OUT = """
local function take_out(index, id, deleted)
  local place = redis.call('ZSCORE', index, id)
  if place then redis.call('SET', deleted, place, 'EX', 3600) end
  redis.call('ZREM', index, id)
end
"""

# KEYS: document, documents, document_readings, stored, deleted
# ARGV: document id, prefix of reading keys, of document keys, of the tenant's queues
# What the document's readings had learnt goes with them.
_DELETE = (
    TAKE_OUT
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

# KEYS: reading, jobs, queued, then n pairs document, document_readings, then the parent reading and its children, if any
# ARGV: reading id, most queued or '', n, fields and values of the reading
# Returns 1 (created), 0 (there already), -k (the k-th document is gone), -1002 (too many queued)
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

# KEYS: reading, fence. ARGV: by what it is claimed
# Returns {token, attempts} of the one who may write now, or nothing if there is nothing to do.
_CLAIM_READING = (
    CLAIMING
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if not status or status == 'ready' or status == 'failed' then return nil end
redis.call('HSET', KEYS[1], 'status', 'reading')
return claim(KEYS[1], KEYS[2], ARGV[1])
"""
)

# KEYS: reading. ARGV: token. What its owner could not try does not count.
_UNTRY_READING = (
    "if redis.call('HGET', KEYS[1], 'fence') == ARGV[1] then redis.call('HSET', KEYS[1], 'attempts', 0) end"
)

# KEYS: reading, children, jobs, queued, tokens of the day
# ARGV: token, expected version, 1 if this is the end, tokens read or '' if they are not counted, nonce of the write, fields
# and values
# Returns the new version, 0 (the reading is gone), -1 (somebody else has it, or another write was quicker)
_CHECKPOINT_READING = """
local now = redis.call('HMGET', KEYS[1], 'fence', 'version', 'write')
if not now[2] then return 0 end
if now[1] ~= ARGV[1] then return -1 end
if now[3] == ARGV[5] then return tonumber(now[2]) end -- sent again: its answer was lost
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


# KEYS: index of before, the tenant's, stored. ARGV: prefix of the keys of those whose bytes are to be counted, or ''
# The index that is gone says that it was done.
_ADOPT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local bytes = 0
for _, id in ipairs(ARGV[1] ~= '' and redis.call('ZRANGE', KEYS[1], 0, -1) or {}) do
  local size = redis.call('HMGET', ARGV[1] .. id, 'bytes', 'text_offset')
  bytes = bytes + (tonumber(size[1]) or 0) + (tonumber(size[2]) or 0)
end
redis.call('ZUNIONSTORE', KEYS[2], 2, KEYS[2], KEYS[1], 'AGGREGATE', 'MAX')
redis.call('DEL', KEYS[1])
if bytes > 0 then redis.call('INCRBY', KEYS[3], string.format('%.0f', bytes)) end
return 1
"""


class Fenced(Exception):
    """Somebody else has the reading now, it is gone, or not where it was: nothing was written, and nothing may be."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write a reading. `attempts`: how often it was claimed since it last made progress."""

    token: int
    attempts: int


class Documents:
    """One tenant's documents, and the readings that models make of them. Another tenant's are not there.

    `tenant` None: everybody's, for those who read and keep what others have uploaded.
    """

    def __init__(self, redis: Client, tenant: str | None, quota: Quota, vault: Vault | None = None) -> None:
        self._redis = redis
        self._vault = vault or Vault()
        self._scripts = Scripts(redis)
        self._tenant = tenant
        self._quota = quota

    def of(self, tenant: str) -> Documents:
        """The same for another tenant."""
        return Documents(self._redis, tenant, self._quota.of(tenant), self._vault)

    async def create(self, document: Document, model: str, *, upload: str | None = None, held: int = 0) -> bool:
        """Stores the document and queues its reading by `model`, at once. Then it is acknowledged.

        `upload`: the one whose parts it is made of, which is completed with it, and of which `held` bytes are counted; False, and
        nothing is stored, if that is not pending any more. Raises `RateLimited`. One that is there already is left as it is.
        """
        assert self._tenant is not None, "a document belongs to somebody"
        fields = flat(self._vault.sealed(document.fields()) | {"tenant": self._tenant})
        reading, limits = (
            Reading.fields(model, [document.id], self._tenant, current_span().traceparent),
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
                _or_any(None if limits.bytes is None else limits.bytes + held), _or_any(limits.queued), *fields, *flat(reading),
            ],
        )  # fmt: skip
        if done == MISSING_ROOM:
            raise self._quota.no_room()
        if done == MISSING_QUEUE:
            raise await self._quota.queue_full(model)
        return int(done) >= 0

    async def get(self, document_id: str) -> Document:
        """Raises `NotFound`."""
        stored = await self._redis.hgetall(keys.document(document_id)) if is_id("doc", document_id) else None
        if not stored or self._foreign(stored.get(b"tenant")):
            raise _no_document(document_id, "document_id")
        return Document.of(self._vault.opened(stored))

    def _foreign(self, tenant: bytes | None) -> bool:
        return self._tenant is not None and belongs(tenant) != self._tenant

    async def exists(self, document_id: str) -> bool:
        """Whether there is such a document, whoever's it is. Not for callers to know."""
        return is_id("doc", document_id) and bool(await self._redis.exists(keys.document(document_id)))

    async def newest(self, limit: int, after: str | None) -> tuple[list[Document], bool]:
        """Newest first, and whether there are more. `after`: the last id of the page before."""
        assert self._tenant is not None, "only a tenant has a list"
        ids, more = await page(self._redis, keys.documents(self._tenant), limit, after)
        async with self._redis.pipeline(transaction=False) as pipe:
            for document_id in ids:
                pipe.hgetall(keys.document(document_id))
            return [Document.of(self._vault.opened(stored)) for stored in await pipe.execute() if stored], more

    async def delete(self, document_id: str) -> None:
        """Removes the document and all its readings. Raises `NotFound`."""
        await self.get(document_id)  # whose it is never changes: it need not be one step
        tenant = self._tenant
        assert tenant is not None, "a document is deleted by its tenant"
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
        """The id of the reading of `documents` by `model`, queued now if there was none, with those it starts from.

        Raises `NotFound` naming the document that is not there, and `RateLimited`.
        """
        assert self._tenant is not None, "a reading belongs to somebody"
        most = _or_any(self._quota.limits.queued)
        for document_id in documents:
            there = is_id("doc", document_id)
            if not there or self._foreign(await self._redis.hget(keys.document(document_id), "tenant")):
                raise _no_document(document_id, "documents")
        for n in range(1, len(documents) + 1):
            fields = Reading.fields(model, documents[:n], self._tenant, current_span().traceparent)
            parent = reading_id(model, documents[: n - 1]) if n > 1 else ""
            pairs = [key for d in documents[:n] for key in (keys.document(d), keys.document_readings(d))]
            done = await self._scripts.run(
                _ENSURE_READING,
                [
                    keys.reading(str(fields["id"])), keys.jobs(model), keys.queued(self._tenant, model), *pairs,
                    *([keys.reading(parent), keys.reading_children(parent)] if parent else []),
                ],
                [fields["id"], most, n, *flat(fields)],
            )  # fmt: skip
            if done == MISSING_QUEUE:
                raise await self._quota.queue_full(model)
            if done == 1:
                most = ""  # what follows waits for this one: they are read one after the other
            if done < 0:
                raise _no_document(documents[-int(done) - 1], "documents")
        return reading_id(model, documents)

    async def reading(self, id: str, *, with_state: bool = False) -> Reading | None:
        """The reading, or None; its state only if asked for."""
        if with_state:
            stored = await self._redis.hgetall(keys.reading(id))
            return Reading.of(self._vault.opened(stored)) if stored else None
        values = await self._redis.hmget(keys.reading(id), _FACTS)
        stored = {field: value for field, value in zip(_FACTS, values, strict=True) if value is not None}
        return Reading.of(self._vault.opened(stored)) if stored else None

    async def claim(self, id: str, by: str) -> Claim | None:
        """The right to write the reading from now on, taken from whoever had it; None if it is done or gone. The same `by`
        again has the same right, as long as nobody else has claimed it."""
        result = await self._scripts.run(_CLAIM_READING, [keys.reading(id), keys.FENCE], [by])
        return Claim(int(result[0]), int(result[1])) if result else None

    async def untried(self, id: str, claim: Claim) -> None:
        """What was tried with `claim` is not counted, nor what was before."""
        await self._scripts.run(_UNTRY_READING, [keys.reading(id)], [claim.token])

    async def holder(self, id: str) -> tuple[int, str] | None:
        """The token that the reading is being read with, and by what it was claimed, "" if that is not known; None if
        nobody reads it."""
        status, fence, claim = await self._redis.hmget(keys.reading(id), "status", "fence", "claim")
        if status != b"reading":
            return None
        by, _, token = (claim or b"").rpartition(b":")
        return int(fence), by.decode() if token == fence else ""

    async def checkpoint(self, reading: Reading, claim: Claim, cursor: Cursor, state: bytes | None, **more: Any) -> int:
        """Writes state and cursor together; the new version. Raises `Fenced`, having written nothing: also if an earlier
        write, of which nobody waited for the end, came between.

        `more`: fields that end the reading (`status`, `error`, `state_digest`, …); then those that wait for it are queued.
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
            raise Fenced(f"reading {reading.id} is {'gone' if version == 0 else 'in other hands, or not where it was'}")
        return int(version)


_FACTS = [
    b"id", b"model", b"documents", b"status", b"version", b"offset", b"skip", b"tokens", b"position", b"segments", b"bytes",
    b"seconds", b"open", b"state_bytes", b"state_digest", b"error", b"tenant",
]  # fmt: skip


def _or_any(limit: int | None) -> int | str:
    """As scripts have it."""
    return "" if limit is None else limit


def _no_document(document_id: str, param: str) -> NotFound:
    return NotFound(f"no document {document_id[:64]!r}", param=param, code="document_not_found")


async def adopt(redis: Client) -> None:
    """Gives what earlier versions have stored its names of today.

    Keys that did not name their slot get names that do; the lists of before there were tenants become the default tenant's.
    """
    old = keys.PREFIX.replace("{", "").replace("}", "")
    for key in await every(redis, f"{old}*"):
        try:
            await redis.renamenx(key, keys.PREFIX.encode() + key.removeprefix(old.encode()))
        except ResponseError:
            if await redis.exists(key):  # else another replica has renamed it, or it has expired
                raise
    scripts = Scripts(redis)
    for name, new in (("documents", keys.documents(DEFAULT_TENANT)), ("sessions", keys.sessions(DEFAULT_TENANT))):
        counted = keys.document("") if name == "documents" else ""
        await scripts.run(_ADOPT, [f"{keys.PREFIX}{name}", new, keys.stored(DEFAULT_TENANT)], [counted])


async def page(redis: Client, index: str, limit: int, after: str | None) -> tuple[list[str], bool]:
    """Ids of an index, newest first, and whether there are more. `after` may have been deleted meanwhile. Raises `NotFound` for
    one that is unknown."""
    start = 0
    if after is not None:
        rank = await redis.zrevrank(index, after)
        start = await _behind_deleted(redis, index, after) if rank is None else int(rank) + 1
    members = await redis.zrevrange(index, start, start + limit)
    return [member.decode() for member in members[:limit]], len(members) > limit


async def _behind_deleted(redis: Client, index: str, after: str) -> int:
    place = await redis.get(keys.deleted(index, after))
    if place is None:
        raise NotFound(f"no object {after!r} to continue after", param="after")
    newer = await redis.zcount(index, f"({place.decode()}", "+inf")
    beside = await redis.zrangebyscore(index, place, place)  # of one moment: by their ids
    return int(newer) + sum(member > after.encode() for member in beside)
