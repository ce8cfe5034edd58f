"""`Jobs`: the stream of readings to be done, shared by all replicas; and the keys that say which replicas live."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import ResponseError

from everlong_server.store import keys
from everlong_server.store.connection import Client


@dataclass(frozen=True, slots=True)
class Job:
    """An entry of the stream."""

    entry: str
    reading: str


class Jobs:
    """The stream of one model (fingerprint) as seen by one replica."""

    def __init__(self, redis: Client, model: str, replica: str, lease_seconds: float) -> None:
        self._redis = redis
        self._stream = keys.jobs(model)
        self._replica = replica
        self._lease_ms = int(lease_seconds * 1000)

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

    async def beat(self) -> None:
        """This replica is alive for another `lease_seconds`."""
        await self._redis.set(keys.replica(self._replica), 1, px=self._lease_ms)

    async def leave(self) -> None:
        """This replica is gone: what it held may be taken over at once."""
        await self._redis.delete(keys.replica(self._replica))

    async def next(self, wait_ms: int) -> Job | None:
        """A job, first those of dead replicas; None if there is none within `wait_ms`."""
        taken = await self._reclaim()
        if taken is not None:
            return taken
        answer = await self._redis.xreadgroup(keys.READERS, self._replica, {self._stream: ">"}, count=1, block=wait_ms)
        if not answer:
            return None
        entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
        for entry, fields in entries:
            return Job(entry.decode(), fields[b"reading"].decode())
        return None

    async def _reclaim(self) -> Job | None:
        pending = await self._redis.xpending_range(self._stream, keys.READERS, "-", "+", count=100)
        for item in pending:
            owner = item["consumer"].decode()
            if owner == self._replica or await self._redis.exists(keys.replica(owner)):
                continue
            claimed = await self._redis.xclaim(self._stream, keys.READERS, self._replica, 0, [item["message_id"]])
            for entry, fields in claimed:
                if fields:
                    return Job(entry.decode(), fields[b"reading"].decode())
        return None

    async def done(self, job: Job) -> None:
        """Removes the job."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xack(self._stream, keys.READERS, job.entry)
            pipe.xdel(self._stream, job.entry)
            await pipe.execute()
