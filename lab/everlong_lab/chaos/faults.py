"""Faults by name. Each breaks something at a random moment and repairs it.

A fault returns the moment (monotonic seconds) from which recovery is measured: when the process was killed, or when the
outage ended.
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
from everlong_lab.chaos.processes import LEASE_SECONDS, Cluster, LocalReplica

_WAIT_SECONDS = 5.0
_CLOCK_SECONDS = 3600.0
_REDIS_CLOCK_SECONDS = 60.0  # less than the lifetime of idempotency records, which ends by this clock


@dataclass(slots=True)
class FaultContext:
    """What a fault works with. `away`: longest outage in seconds. `burst`: maximum number of replicas killed in a row.
    `killed`: counts of what replicas were doing when they were killed."""

    cluster: Cluster
    load: Load
    rng: random.Random
    away: float
    burst: int
    killed: Counter[str] = field(default_factory=Counter)

    async def outage(self, end: Callable[[], object]) -> float:
        """Sleep for the length of an outage and `end` it; return the moment."""
        await asyncio.sleep(self.rng.uniform(0.2, self.away))
        if isinstance(result := end(), Awaitable):
            await result
        return time.monotonic()

    def any(self) -> LocalReplica:
        """Return a random replica."""
        return self.rng.choice(self.cluster.replicas)


Fault = Callable[[FaultContext], Awaitable[float]]


async def kill_reading(context: FaultContext) -> float:
    """Kill a replica with SIGKILL while it reads a document."""
    return await _kill(context, "reading")


async def kill_generating(context: FaultContext) -> float:
    """Kill a replica with SIGKILL while it generates an answer."""
    return await _kill(context, "generating")


async def _doing(context: FaultContext, replica: LocalReplica) -> set[str]:
    reading = (await context.cluster.reading()).get(replica.id, 0)
    generating = context.load.caller.streaming[replica.number]
    return {name for name, busy in (("reading", reading), ("generating", generating)) if busy}


async def _kill(context: FaultContext, wanted: str) -> float:
    """Kill some replicas in a row, each at a random moment, without waiting for recovery in between."""
    for _ in range(context.rng.randint(1, context.burst)):
        moment = await _kill_one(context, wanted)
    return moment


async def _kill_one(context: FaultContext, wanted: str) -> float:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        replica = context.any()
        if wanted in await _doing(context, replica):
            await asyncio.sleep(context.rng.expovariate(10))  # a random moment of the work
            if wanted in (doing := await _doing(context, replica)) or time.monotonic() > deadline:
                break
        elif time.monotonic() > deadline:
            doing = await _doing(context, replica)
            break
        await asyncio.sleep(0.01)
    replica.signal(signal.SIGKILL)
    moment = time.monotonic()
    context.killed[" and ".join(sorted(doing)) or "nothing"] += 1
    await replica.wait_ended()
    await context.cluster.restart(replica)
    return moment


async def kill_all(context: FaultContext) -> float:
    """Kill every replica with SIGKILL."""
    for replica in context.cluster.replicas:
        context.killed[" and ".join(sorted(await _doing(context, replica))) or "nothing"] += 1
        await replica.kill()
    for replica in context.cluster.replicas:
        await context.cluster.restart(replica)
    return time.monotonic()


async def redis_kill(context: FaultContext) -> float:
    """Kill Redis with SIGKILL; it reloads its append-only file."""
    context.cluster.redis.kill()
    return await context.outage(context.cluster.redis.start)


async def redis_stops(context: FaultContext) -> float:
    """Stop Redis: it accepts connections but does not answer."""
    context.cluster.redis.signal(signal.SIGSTOP)
    return await context.outage(lambda: context.cluster.redis.signal(signal.SIGCONT))


async def redis_full(context: FaultContext) -> float:
    """Leave Redis without memory (`maxmemory`, noeviction)."""
    client = context.cluster.redis.client
    await client.config_set("maxmemory", 1)
    return await context.outage(lambda: client.config_set("maxmemory", 0))


async def link_cut(context: FaultContext) -> float:
    """Break a replica's connections to Redis, including new ones."""
    return await _disturb_proxy(context, lambda replica: replica.proxy.cut())


async def link_held(context: FaultContext) -> float:
    """Make a replica's connections to Redis half open: no data passes."""
    return await _disturb_proxy(context, lambda replica: replica.proxy.hold())


async def link_slow(context: FaultContext) -> float:
    """Delay everything between replicas and Redis."""
    for replica in context.cluster.replicas:
        replica.proxy.delay = context.rng.uniform(0.01, 0.1)

    def mend() -> None:
        for replica in context.cluster.replicas:
            replica.proxy.mend()

    return await context.outage(mend)


async def _disturb_proxy(context: FaultContext, disturb: Callable[[LocalReplica], None]) -> float:
    replica = context.any()
    disturb(replica)
    return await context.outage(replica.proxy.mend)


async def stall(context: FaultContext) -> float:
    """Stop a replica (SIGSTOP) until others have taken over its leases, then continue it (SIGCONT)."""
    replica = context.any()
    replica.signal(signal.SIGSTOP)
    await asyncio.sleep(LEASE_SECONDS * context.rng.uniform(1.2, 2))
    replica.signal(signal.SIGCONT)
    return time.monotonic()


async def clock_jumps(context: FaultContext) -> float:
    """Set a replica's clock up to an hour ahead or behind, then right again."""
    return await _jump(context, context.any().clock, _CLOCK_SECONDS)


async def redis_clock_jumps(context: FaultContext) -> float:
    """Set the clock of Redis, by which leases and idempotency records expire, ahead or behind by more than a lease."""
    return await _jump(context, context.cluster.redis.clock, _REDIS_CLOCK_SECONDS)


async def _jump(context: FaultContext, clock: Clock, most: float) -> float:
    clock.jump(context.rng.choice((-1, 1)) * context.rng.uniform(most / 10, most))
    await asyncio.sleep(context.rng.uniform(1.5, 1.5 + context.away))  # a process notices within a second
    clock.jump(0)
    return time.monotonic()


async def disk_full(context: FaultContext) -> float:
    """Fill the blob store's disk."""
    ballast = context.cluster.spool / "ballast"
    size = 1 << 20
    with ballast.open("wb", buffering=0) as file:
        while size:  # in ever smaller pieces, until not even a byte fits
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return await context.outage(ballast.unlink)


async def bad_callers(context: FaultContext) -> float:
    """Send incomplete requests, and requests whose answers are not read, to every replica."""
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

    def abort() -> None:
        for writer in writers:
            writer.transport.abort()

    return await context.outage(abort)


async def sent_twice(context: FaultContext) -> float:
    """Send every request to two replicas at once."""
    context.load.caller.twice = True
    return await context.outage(lambda: setattr(context.load.caller, "twice", False))


async def rolling_restart(context: FaultContext) -> float:
    """Restart the replicas with SIGTERM, one after the other."""
    for replica in context.cluster.replicas:
        replica.signal(signal.SIGTERM)
        await replica.wait_ended()
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
