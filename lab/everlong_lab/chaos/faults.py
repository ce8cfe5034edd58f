"""What can break, by name. Each breaks something at a moment of its own and mends it again.

A fault returns the moment from which on recovery counts (monotonic seconds): when the process was killed, or when what
had been away was back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from everlong_lab.chaos.clock import Clock
from everlong_lab.chaos.load import Load
from everlong_lab.chaos.processes import LEASE_SECONDS, Replica, Cluster

_WAIT_SECONDS = 5.0
_CLOCK_SECONDS = 3600.0
_REDIS_CLOCK_SECONDS = 60.0  # less than what a request sent again is remembered for, which is a promise by that clock


@dataclass(slots=True)
class FaultContext:
    """What a fault works with. `away`: the longest seconds that something is away. `burst`: so many replicas are killed
    in a row at most. `killed`: what replicas were doing when they were killed."""

    cluster: Cluster
    load: Load
    rng: random.Random
    away: float
    burst: int
    killed: Counter[str] = field(default_factory=Counter)

    async def pause(self) -> None:
        """As long as something is away."""
        await asyncio.sleep(self.rng.uniform(0.2, self.away))

    def any(self) -> Replica:
        """One of the replicas."""
        return self.rng.choice(self.cluster.replicas)


Fault = Callable[[FaultContext], Awaitable[float]]


async def kill_reading(context: FaultContext) -> float:
    """kill -9 of a replica that reads a document."""
    return await _kill(context, "reading")


async def kill_generating(context: FaultContext) -> float:
    """kill -9 of a replica that generates an answer."""
    return await _kill(context, "generating")


async def _doing(context: FaultContext, replica: Replica) -> set[str]:
    reading = (await context.cluster.reading()).get(replica.id, 0)
    generating = context.load.caller.streaming[replica.number]
    return {name for name, there in (("reading", reading), ("generating", generating)) if there}


async def _kill(context: FaultContext, wanted: str) -> float:
    """Some in a row, each at a moment of its own; nobody waits for what the one before has disturbed."""
    for _ in range(context.rng.randint(1, context.burst)):
        moment = await _kill_one(context, wanted)
    return moment


async def _kill_one(context: FaultContext, wanted: str) -> float:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        replica = context.any()
        if wanted in await _doing(context, replica):
            await asyncio.sleep(context.rng.expovariate(10))  # any moment of it
            if wanted in (doing := await _doing(context, replica)) or time.monotonic() > deadline:
                break
        elif time.monotonic() > deadline:
            doing = await _doing(context, replica)
            break
        await asyncio.sleep(0.01)
    replica.signal(signal.SIGKILL)
    moment = time.monotonic()
    context.killed[" and ".join(sorted(doing)) or "nothing"] += 1
    await replica.gone()
    await context.cluster.restart(replica)
    return moment


async def kill_all(context: FaultContext) -> float:
    """kill -9 of every replica."""
    for replica in context.cluster.replicas:
        context.killed[" and ".join(sorted(await _doing(context, replica))) or "nothing"] += 1
        await replica.kill()
    for replica in context.cluster.replicas:
        await context.cluster.restart(replica)
    return time.monotonic()


async def redis_kill(context: FaultContext) -> float:
    """kill -9 of Redis, which loads its append-only file."""
    context.cluster.redis.kill()
    await context.pause()
    await context.cluster.redis.start()
    return time.monotonic()


async def redis_stops(context: FaultContext) -> float:
    """Redis takes connections and does not answer."""
    context.cluster.redis.signal(signal.SIGSTOP)
    await context.pause()
    context.cluster.redis.signal(signal.SIGCONT)
    return time.monotonic()


async def redis_full(context: FaultContext) -> float:
    """Redis has no memory left (`maxmemory`, noeviction)."""
    client = context.cluster.redis.client
    await client.config_set("maxmemory", 1)
    await context.pause()
    await client.config_set("maxmemory", 0)
    return time.monotonic()


async def link_cut(context: FaultContext) -> float:
    """A replica's connections to Redis break, and new ones too."""
    return await _link(context, lambda replica: replica.proxy.cut())


async def link_held(context: FaultContext) -> float:
    """A replica's connections to Redis are half open: nothing comes through."""
    return await _link(context, lambda replica: replica.proxy.hold())


async def link_slow(context: FaultContext) -> float:
    """All that replicas and Redis say to each other is late."""
    for replica in context.cluster.replicas:
        replica.proxy.delay = context.rng.uniform(0.01, 0.1)
    await context.pause()
    for replica in context.cluster.replicas:
        replica.proxy.mend()
    return time.monotonic()


async def _link(context: FaultContext, break_it: Callable[[Replica], None]) -> float:
    replica = context.any()
    break_it(replica)
    await context.pause()
    replica.proxy.mend()
    return time.monotonic()


async def stall(context: FaultContext) -> float:
    """SIGSTOP of a replica until its leases are others', then SIGCONT."""
    replica = context.any()
    replica.signal(signal.SIGSTOP)
    await asyncio.sleep(LEASE_SECONDS * context.rng.uniform(1.2, 2))
    replica.signal(signal.SIGCONT)
    return time.monotonic()


async def clock_jumps(context: FaultContext) -> float:
    """A replica's time of day is up to an hour ahead or behind, and then right again."""
    return await _jump(context, context.any().clock, _CLOCK_SECONDS)


async def redis_clock_jumps(context: FaultContext) -> float:
    """The same with Redis, by whose clock leases and records of requests end: ahead or behind for longer than a lease."""
    return await _jump(context, context.cluster.redis.clock, _REDIS_CLOCK_SECONDS)


async def _jump(context: FaultContext, clock: Clock, most: float) -> float:
    clock.jump(context.rng.choice((-1, 1)) * context.rng.uniform(most / 10, most))
    await asyncio.sleep(context.rng.uniform(1.5, 1.5 + context.away))  # a process sees it within a second
    clock.jump(0)
    return time.monotonic()


async def disk_full(context: FaultContext) -> float:
    """The blob store's disk is full."""
    ballast = context.cluster.spool / "ballast"
    size = 1 << 20
    with ballast.open("wb", buffering=0) as file:
        while size:  # in ever smaller pieces, until there is no room for a byte
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    await context.pause()
    ballast.unlink()
    return time.monotonic()


async def bad_callers(context: FaultContext) -> float:
    """Half requests, and readers that do not read, on every replica."""
    writers = []
    for replica in context.cluster.replicas:
        for head in (
            b"POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nhalf",
            b"GET /v1/doc",
            b"GET /v1/documents HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50,
        ):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", replica.port, limit=1)
                writer.write(head)
                writers.append(writer)
    await context.pause()
    for writer in writers:
        writer.transport.abort()
    return time.monotonic()


async def sent_twice(context: FaultContext) -> float:
    """Every request goes to two replicas at once."""
    context.load.caller.twice = True
    await context.pause()
    context.load.caller.twice = False
    return time.monotonic()


async def rolling_restart(context: FaultContext) -> float:
    """SIGTERM of one replica after the other, each once the one before is back."""
    for replica in context.cluster.replicas:
        replica.signal(signal.SIGTERM)
        await replica.gone()
        await context.cluster.restart(replica)
    return time.monotonic()


FAULTS: dict[str, Fault] = {
    "replica killed while reading": kill_reading,
    "replica killed while generating": kill_generating,
    "all replicas killed": kill_all,
    "replica stalled past its lease": stall,
    "rolling restart": rolling_restart,
    "Redis killed": redis_kill,
    "Redis does not answer": redis_stops,
    "Redis full": redis_full,
    "replica cut off from Redis": link_cut,
    "replica half cut off from Redis": link_held,
    "late messages from and to Redis": link_slow,
    "clock of a replica jumps": clock_jumps,
    "clock of Redis jumps": redis_clock_jumps,
    "disk full": disk_full,
    "half-open and slow callers": bad_callers,
    "requests sent twice": sent_twice,
}
