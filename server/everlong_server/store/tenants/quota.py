"""`Quota`: what a tenant may use, counted in Redis, so that all replicas agree.

Own scripts rather than a library: rates have good ones, yet slots that a dead replica gives back, and bytes that are
counted in the step that stores them, have not; and one way of counting is enough.
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
from everlong_server.store.redis.scripts import Scripts

_DAY = 86400
MISSING_ROOM, MISSING_QUEUE = -1001, -1002
"""What scripts return instead of making something."""
_SAMPLE = 64
_UNKNOWN = 5.0
"""Seconds to wait for a queue of which nothing is known yet."""

# KEYS: requests, that this one was counted. ARGV: most requests a minute
# A bucket that fills evenly, kept as the one moment when it is full again. Milliseconds.
# Returns {1 or 0, requests left, milliseconds to wait, milliseconds until none counts any more}
_COUNT_REQUEST = """
local time, limit = redis.call('TIME'), tonumber(ARGV[1])
local now, each = time[1] * 1000 + time[2] / 1000, 60000 / limit
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local again = redis.call('EXISTS', KEYS[2]) == 1 -- its answer was lost
if again then full = full - each end
local over = full + each - now - 60000
if not again then
  if over > each / 1000 then return {0, 0, math.ceil(over), math.ceil(full - now)} end
  redis.call('DEL', KEYS[2]) -- takes no room, and behind it a Redis that is full lets a script go on
  redis.call('SET', KEYS[2], '', 'PX', 120000)
  redis.call('SET', KEYS[1], string.format('%.3f', full + each), 'PX', math.ceil(full + each - now))
end
return {1, math.max(0, math.floor(-over / each + 0.001)), 0, math.ceil(full + each - now)}
"""

# KEYS: stored, held, sizes. ARGV: id or '', bytes or '' (none any more), milliseconds, most bytes or ''
# What is held by that id is so many bytes from now on; what has ended is not counted any more.
# Returns 1, or -1001 (too many bytes: all is as it was)
_RESERVE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function count(id, bytes)
  local more = bytes - (redis.call('HGET', KEYS[3], id) or 0)
  if bytes > 0 then
    redis.call('HSET', KEYS[3], id, bytes)
    redis.call('ZADD', KEYS[2], now + ARGV[3], id)
  else -- what takes no room first: behind it a Redis that is full lets a script go on
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

# KEYS: held. ARGV: id, milliseconds. What is held by that id is so for longer.
_EXTEND_RESERVATION = """
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2], ARGV[1])
"""

# KEYS: streams. ARGV: member `replica|number`, most streams, prefix of replica keys, the replica's members that had not ended
# when it was sent. Returns 1, or 0 (too many).
# Forgets members of dead replicas, and those of this one that have ended: Redis may have taken one on a connection that broke,
# behind its end.
_OPEN_STREAM = """
local mine, last = string.match(ARGV[1], '^([^|]*)|(.*)$')
local running = {}
for i = 4, #ARGV do running[ARGV[i]] = true end
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local replica, number = string.match(member, '^([^|]*)|(.*)$')
  local ended = replica == mine and not running[member] and (tonumber(number) or 0) < tonumber(last)
  if ended or redis.call('EXISTS', ARGV[3] .. replica) == 0 then redis.call('SREM', KEYS[1], member) end
end
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end -- sent again: its answer was lost
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
return redis.call('SADD', KEYS[1], ARGV[1])
"""

# KEYS: tokens of the day, that these were counted. ARGV: tokens, seconds that the day's are kept
_SPEND = """
if redis.call('EXISTS', KEYS[2]) == 1 then return end -- its answer was lost
redis.call('DEL', KEYS[2]) -- takes no room, and behind it a Redis that is full lets a script go on
redis.call('SET', KEYS[2], '', 'PX', 120000)
redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may use; None: as much as it likes. `requests`: a minute. `tokens`: a day, by UTC."""

    requests: int | None = None
    streams: int | None = None
    queued: int | None = None
    bytes: int | None = None
    sessions: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _ReadingProgress:
    """A document of `size` bytes, of which `read` took so many seconds."""

    size: int
    read: int
    seconds: float

    @property
    def left(self) -> float:
        """Seconds that the rest takes."""
        return max(0, self.size - self.read) * self.seconds / self.read


@dataclass(slots=True)
class TokenCost:
    """What an answer has cost so far, in tokens that were read or generated."""

    tokens: int = 0


class StreamSlots:
    """This replica's share of all tenants' running answers. What could not be given back is, when Redis is there again."""

    def __init__(self, redis: Client, replica: str) -> None:
        self._redis = redis
        self.replica = replica
        self._numbers = itertools.count(1)
        self._running: dict[str, set[str]] = {}
        """Each tenant's, until they are given back."""
        self._left: list[tuple[str, str]] = []
        self._ending: set[asyncio.Task[None]] = set()

    def begin(self, tenant: str) -> str:
        """The member of an answer that begins."""
        self._running.setdefault(tenant, set()).add(member := f"{self.replica}|{next(self._numbers)}")
        return member

    def running(self, tenant: str) -> set[str]:
        """The members that are not given back yet."""
        return self._running.get(tenant, set())

    async def end(self, ending: Coroutine[None, None, None]) -> None:
        """Runs `ending` to its end, also if who waits for it is cancelled at every await, as a request is whose caller left."""
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def give_back(self, tenant: str, member: str) -> None:
        self._left.append((tenant, member))
        with contextlib.suppress(RedisError):
            await self.release_pending()

    async def release_pending(self) -> None:
        """Gives back what is left."""
        while self._left:
            tenant, member = self._left[-1]
            await self._redis.srem(keys.streams(tenant), member)
            with contextlib.suppress(ValueError):  # another task has
                self._left.remove((tenant, member))
                self._running[tenant].discard(member)
                if not self._running[tenant]:
                    del self._running[tenant]


class Quota:
    """One tenant's."""

    def __init__(self, redis: Client, tenant: str, limits: Limits, slots: StreamSlots) -> None:
        self._redis = redis
        self._scripts = Scripts(redis)
        self.tenant = tenant
        self._slots = slots
        self.limits = limits

    def of(self, tenant: str) -> Quota:
        """The same for another tenant."""
        return Quota(self._redis, tenant, self.limits, self._slots)

    async def request(self) -> dict[str, str]:
        """Counts a request; headers that say how many there may be. Raises `RateLimited`."""
        limit = self.limits.requests
        if limit is None:
            return {}
        names = [keys.requests(self.tenant), keys.counted(self.tenant, uuid.uuid4().hex)]
        let, left, wait, reset = await self._scripts.run(_COUNT_REQUEST, names, [limit])
        if not let:
            raise exceeded("requests", limit, "requests a minute", "PER_MINUTE", seconds=wait / 1000)
        return _headers("requests", limit, int(left), reset / 1000)

    @asynccontextmanager
    async def stream(self, usual: float) -> AsyncIterator[TokenCost]:
        """A place for one answer, which is charged at its end, however it ends. `usual`: seconds that an answer takes.

        Raises `RateLimited`.
        """
        await self.require_tokens()
        limit, spent = self.limits.streams, TokenCost()
        member = None if limit is None else self._slots.begin(self.tenant)
        try:  # the place may be taken although nobody is told so
            if member is not None and not await self._scripts.run(
                _OPEN_STREAM,
                [keys.streams(self.tenant)],
                [member, limit, keys.REPLICA, *self._slots.running(self.tenant)],
            ):
                assert limit is not None
                raise exceeded("streams", limit, "answers at once", seconds=usual / limit)
            yield spent
        finally:
            await self._slots.end(self._end(member, spent))

    async def _end(self, member: str | None, spent: TokenCost) -> None:
        if member is not None:
            await self._slots.give_back(self.tenant, member)
        with contextlib.suppress(RedisError):  # what cannot be charged is a gift
            await self._spend(spent.tokens)

    async def _spend(self, tokens: int) -> None:
        if self.limits.tokens is not None and tokens:
            names = [keys.tokens(self.tenant, today()), keys.counted(self.tenant, uuid.uuid4().hex)]
            await self._scripts.run(_SPEND, names, [tokens, 2 * _DAY])

    async def require_tokens(self) -> None:
        """Raises `RateLimited` if today's tokens are used up. What has begun is finished: it may go over."""
        limit = self.limits.tokens
        if limit is not None and int(await self._redis.get(keys.tokens(self.tenant, today())) or 0) >= limit:
            raise exceeded("tokens", limit, "tokens a day", "PER_DAY", seconds=_DAY - now() % _DAY)

    async def require_room(self, bytes: int, model: str) -> None:
        """Raises `RateLimited` if a document of so many bytes would be refused now; for before it is received."""
        await self.require_tokens()
        await self.require_bytes(bytes)
        limit = self.limits.queued
        if limit is not None and await self._redis.scard(keys.queued(self.tenant, model)) >= limit:
            raise await self.queue_full(model)

    async def require_bytes(self, bytes: int) -> None:
        """Raises `RateLimited` if so many bytes more would be too many."""
        if self.limits.bytes is None:
            return
        await self._reserve("", 0, 0, None)  # what has ended counts no more
        if int(await self._redis.get(keys.stored(self.tenant)) or 0) + bytes > self.limits.bytes:
            raise self.no_room()

    async def reserve(self, id: str, bytes: int, seconds: float, *, limited: bool = True) -> None:
        """Counts `bytes` of what is stored as `id` for so many seconds, in place of what was counted of it; 0: none any more.

        Raises `RateLimited`, if it is `limited`: what has begun is finished.
        """
        if await self._reserve(id, bytes, seconds, self.limits.bytes if limited else None) < 0:
            raise self.no_room()

    async def extend_reservation(self, id: str, seconds: float) -> None:
        """What is counted as `id` is counted for `seconds` from now."""
        await self._scripts.run(_EXTEND_RESERVATION, [keys.reservations(self.tenant)], [id, int(seconds * 1000)])

    async def release(self, id: str) -> None:
        """`id` is stored no more."""
        await self._reserve(id, 0, 0, None)

    async def _reserve(self, id: str, bytes: int, seconds: float, most: int | None) -> int:
        names = [keys.stored(self.tenant), keys.reservations(self.tenant), keys.reservation_sizes(self.tenant)]
        args = [id, bytes, int(seconds * 1000), "" if most is None else most]
        return int(await self._scripts.run(_RESERVE, names, args))

    def no_room(self) -> RateLimited:
        """The error for bytes. Waiting makes no room: deleting does."""
        return exceeded(
            "bytes", self.limits.bytes or 0, "bytes stored in documents, uploads and responses", seconds=None
        )

    async def queue_full(self, model: str) -> RateLimited:
        """The error for documents that wait to be read. There is room when the first of them is read, at its pace so far."""
        left = [reading.left async for reading in self._begun(model)]
        return exceeded(
            "queued", self.limits.queued or 0, "documents being read or waiting for it",
            seconds=min(left, default=_UNKNOWN),
        )  # fmt: skip

    async def _begun(self, model: str) -> AsyncIterator[_ReadingProgress]:
        """Documents of the tenant that are being read, of some that are queued."""
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
        """The error for sessions."""
        return exceeded("sessions", self.limits.sessions or 0, "sessions", seconds=None)


def today() -> str:
    """The day, by UTC."""
    return time.strftime("%Y%m%d", time.gmtime(now()))


def exceeded(what: str, limit: int, words: str, unit: str = "", *, seconds: float | None) -> RateLimited:
    """The error for a tenant that has `limit` of `what`. `seconds`: when to come again; None: waiting does not help."""
    setting = f"EVERLONG_TENANT_{what.upper()}{'_' + unit if unit else ''}"
    wait = None if seconds is None else max(1, math.ceil(seconds))
    headers = _headers(what, limit, 0, wait)
    if wait is None:
        headers["x-should-retry"] = "false"  # what the SDKs of OpenAI's API go by
    return RateLimited(
        f"the limit of your tenant is {limit:,} {words} ({setting})",
        code=f"{what}_limit",
        retry_after=wait,
        headers=headers,
    )


def _headers(what: str, limit: int, left: int, reset: float | None) -> dict[str, str]:
    headers = {f"x-ratelimit-limit-{what}": str(limit), f"x-ratelimit-remaining-{what}": str(left)}
    return headers if reset is None else headers | {f"x-ratelimit-reset-{what}": f"{reset:g}s"}
