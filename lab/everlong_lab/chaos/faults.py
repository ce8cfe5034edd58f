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
from everlong_lab.chaos.processes import LEASE_SECONDS, Replica, World

_WAIT_SECONDS = 5.0
_CLOCK_SECONDS = 3600.0
_REDIS_CLOCK_SECONDS = 60.0  # less than what a request sent again is remembered for, which is a promise by that clock


@dataclass(slots=True)
class Scene:
    """What a fault works with. `away`: the longest seconds that something is away. `burst`: so many replicas are killed
    in a row at most. `killed`: what replicas were doing when they were killed."""

    world: World
    load: Load
    chance: random.Random
    away: float
    burst: int
    killed: Counter[str] = field(default_factory=Counter)

    async def pause(self) -> None:
        """As long as something is away."""
        await asyncio.sleep(self.chance.uniform(0.2, self.away))

    def any(self) -> Replica:
        """One of the replicas."""
        return self.chance.choice(self.world.replicas)


Fault = Callable[[Scene], Awaitable[float]]


async def kill_reading(scene: Scene) -> float:
    """kill -9 of a replica that reads a document."""
    return await _kill(scene, "reading")


async def kill_generating(scene: Scene) -> float:
    """kill -9 of a replica that generates an answer."""
    return await _kill(scene, "generating")


async def _doing(scene: Scene, replica: Replica) -> set[str]:
    reading = (await scene.world.reading()).get(replica.id, 0)
    generating = scene.load.caller.streaming[replica.number]
    return {name for name, there in (("reading", reading), ("generating", generating)) if there}


async def _kill(scene: Scene, wanted: str) -> float:
    """Some in a row, each at a moment of its own; nobody waits for what the one before has disturbed."""
    for _ in range(scene.chance.randint(1, scene.burst)):
        moment = await _kill_one(scene, wanted)
    return moment


async def _kill_one(scene: Scene, wanted: str) -> float:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        replica = scene.any()
        if wanted in await _doing(scene, replica):
            await asyncio.sleep(scene.chance.expovariate(10))  # any moment of it
            if wanted in (doing := await _doing(scene, replica)) or time.monotonic() > deadline:
                break
        elif time.monotonic() > deadline:
            doing = await _doing(scene, replica)
            break
        await asyncio.sleep(0.01)
    replica.signal(signal.SIGKILL)
    moment = time.monotonic()
    scene.killed[" and ".join(sorted(doing)) or "nothing"] += 1
    await replica.gone()
    await scene.world.restart(replica)
    return moment


async def kill_all(scene: Scene) -> float:
    """kill -9 of every replica."""
    for replica in scene.world.replicas:
        scene.killed[" and ".join(sorted(await _doing(scene, replica))) or "nothing"] += 1
        await replica.kill()
    for replica in scene.world.replicas:
        await scene.world.restart(replica)
    return time.monotonic()


async def redis_kill(scene: Scene) -> float:
    """kill -9 of Redis, which loads its append-only file."""
    scene.world.redis.kill()
    await scene.pause()
    await scene.world.redis.start()
    return time.monotonic()


async def redis_stops(scene: Scene) -> float:
    """Redis takes connections and does not answer."""
    scene.world.redis.signal(signal.SIGSTOP)
    await scene.pause()
    scene.world.redis.signal(signal.SIGCONT)
    return time.monotonic()


async def redis_full(scene: Scene) -> float:
    """Redis has no memory left (`maxmemory`, noeviction)."""
    client = scene.world.redis.client
    await client.config_set("maxmemory", 1)
    await scene.pause()
    await client.config_set("maxmemory", 0)
    return time.monotonic()


async def link_cut(scene: Scene) -> float:
    """A replica's connections to Redis break, and new ones too."""
    return await _link(scene, lambda replica: replica.link.cut())


async def link_held(scene: Scene) -> float:
    """A replica's connections to Redis are half open: nothing comes through."""
    return await _link(scene, lambda replica: replica.link.hold())


async def link_slow(scene: Scene) -> float:
    """All that replicas and Redis say to each other is late."""
    for replica in scene.world.replicas:
        replica.link.delay = scene.chance.uniform(0.01, 0.1)
    await scene.pause()
    for replica in scene.world.replicas:
        replica.link.mend()
    return time.monotonic()


async def _link(scene: Scene, break_it: Callable[[Replica], None]) -> float:
    replica = scene.any()
    break_it(replica)
    await scene.pause()
    replica.link.mend()
    return time.monotonic()


async def stall(scene: Scene) -> float:
    """SIGSTOP of a replica until its leases are others', then SIGCONT."""
    replica = scene.any()
    replica.signal(signal.SIGSTOP)
    await asyncio.sleep(LEASE_SECONDS * scene.chance.uniform(1.2, 2))
    replica.signal(signal.SIGCONT)
    return time.monotonic()


async def clock_jumps(scene: Scene) -> float:
    """A replica's time of day is up to an hour ahead or behind, and then right again."""
    return await _jump(scene, scene.any().clock, _CLOCK_SECONDS)


async def redis_clock_jumps(scene: Scene) -> float:
    """The same with Redis, by whose clock leases and records of requests end: ahead or behind for longer than a lease."""
    return await _jump(scene, scene.world.redis.clock, _REDIS_CLOCK_SECONDS)


async def _jump(scene: Scene, clock: Clock, most: float) -> float:
    clock.jump(scene.chance.choice((-1, 1)) * scene.chance.uniform(most / 10, most))
    await asyncio.sleep(scene.chance.uniform(1.5, 1.5 + scene.away))  # a process sees it within a second
    clock.jump(0)
    return time.monotonic()


async def disk_full(scene: Scene) -> float:
    """The blob store's disk is full."""
    ballast = scene.world.spool / "ballast"
    size = 1 << 20
    with ballast.open("wb", buffering=0) as file:
        while size:  # in ever smaller pieces, until there is no room for a byte
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    await scene.pause()
    ballast.unlink()
    return time.monotonic()


async def bad_callers(scene: Scene) -> float:
    """Half requests, and readers that do not read, on every replica."""
    writers = []
    for replica in scene.world.replicas:
        for head in (
            b"POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nhalf",
            b"GET /v1/doc",
            b"GET /v1/documents HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50,
        ):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", replica.port, limit=1)
                writer.write(head)
                writers.append(writer)
    await scene.pause()
    for writer in writers:
        writer.transport.abort()
    return time.monotonic()


async def sent_twice(scene: Scene) -> float:
    """Every request goes to two replicas at once."""
    scene.load.caller.twice = True
    await scene.pause()
    scene.load.caller.twice = False
    return time.monotonic()


async def rolling_restart(scene: Scene) -> float:
    """SIGTERM of one replica after the other, each once the one before is back."""
    for replica in scene.world.replicas:
        replica.signal(signal.SIGTERM)
        await replica.gone()
        await scene.world.restart(replica)
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
