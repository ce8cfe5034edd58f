"""`Quota`: the limits of a tenant, counted in Redis so that all replicas agree.

everlong has scripts of its own, because no library has slots that a dead replica gives back, or bytes that are counted in the same
step that stores them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.exceptions import RedisError

from everlong_server.errors import RateLimited
from everlong_server.store.records import now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client

_DAY = 86400
OVER_BYTES, OVER_QUEUED = -1001, -1002
"""What scripts return when the limit of bytes, or of queued readings, would be exceeded."""
_SAMPLE = 64
_DEFAULT_WAIT = 5.0
"""Seconds until a retry, if the pace of the queue is not known yet."""

# Counts a request in a token bucket, stored as the time in milliseconds at which it is full again.
# KEYS: requests, mark that this request was counted. ARGV: limit of requests a minute
# Returns {1 or 0, requests left, milliseconds to wait, milliseconds until the bucket is full}
_COUNT_REQUEST = """
local time, limit = redis.call('TIME'), tonumber(ARGV[1])
local now, each = time[1] * 1000 + time[2] / 1000, 60000 / limit
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local again = redis.call('EXISTS', KEYS[2]) == 1 -- a retry: the reply was lost
if again then full = full - each end
local over = full + each - now - 60000
if not again then
  if over > each / 1000 then return {0, 0, math.ceil(over), math.ceil(full - now)} end
  redis.call('DEL', KEYS[2]) -- allowed when Redis is out of memory; after a first write Redis lets a script finish
  redis.call('SET', KEYS[2], '', 'PX', 120000)
  redis.call('SET', KEYS[1], string.format('%.3f', full + each), 'PX', math.ceil(full + each - now))
end
return {1, math.max(0, math.floor(-over / each + 0.001)), 0, math.ceil(full + each - now)}
"""

# Sets the bytes that are reserved for an id, and removes reservations that have ended.
# KEYS: stored, reservations, sizes. ARGV: id or '' (only remove), bytes (0: none), milliseconds, limit of bytes or ''
# Returns 1, or -1001 (too many bytes; the id's reservation is unchanged)
_RESERVE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function count(id, bytes)
  local more = bytes - (redis.call('HGET', KEYS[3], id) or 0)
  if bytes > 0 then
    redis.call('HSET', KEYS[3], id, bytes)
    redis.call('ZADD', KEYS[2], now + ARGV[3], id)
  else -- HDEL first: it is allowed when Redis is out of memory, and after it Redis lets a script finish
    redis.call('HDEL', KEYS[3], id)
    redis.call('ZREM', KEYS[2], id)
  end
  redis.call('INCRBY', KEYS[1], more)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do count(id, 0) end
if ARGV[1] == '' then return 1 end
local bytes, before = tonumber(ARGV[2]), tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or 0)
if ARGV[4] ~= '' and bytes > before then
  if tonumber(redis.call('GET', KEYS[1]) or 0) - before + bytes > tonumber(ARGV[4]) then return -1001 end
end
if bytes > 0 or before > 0 then count(ARGV[1], bytes) end
return 1
"""

# Moves the end of an id's reservation, if it has one. KEYS: reservations. ARGV: id, milliseconds from now
_EXTEND_RESERVATION = """
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2], ARGV[1])
"""

# Adds a running answer. First removes the members of dead replicas, and members of this replica that have ended: a broken
# connection may have delivered such a member after its answer ended.
# KEYS: streams. ARGV: member `replica|number`, limit of streams, prefix of replica keys, the replica's members that are running
# Returns 1, or 0 (too many).
_OPEN_STREAM = """
local mine, last = string.match(ARGV[1], '^([^|]*)|(.*)$')
local running = {}
for i = 4, #ARGV do running[ARGV[i]] = true end
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local replica, number = string.match(member, '^([^|]*)|(.*)$')
  local ended = replica == mine and not running[member] and (tonumber(number) or 0) < tonumber(last)
  if ended or redis.call('EXISTS', ARGV[3] .. replica) == 0 then redis.call('SREM', KEYS[1], member) end
end
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end -- a retry: the reply was lost
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
return redis.call('SADD', KEYS[1], ARGV[1])
"""

# KEYS: tokens of the day, mark that these were counted. ARGV: tokens, seconds to keep the count
_SPEND = """
if redis.call('EXISTS', KEYS[2]) == 1 then return end -- a retry: the reply was lost
redis.call('DEL', KEYS[2]) -- allowed when Redis is out of memory; after a first write Redis lets a script finish
redis.call('SET', KEYS[2], '', 'PX', 120000)
redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each tenant; None: no limit. `requests`: per minute. `streams`: answers at the same time. `queued`: documents
    that are being read or wait. `bytes`: stored. `tokens`: per day, by UTC."""

    requests: int | None = None
    streams: int | None = None
    queued: int | None = None
    bytes: int | None = None
    sessions: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _ReadingProgress:
    """A document of `size` bytes, of which the first `read` bytes took this many seconds."""

    size: int
    read: int
    seconds: float

    @property
    def left(self) -> float:
        """The seconds that the rest will take at this pace."""
        return max(0, self.size - self.read) * self.seconds / self.read


@dataclass(slots=True)
class TokenCost:
    """The tokens that an answer has read or generated so far."""

    tokens: int = 0


class StreamSlots:
    """The running answers of this replica, of all tenants. A slot that could not be released is released when Redis is back."""

    def __init__(self, redis: Client, replica: str) -> None:
        self._redis = redis
        self.replica = replica
        self._numbers = itertools.count(1)
        self._running: dict[str, set[str]] = {}
        """The members of each tenant that are not released yet."""
        self._unreleased: list[tuple[str, str]] = []
        self._ending: set[asyncio.Task[None]] = set()

    def begin(self, tenant: str) -> str:
        """Return the member for a new answer."""
        self._running.setdefault(tenant, set()).add(member := f"{self.replica}|{next(self._numbers)}")
        return member

    def running(self, tenant: str) -> set[str]:
        """Return the tenant's members that are not released yet."""
        return self._running.get(tenant, set())

    async def end(self, ending: Coroutine[None, None, None]) -> None:
        """Run `ending` to its end, even if the waiting task is cancelled at every await, as happens when a client disconnects."""
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def release(self, tenant: str, member: str) -> None:
        """Release the member's slot; if Redis is away, later."""
        self._unreleased.append((tenant, member))
        with contextlib.suppress(RedisError):
            await self.release_pending()

    async def release_pending(self) -> None:
        """Release the slots that could not be released before. Raises `RedisError`."""
        while self._unreleased:
            tenant, member = self._unreleased[-1]
            await self._redis.srem(keys.streams(tenant), member)
            with contextlib.suppress(ValueError):  # another task has removed it
                self._unreleased.remove((tenant, member))
                self._running[tenant].discard(member)
                if not self._running[tenant]:
                    del self._running[tenant]


class Quota:
    """The limits and counts of one tenant."""

    def __init__(self, redis: Client, tenant: str, limits: Limits, slots: StreamSlots) -> None:
        self._redis = redis
        self.tenant = tenant
        self._slots = slots
        self.limits = limits

    def of(self, tenant: str) -> Quota:
        """Return the quota of another tenant."""
        return Quota(self._redis, tenant, self.limits, self._slots)

    async def request(self) -> dict[str, str]:
        """Count a request, and return the headers that tell the client its rate limit. Raises `RateLimited`."""
        limit = self.limits.requests
        if limit is None:
            return {}
        names = [keys.requests(self.tenant), keys.counted(self.tenant, uuid.uuid4().hex)]
        allowed, left, wait, reset = await self._redis.run_script(_COUNT_REQUEST, names, [limit])
        if not allowed:
            raise exceeded("requests", limit, "requests a minute", "PER_MINUTE", seconds=wait / 1000)
        return _headers("requests", limit, int(left), reset / 1000)

    @asynccontextmanager
    async def stream(self, usual_seconds: float) -> AsyncIterator[TokenCost]:
        """Take a slot for one answer, and count its tokens at its end, however it ends. Raises `RateLimited`.

        `usual_seconds`: how long an answer usually takes, to tell a refused client when to retry.
        """
        await self.require_tokens()
        limit, cost = self.limits.streams, TokenCost()
        member = None if limit is None else self._slots.begin(self.tenant)
        try:  # includes the script: it may take the slot although its reply is lost
            if member is not None and not await self._redis.run_script(
                _OPEN_STREAM,
                [keys.streams(self.tenant)],
                [member, limit, keys.REPLICA, *self._slots.running(self.tenant)],
            ):
                assert limit is not None
                raise exceeded("streams", limit, "answers at once", seconds=usual_seconds / limit)
            yield cost
        finally:
            await self._slots.end(self._end(member, cost))

    def require_streams(self, count: int) -> None:
        """Raise `RateLimited`, without a time to retry, if the tenant can never have `count` answers at once."""
        limit = self.limits.streams
        if limit is not None and count > limit:
            raise exceeded("streams", limit, f"answers at once; the request needs {count}", seconds=None)

    async def _end(self, member: str | None, cost: TokenCost) -> None:
        if member is not None:
            await self._slots.release(self.tenant, member)
        with contextlib.suppress(RedisError):  # tokens that cannot be counted are free
            await self._spend(cost.tokens)

    async def _spend(self, tokens: int) -> None:
        if self.limits.tokens is not None and tokens:
            names = [keys.tokens(self.tenant, today()), keys.counted(self.tenant, uuid.uuid4().hex)]
            await self._redis.run_script(_SPEND, names, [tokens, 2 * _DAY])

    async def require_tokens(self) -> None:
        """Raise `RateLimited` if today's tokens are used up. An answer that has begun is finished, so the limit may be exceeded."""
        limit = self.limits.tokens
        if limit is not None and int(await self._redis.get(keys.tokens(self.tenant, today())) or 0) >= limit:
            raise exceeded("tokens", limit, "tokens a day", "PER_DAY", seconds=_DAY - now() % _DAY)

    async def require_room(self, bytes: int, model: str, documents: int = 1) -> None:
        """Raise `RateLimited` if this many documents of that size together would be refused now."""
        await self.require_tokens()
        await self.require_bytes(bytes)
        limit = self.limits.queued
        if limit is not None and await self._redis.scard(keys.queued(self.tenant, model)) + documents > limit:
            raise await self.queue_full(model, documents)

    async def require_bytes(self, bytes: int) -> None:
        """Raise `RateLimited` if that many more bytes would exceed the limit."""
        if self.limits.bytes is None:
            return
        await self._reserve("", 0, 0, None)  # removes reservations that have ended
        if int(await self._redis.get(keys.stored(self.tenant)) or 0) + bytes > self.limits.bytes:
            raise self.no_room()

    async def bytes_left(self) -> int | None:
        """Return how many more bytes the tenant may store; None if there is no limit."""
        if self.limits.bytes is None:
            return None
        return max(0, self.limits.bytes - int(await self._redis.get(keys.stored(self.tenant)) or 0))

    async def reserve(self, id: str, bytes: int, seconds: float, *, limited: bool = True) -> None:
        """Count that many bytes for the upload or response `id`, for `seconds` from now. Replaces its earlier reservation.

        `limited`: raise `RateLimited` if the limit would be exceeded. False where work that has begun must be stored.
        """
        if await self._reserve(id, bytes, seconds, self.limits.bytes if limited else None) < 0:
            raise self.no_room()

    async def extend_reservation(self, id: str, seconds: float) -> None:
        """Make the reservation of `id`, if there is one, end `seconds` from now."""
        await self._redis.run_script(_EXTEND_RESERVATION, [keys.reservations(self.tenant)], [id, int(seconds * 1000)])

    async def release(self, id: str) -> None:
        """Remove the reservation of `id`."""
        await self._reserve(id, 0, 0, None)

    async def _reserve(self, id: str, bytes: int, seconds: float, limit: int | None) -> int:
        names = [keys.stored(self.tenant), keys.reservations(self.tenant), keys.reservation_sizes(self.tenant)]
        args = [id, bytes, int(seconds * 1000), limit_argument(limit)]
        return int(await self._redis.run_script(_RESERVE, names, args))

    def no_room(self) -> RateLimited:
        """Return the error for the limit of bytes. It has no retry time, since only deleting something helps."""
        return exceeded(
            "bytes",
            self.limits.bytes or 0,
            "bytes stored in documents, uploads, responses, vector stores, batches and their files",
            seconds=None,
        )

    async def queue_full(self, model: str, documents: int = 1) -> RateLimited:
        """Return the error for the limit of queued documents. Its retry time is when the first of them will be read; none if this many
        `documents` never fit."""
        limit, words = self.limits.queued or 0, "documents being read or waiting to be read"
        if documents > limit:
            return exceeded("queued", limit, f"{words}; the archive has {documents}", seconds=None)
        left = [reading.left async for reading in self._readings_in_progress(model)]
        return exceeded("queued", limit, words, seconds=min(left, default=_DEFAULT_WAIT))

    async def _readings_in_progress(self, model: str) -> AsyncIterator[_ReadingProgress]:
        """Yield the progress of the tenant's documents that are being read, among a sample of the queued ones."""
        ids = await self._redis.srandmember(keys.queued(self.tenant, model), _SAMPLE)
        async with self._redis.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(keys.reading(id.decode()), "documents", "bytes", "seconds")
            readings = [found for found in await pipe.execute() if None not in found]
            for documents, _, _ in readings:
                pipe.hget(keys.document(json.loads(documents)[-1]), "bytes")
            sizes = await pipe.execute()
        for (_, read, seconds), size in zip(readings, sizes, strict=True):
            if size is not None and int(read) > 0:
                yield _ReadingProgress(int(size), int(read), float(seconds))

    def too_many_sessions(self) -> RateLimited:
        """Return the error for the limit of sessions."""
        return exceeded("sessions", self.limits.sessions or 0, "sessions", seconds=None)


def limit_argument(limit: int | None) -> int | str:
    """A limit as a script's argument: "" is none."""
    return "" if limit is None else limit


def today() -> str:
    """Return the date by UTC, as YYYYMMDD."""
    return time.strftime("%Y%m%d", time.gmtime(now()))


def exceeded(what: str, limit: int, words: str, unit: str = "", *, seconds: float | None) -> RateLimited:
    """Return the error for a tenant that has reached a limit. `seconds`: when to retry; None: waiting does not help."""
    setting = f"EVERLONG_TENANT_{what.upper()}{'_' + unit if unit else ''}"
    wait = None if seconds is None else max(1, math.ceil(seconds))
    headers = _headers(what, limit, 0, wait)
    if wait is None:
        headers["x-should-retry"] = "false"  # OpenAI's SDKs obey this header
    return RateLimited(
        f"your tenant has reached its limit of {limit:,} {words} ({setting})",
        code=f"{what}_limit",
        retry_after=wait,
        headers=headers,
    )


def _headers(what: str, limit: int, left: int, reset: float | None) -> dict[str, str]:
    headers = {f"x-ratelimit-limit-{what}": str(limit), f"x-ratelimit-remaining-{what}": str(left)}
    return headers if reset is None else headers | {f"x-ratelimit-reset-{what}": f"{reset:g}s"}
