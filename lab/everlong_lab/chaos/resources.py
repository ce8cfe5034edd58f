"""Sample the memory and open files of replicas and Redis during a campaign."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from redis.exceptions import RedisError

from everlong_lab.chaos.processes import Cluster
from everlong_lab.harness import curves

_EVERY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """`seconds`: since the start. `resident`, `files`: mean bytes of memory and open files of the running replicas. `redis`:
    bytes used by Redis."""

    seconds: float
    resident: float
    files: float
    redis: float


async def sample_resources(cluster: Cluster, samples: list[ResourceSample]) -> None:
    """Append a sample to `samples` every two seconds, until it is cancelled."""
    start = time.monotonic()
    while True:
        await asyncio.sleep(_EVERY_SECONDS)
        with contextlib.suppress(RedisError, OSError):  # during an outage of Redis
            held = (await cluster.redis.client.info("memory"))["used_memory"]
            resident, files = [], []
            for replica in cluster.replicas:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(replica.pid)
                    resident.append(process.memory_info().rss)
                    files.append(process.num_fds())
            if resident:
                now = time.monotonic() - start
                samples.append(ResourceSample(now, sum(resident) / len(resident), sum(files) / len(files), float(held)))


def summary(samples: list[ResourceSample]) -> list[str]:
    """Compare the second half of the time with the first."""
    if len(samples) < 4:
        return []
    middle = len(samples) // 2
    parts = []
    for name, unit, scale in (("resident", "MB", 1e6), ("files", "", 1), ("redis", "MB", 1e6)):
        halves = [
            sum(getattr(sample, name) for sample in half) / len(half) / scale
            for half in (samples[:middle], samples[middle:])
        ]
        parts.append(f"{name} {halves[0]:.1f} → {halves[1]:.1f} {unit}".rstrip())
    return [f"means in the first → second half of the time: {', '.join(parts)}"]


def draw(samples: list[ResourceSample], path: Path) -> None:
    """Plot three curves over time."""
    curves.draw(
        {
            "resident memory\nof a replica, MB": [(s.seconds / 60, s.resident / 1e6) for s in samples],
            "open files\nof a replica": [(s.seconds / 60, s.files) for s in samples],
            "memory of Redis, MB": [(s.seconds / 60, s.redis / 1e6) for s in samples],
        },
        path,
    )
