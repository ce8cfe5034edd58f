"""`Jobs`: a stream of what is to be done, shared by all replicas; and the keys that say which replicas live.

Tenants take turns, however many jobs each of them has waiting; a tenant's own jobs are done as they came.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from everlong_server.store import keys, scripts
from everlong_server.store.connection import Client
from everlong_server.store.scripts import Scripts

_MOST_LOOKED_AT = 10_000
"""Of what waits, so many of the oldest entries are looked at for a tenant whose turn it is."""


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


def entry_of(claimant: str) -> str:
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
            async for key in self._redis.scan_iter(f"{keys.REPLICA}*"):
                await self._redis.delete(key)
        await self.beat()
        await self._scripts.run(scripts.FORGET_TAKERS, [self._stream], [keys.READERS, keys.REPLICA])

    async def beat(self) -> None:
        """This replica is alive for another `lease_seconds`."""
        await self._redis.set(keys.replica(self._replica), self._model, px=self._lease_ms)

    async def served(self, model: str) -> bool:
        """Whether a living replica serves that model."""
        async for key in self._redis.scan_iter(f"{keys.REPLICA}*"):
            if await self._redis.get(key) == model.encode():
                return True
        return False

    async def leave(self) -> None:
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
            scripts.NEXT_JOB,
            [self._stream, keys.turns(self._stream)],
            [keys.READERS, self._replica, _MOST_LOOKED_AT],
        )
        return (_job(found[0].decode(), found[1]) if found else None), newest

    async def _reclaim(self) -> Job | None:
        """A job of a dead replica, or one that was delivered here although its answer got lost."""
        found = await self._scripts.run(
            scripts.RECLAIM_JOB, [self._stream], [keys.READERS, self._replica, keys.REPLICA, *self._held]
        )
        if not found:
            return None
        entry, owner, fields = found
        return _job(entry.decode(), fields, redelivered=owner.decode() != self._replica)

    async def length(self) -> int:
        """How many jobs there are, those under way among them."""
        return int(await self._redis.xlen(self._stream))

    async def waiting(self) -> bool:
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

    async def again(self, job: Job) -> None:
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
        return bool(await self._scripts.run(scripts.END_JOB, [self._stream], args))


def _job(entry: str, fields: list[bytes], *, redelivered: bool = False) -> Job:
    """The first field says what is to be done, the second whose it is."""
    return Job(entry, fields[1].decode(), tuple(fields), redelivered)
