"""`Jobs`: a Redis stream of jobs for one model, shared by all replicas; and the keys that show which replicas are alive.

Tenants take turns among the oldest `_SCAN_LIMIT` jobs of the queue. A tenant with more jobs than that delays the others; the setting
`tenant_queued` prevents it. The jobs of one tenant are done in the order they were queued.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, all_keys

_SCAN_LIMIT = 10_000
"""How many of the oldest entries are scanned for the tenant whose turn it is."""

# Removes the consumers that are dead and hold no entry. KEYS: jobs. ARGV: group, prefix of replica keys
_REMOVE_DEAD_CONSUMERS = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts.pending == 0 and redis.call('EXISTS', ARGV[2] .. facts.name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts.name)
  end
end
"""

# Gives the replica the oldest waiting job of the tenant whose last turn is longest ago.
# KEYS: jobs, turns. ARGV: group, replica id, how many entries to scan
# Returns {newest entry, entry, fields}, or {newest entry} if no job waits.
_NEXT = """
local taken = {}
for _, pending in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3])) do taken[pending[1]] = true end
local turns, found, owner = {}, nil, nil -- `owner`: the tenant of `found`
local from, scanned = '-', 0
repeat
  local entries = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 1000)
  for _, entry in ipairs(entries) do
    if not taken[entry[1]] then
      local tenant = entry[2][4]
      turns[tenant] = turns[tenant] or tonumber(redis.call('HGET', KEYS[2], tenant) or 0)
      if not found or turns[tenant] < turns[owner] then found, owner = entry, tenant end
      if turns[owner] == 0 then break end
    end
  end
  scanned = scanned + #entries
  from = #entries > 0 and '(' .. entries[#entries][1]
until #entries < 1000 or scanned >= tonumber(ARGV[3]) or (owner and turns[owner] == 0)
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
newest = newest[1] and newest[1][1] or '0-0'
if not found then return {newest} end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, found[1], 'FORCE', 'JUSTID')
redis.call('HSET', KEYS[2], owner, redis.call('HINCRBY', KEYS[2], 'turns:', 1))
redis.call('EXPIRE', KEYS[2], 86400)
return {newest, found[1], found[2]}
"""

# Gives the replica the oldest abandoned entry: one of a dead replica, or one delivered to this replica whose reply was lost.
# KEYS: jobs. ARGV: group, replica id, prefix of replica keys, the entries that the replica is working on
# Returns {entry, its owner so far, fields}, or nothing.
_RECLAIM = """
local working, lives = {}, {[ARGV[2]] = 0}
for i = 4, #ARGV do working[ARGV[i]] = true end
local from, pending = '-', nil
repeat
  pending = redis.call('XPENDING', KEYS[1], ARGV[1], from, '+', 1000)
  for _, item in ipairs(pending) do
    local entry, owner = item[1], item[2]
    lives[owner] = lives[owner] or redis.call('EXISTS', ARGV[3] .. owner)
    if lives[owner] == 0 and not working[entry] then
      local taken = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry)
      if taken[1] then return {entry, owner, taken[1][2]} end
      redis.call('XACK', KEYS[1], ARGV[1], entry) -- the entry was deleted without being acknowledged
    end
    from = '(' .. entry
  end
until #pending < 1000
"""

# Ends the entry if the replica owns it, and appends a new entry with the given fields, if there are any. With another entry
# of the same job: does so only if some replica owns that one.
# KEYS: jobs. ARGV: group, replica id, entry, another entry of the same job or '', fields and values or nothing
# Returns 1, or 0 if nobody owns the other entry. If the group is missing, Redis has lost its data and nobody owns anything.
_END = """
local function owner(entry)
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry, entry, 1)
  return not pending.err and pending[1] and pending[1][2]
end
if ARGV[4] ~= '' and not owner(ARGV[4]) then return 0 end
if owner(ARGV[3]) ~= ARGV[2] then return 1 end -- a retry, or another replica has taken it over
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
if redis.call('XDEL', KEYS[1], ARGV[3]) == 1 and #ARGV > 4 then redis.call('XADD', KEYS[1], '*', unpack(ARGV, 5)) end
return 1
"""


@dataclass(frozen=True, slots=True)
class Job:
    """An entry of the stream. `id`: the reading, response or batch to work on. `fields`: all fields and values of the entry."""

    entry: str
    id: str
    fields: tuple[bytes, ...] = field(default=(), compare=False)
    redelivered: bool = field(default=False, compare=False)
    """Whether another replica owned the entry before."""

    def claimant(self) -> str:
        """Return a new claimant for the reading or response: this entry and a nonce. Each counted attempt takes a new one."""
        return f"{self.entry}/{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write a reading, response or batch.

    `token`: the fencing token. `attempts`: number of claims since the work last made progress. `starts`, of readings: how many
    times work began since the last checkpoint and did not end, because the process died. A checkpoint sets it to 1 while the work
    goes on.
    """

    token: int
    attempts: int
    starts: int = 0


class StaleClaim(Exception):
    """The claim on a reading or batch no longer holds: another worker has it, it is gone, or its version changed. Nothing was written."""


async def claim_work(redis: Client, script: str, key: str, by: str) -> Claim | None:
    """Claim the reading, response or batch `key` for the claimant `by`, ending any earlier claim. Returns None if it has ended or is gone.

    `script`: of its kind, with `CLAIMING`. A retry with the same `by` returns the same claim, unless another claimant came in between.
    """
    result = await redis.run_script(script, [key, keys.FENCE], [by])
    return Claim(*map(int, result)) if result else None


async def newer_claimant(redis: Client, key: str, claim: Claim) -> str | None:
    """Return the claimant that has taken the reading or batch `key` over since `claim`.

    None if the work is over, nobody has claimed it, or `claim` is still the newest one.
    """
    status, fence, newest = await redis.hmget(key, "status", "fence", "claim")
    if status in (b"ready", b"failed") or fence is None or newest is None or int(fence) == claim.token:
        return None
    return str(newest.decode().rpartition(":")[0])


def entry_of_claimant(claimant: str) -> str:
    """Return the stream entry that a claimant names."""
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
        self._working: dict[str, str] = {}
        """The entries that this replica is working on, and the id of each one's job."""
        self._polling = asyncio.Lock()

    async def prepare(self, *, alone: bool) -> None:
        """Create the consumer group and mark this replica alive.

        `alone`: no other replica can be running, so the keys of other replicas are deleted.
        """
        try:
            await self._redis.xgroup_create(self._stream, keys.READERS, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # the group exists
                raise
        if alone:
            for key in await all_keys(self._redis, f"{keys.REPLICA}*"):
                await self._redis.delete(key)
        await self.heartbeat()
        await self._redis.run_script(_REMOVE_DEAD_CONSUMERS, [self._stream], [keys.READERS, keys.REPLICA])

    async def heartbeat(self) -> None:
        """Mark this replica alive for another `lease_seconds`."""
        # PEXPIRE first: a Redis that is out of memory refuses SET.
        if not await self._redis.pexpire(keys.replica(self._replica), self._lease_ms):
            await self._redis.set(keys.replica(self._replica), self._model, px=self._lease_ms)

    async def has_replica_for(self, model: str) -> bool:
        """Whether a living replica serves the model."""
        for key in await all_keys(self._redis, f"{keys.REPLICA}*"):
            if await self._redis.get(key) == model.encode():
                return True
        return False

    async def deregister(self) -> None:
        """Mark this replica dead, so that others can take its jobs over at once."""
        await self._redis.delete(keys.replica(self._replica))

    async def next(self, wait_ms: int) -> Job | None:
        """Return a job, abandoned ones first; None if there is none within `wait_ms`."""
        async with self._polling:  # one caller at a time, so that `_working` has every entry that was delivered
            while (job := await self._reclaim() or await self._take(wait_ms)) is not None:
                # A job that was requeued has a second entry until its worker hears of it: do not work on it twice.
                twin = next((entry for entry, id in self._working.items() if id == job.id), None)
                if twin is None or not await self._end(job, twin):
                    self._working[job.entry] = job.id
                    return job
            return None

    async def _take(self, wait_ms: int) -> Job | None:
        job, newest = await self._next()
        if job is None:
            # A new entry ends the wait. One of the waiting replicas then takes it, by turns as always.
            if not await self._redis.xread({self._stream: newest}, count=1, block=wait_ms):
                return None
            job, _ = await self._next()
        return job

    async def _next(self) -> tuple[Job | None, bytes]:
        """Return a waiting job or None, without waiting, and the newest entry of the stream."""
        newest, *found = await self._redis.run_script(
            _NEXT,
            [self._stream, keys.turns(self._stream)],
            [keys.READERS, self._replica, _SCAN_LIMIT],
        )
        return (_job(found[0].decode(), found[1]) if found else None), newest

    async def _reclaim(self) -> Job | None:
        """Return an abandoned job: of a dead replica, or delivered to this one in a reply that was lost."""
        found = await self._redis.run_script(
            _RECLAIM, [self._stream], [keys.READERS, self._replica, keys.REPLICA, *self._working]
        )
        if not found:
            return None
        entry, owner, fields = found
        return _job(entry.decode(), fields, redelivered=owner.decode() != self._replica)

    async def length(self) -> int:
        """Return the number of jobs, including those being worked on."""
        return int(await self._redis.xlen(self._stream))

    async def has_waiting(self) -> bool:
        """Whether there is a job that no replica has taken."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xlen(self._stream)
            pipe.xpending(self._stream, keys.READERS)
            length, taken = await pipe.execute()
        return int(length) > int(taken["pending"])

    async def done(self, job: Job) -> None:
        """Remove the job, unless another replica has taken it over."""
        await self._end(job)
        self._working.pop(job.entry, None)

    async def requeue(self, job: Job) -> None:
        """Move the job to the end of the queue, unless another replica has taken it over."""
        await self._end(job, "", job.fields)
        self._working.pop(job.entry, None)

    async def drop(self, job: Job, other: str = "") -> None:
        """Stop working on the job, which another worker has claimed. `other`: that worker's entry; if it is a second entry of
        the same job, this one is removed."""
        if other not in ("", job.entry):
            await self._end(job, other)
        self._working.pop(job.entry, None)

    async def _end(self, job: Job, other: str = "", again: Sequence[bytes] = ()) -> bool:
        """End the entry if this replica still owns it, and append one with the fields `again`. Returns False, and does nothing,
        if nobody owns `other`."""
        args = [keys.READERS, self._replica, job.entry, other, *again]
        return bool(await self._redis.run_script(_END, [self._stream], args))


@dataclass(frozen=True, slots=True)
class ModelQueues:
    """The jobs of one model: `readings` and background `responses`."""

    readings: Jobs
    responses: Jobs

    @classmethod
    def open(cls, redis: Client, model: str, replica: str, lease_seconds: float) -> ModelQueues:
        """Open the queues of the model with that fingerprint. `replica`: the id with which a server takes jobs from them, and by
        which others know that it serves the model."""
        return cls(
            Jobs(redis, model, replica, lease_seconds), Jobs(redis, model, replica, lease_seconds, keys.responses)
        )

    async def prepare(self) -> None:
        """See `Jobs.prepare`."""
        await self.readings.prepare(alone=False)
        await self.responses.prepare(alone=False)

    async def lengths(self) -> tuple[int, int]:
        """Return how many readings and responses wait or are being worked on."""
        return await self.readings.length(), await self.responses.length()


def _job(entry: str, fields: list[bytes], *, redelivered: bool = False) -> Job:
    """The first field of an entry names the reading or response, the second its tenant."""
    return Job(entry, fields[1].decode(), tuple(fields), redelivered)
