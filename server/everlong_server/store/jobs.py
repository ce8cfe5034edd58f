"""`Jobs`: a stream of what is to be done, shared by all replicas; and the keys that say which replicas live.

Tenants take turns, however many jobs each of them has waiting; a tenant's own jobs are done as they came.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, all_keys
from everlong_server.store.redis.scripts import Scripts

_MOST_LOOKED_AT = 10_000
"""Of what waits, so many of the oldest entries are looked at for a tenant whose turn it is."""

# KEYS: jobs. ARGV: group, prefix of replicas' keys. Forgets the takers that are dead and hold nothing
_FORGET_TAKERS = """
for _, taker in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #taker, 2 do facts[taker[i]] = taker[i + 1] end
  if facts.pending == 0 and redis.call('EXISTS', ARGV[2] .. facts.name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts.name)
  end
end
"""

# KEYS: jobs, turns. ARGV: group, replica id, how many of the entries are looked at
# Gives the taker the oldest waiting job of the tenant whose turn was longest ago. Returns {newest entry, entry, fields}, or
# {newest entry} if none waits. A tenant that is not in the entry is of a version before there were turns.
_NEXT = """
local taken = {}
for _, held in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3])) do taken[held[1]] = true end
local turns, found, whose = {}, nil, nil
local from, looked = '-', 0
repeat
  local entries = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 1000)
  for _, entry in ipairs(entries) do
    if not taken[entry[1]] then
      local tenant = entry[2][4] or ''
      turns[tenant] = turns[tenant] or tonumber(redis.call('HGET', KEYS[2], tenant) or 0)
      if not found or turns[tenant] < turns[whose] then found, whose = entry, tenant end
      if turns[whose] == 0 then break end
    end
  end
  looked = looked + #entries
  from = #entries > 0 and '(' .. entries[#entries][1]
until #entries < 1000 or looked >= tonumber(ARGV[3]) or (whose and turns[whose] == 0)
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
newest = newest[1] and newest[1][1] or '0-0'
if not found then return {newest} end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, found[1], 'FORCE', 'JUSTID')
redis.call('HSET', KEYS[2], whose, redis.call('HINCRBY', KEYS[2], 'turns:', 1))
redis.call('EXPIRE', KEYS[2], 86400)
return {newest, found[1], found[2]}
"""

# KEYS: jobs. ARGV: group, replica id, prefix of replicas' keys, the entries that the replica has in hand
# Gives the replica the oldest entry that was left behind: by a replica that is dead, or delivered to this one, which did not
# hear of it. Returns {entry, its owner so far, fields}, or nothing.
_RECLAIM = """
local hands, lives = {}, {[ARGV[2]] = 0}
for i = 4, #ARGV do hands[ARGV[i]] = true end
local from, pending = '-', nil
repeat
  pending = redis.call('XPENDING', KEYS[1], ARGV[1], from, '+', 1000)
  for _, item in ipairs(pending) do
    local entry, owner = item[1], item[2]
    lives[owner] = lives[owner] or redis.call('EXISTS', ARGV[3] .. owner)
    if lives[owner] == 0 and not hands[entry] then
      local taken = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry)
      if taken[1] then return {entry, owner, taken[1][2]} end
      redis.call('XACK', KEYS[1], ARGV[1], entry) -- it was deleted, and nobody said that it was done
    end
    from = '(' .. entry
  end
until #pending < 1000
"""

# KEYS: jobs. ARGV: group, replica id, entry, another entry of the same job or '', fields and values or nothing
# Ends the entry if it is the replica's, and puts one with these fields behind all others. With another entry: only if that
# is in anybody's hands. Returns 1, or 0: it is not. Without the group, Redis has lost its data: nobody has anything.
_END = """
local function owner(entry)
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry, entry, 1)
  return not pending.err and pending[1] and pending[1][2]
end
if ARGV[4] ~= '' and not owner(ARGV[4]) then return 0 end
if owner(ARGV[3]) ~= ARGV[2] then return 1 end -- sent again, or another has taken it over
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
if redis.call('XDEL', KEYS[1], ARGV[3]) == 1 and #ARGV > 4 then redis.call('XADD', KEYS[1], '*', unpack(ARGV, 5)) end
return 1
"""


@dataclass(frozen=True, slots=True)
class Job:
    """An entry of the stream, and the id of what is to be done: a reading, a response. `fields`: the whole entry."""

    entry: str
    id: str
    fields: tuple[bytes, ...] = field(default=(), compare=False)
    redelivered: bool = field(default=False, compare=False)
    """Whether it was another replica's before."""

    def claimant(self) -> str:
        """What to claim its reading or response by: this entry, and a word of its own for each try that counts."""
        return f"{self.entry}/{uuid.uuid4().hex}"


def entry_of_claimant(claimant: str) -> str:
    """The entry that a claimant has the job by."""
    return claimant.partition("/")[0]


class Jobs:
    """The `stream` of one model (fingerprint) as seen by one replica."""

    def __init__(
        self, redis: Client, model: str, replica: str, lease_seconds: float, stream: Callable[[str], str] = keys.jobs
    ) -> None:
        self._redis = redis
        self._model = model
        self._stream = stream(model)
        self._replica = replica
        self._lease_ms = int(lease_seconds * 1000)
        self._scripts = Scripts(redis)
        self._held: dict[str, str] = {}
        """The entries in hand here, and what is to be done of each."""
        self._polling = asyncio.Lock()

    async def prepare(self, *, alone: bool) -> None:
        """Makes the consumer group, and marks this replica alive. `alone`: no other replica can be, so none is."""
        try:
            await self._redis.xgroup_create(self._stream, keys.READERS, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # it exists
                raise
        if alone:
            for key in await all_keys(self._redis, f"{keys.REPLICA}*"):
                await self._redis.delete(key)
        await self.heartbeat()
        await self._scripts.run(_FORGET_TAKERS, [self._stream], [keys.READERS, keys.REPLICA])

    async def heartbeat(self) -> None:
        """This replica is alive for another `lease_seconds`."""
        if not await self._redis.pexpire(
            keys.replica(self._replica), self._lease_ms
        ):  # a Redis that is full refuses to set
            await self._redis.set(keys.replica(self._replica), self._model, px=self._lease_ms)

    async def has_replica_for(self, model: str) -> bool:
        """Whether a living replica serves that model."""
        for key in await all_keys(self._redis, f"{keys.REPLICA}*"):
            if await self._redis.get(key) == model.encode():
                return True
        return False

    async def deregister(self) -> None:
        """This replica is gone: what it held may be taken over at once."""
        await self._redis.delete(keys.replica(self._replica))

    async def next(self, wait_ms: int) -> Job | None:
        """A job, first those that their takers have left behind; None if there is none within `wait_ms`."""
        async with self._polling:  # one at a time, so that `_held` knows of every entry that was delivered
            while (job := await self._reclaim() or await self._take(wait_ms)) is not None:
                # Two entries for one job, as servers of before could make them, would be done against each other here.
                twin = next((entry for entry, id in self._held.items() if id == job.id), None)
                if twin is None or not await self._end(job, twin):
                    self._held[job.entry] = job.id
                    return job
            return None

    async def _take(self, wait_ms: int) -> Job | None:
        job, newest = await self._next()
        if job is None:
            # What comes meanwhile ends the wait. It is taken as everything is, and by one of those that have waited.
            if not await self._redis.xread({self._stream: newest}, count=1, block=wait_ms):
                return None
            job, _ = await self._next()
        return job

    async def _next(self) -> tuple[Job | None, bytes]:
        """A job that nobody has, now; and the newest entry of all."""
        newest, *found = await self._scripts.run(
            _NEXT,
            [self._stream, keys.turns(self._stream)],
            [keys.READERS, self._replica, _MOST_LOOKED_AT],
        )
        return (_job(found[0].decode(), found[1]) if found else None), newest

    async def _reclaim(self) -> Job | None:
        """A job of a dead replica, or one that was delivered here although its answer got lost."""
        found = await self._scripts.run(
            _RECLAIM, [self._stream], [keys.READERS, self._replica, keys.REPLICA, *self._held]
        )
        if not found:
            return None
        entry, owner, fields = found
        return _job(entry.decode(), fields, redelivered=owner.decode() != self._replica)

    async def length(self) -> int:
        """How many jobs there are, those under way among them."""
        return int(await self._redis.xlen(self._stream))

    async def has_waiting(self) -> bool:
        """Whether there is a job that nobody has taken."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xlen(self._stream)
            pipe.xpending(self._stream, keys.READERS)
            length, held = await pipe.execute()
        return int(length) > int(held["pending"])

    async def done(self, job: Job) -> None:
        """Removes the job, unless another replica has taken it over: it is that one's to remove."""
        await self._end(job)
        self._held.pop(job.entry, None)

    async def requeue(self, job: Job) -> None:
        """Puts the job behind all others, unless another replica has taken it over."""
        await self._end(job, "", job.fields)
        self._held.pop(job.entry, None)

    async def drop(self, job: Job, other: str = "") -> None:
        """Leaves the job to whoever has it now. `other`: the entry that they have it by; if there are two, this one ends."""
        if other not in ("", job.entry):
            await self._end(job, other)
        self._held.pop(job.entry, None)

    async def _end(self, job: Job, other: str = "", again: Sequence[bytes] = ()) -> bool:
        """Ends the entry, once, if it is still this replica's. False, and nothing is done: `other` is not in hand any more."""
        args = [keys.READERS, self._replica, job.entry, other, *again]
        return bool(await self._scripts.run(_END, [self._stream], args))


def _job(entry: str, fields: list[bytes], *, redelivered: bool = False) -> Job:
    """The first field says what is to be done, the second whose it is."""
    return Job(entry, fields[1].decode(), tuple(fields), redelivered)
