"""Sample the memory and open files of replicas and Redis during a campaign."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from redis.exceptions import RedisError

from everlong_lab.chaos.processes import Cluster

_EVERY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """`seconds`: since the start. `resident`, `files`: mean bytes of memory and open files of the running replicas. `redis`:
    bytes used by Redis."""

    seconds: float
    resident: float
    files: float
    redis: float


class ResourceSampler:
    """Appends a sample to `samples` every two seconds, within the context."""

    def __init__(self, world: Cluster, samples: list[ResourceSample]) -> None:
        self._world, self._samples = world, samples
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        start = time.monotonic()
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            with contextlib.suppress(RedisError, OSError):  # during an outage of Redis
                held = (await self._world.redis.client.info("memory"))["used_memory"]
                resident, files = [], []
                for replica in self._world.replicas:
                    with contextlib.suppress(psutil.Error):
                        process = psutil.Process(replica.pid)
                        resident.append(process.memory_info().rss)
                        files.append(process.num_fds())
                if resident:
                    now = time.monotonic() - start
                    self._samples.append(
                        ResourceSample(now, sum(resident) / len(resident), sum(files) / len(files), float(held))
                    )

    @staticmethod
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

    @staticmethod
    def draw(samples: list[ResourceSample], path: Path) -> None:
        """Plot three curves over time."""
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

        figure = Figure(figsize=(8, 6), layout="constrained")
        axes = figure.subplots(3, 1, sharex=True)
        minutes = [sample.seconds / 60 for sample in samples]
        for axis, (name, label, scale) in zip(
            axes,
            (
                ("resident", "resident memory\nof a replica, MB", 1e6),
                ("files", "open files\nof a replica", 1),
                ("redis", "memory of Redis, MB", 1e6),
            ),
            strict=True,
        ):
            axis.plot(minutes, [getattr(sample, name) / scale for sample in samples], linewidth=1)
            axis.set_ylabel(label)
            axis.set_ylim(bottom=0)
        axes[-1].set_xlabel("minutes")
        figure.savefig(path, dpi=120)
