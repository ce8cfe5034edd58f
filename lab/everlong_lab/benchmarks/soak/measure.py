"""`everlong bench soak`: whether memory, open files, Redis and latency of one server stay level under hours of load with faults.

Samples are appended to a file as they are taken. A soak that was interrupted goes on with the same folder: with the same stored data,
and a new server process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
import redis.asyncio as redis

from everlong_lab.benchmarks.soak.load import Counts, client
from everlong_lab.harness import curves
from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.tasks import running
from everlong_lab.harness.tiny import save_tiny
from everlong_server.store.redis.embedded import EmbeddedRedis

_SETTINGS = {"idempotency_seconds": 300, "chat_seconds": 300, "upload_seconds": 300}
"""Short lifetimes, so that what is kept for a time is level after minutes."""
_STALL_SECONDS = 2.0
_BINS_PER_HOUR = 12
_SLOPE_LIMIT = 1.0
"""Percent of the mean an hour."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """`minutes`: of load in all, over all `runs`. `fault_seconds`: mean time between faults. `warm_up`, `warm_up_answers`: the
    slopes leave out this many minutes and answers at the beginning of each run. Memory levels off after some 1,700 answers. `rest_seconds`: a client's pause between its rounds."""

    folder: Path
    minutes: float
    clients: int = 4
    every_seconds: float = 5.0
    fault_seconds: float = 60.0
    warm_up: float = 5.0
    model: str | None = None
    warm_up_answers: int = 2000
    rest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """`run`: number of the server process. `seconds`: of load since the first run began. `resident`, `redis`: bytes. `latencies`:
    seconds of the answers since the last sample, from the first try to the end. `again`: requests that were sent again."""

    run: int
    seconds: float
    resident: int
    files: int
    threads: int
    redis: int
    answers: int
    again: int
    faults: int
    latencies: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of a figure in percent of its `mean` an hour, and half of its 95 % interval."""

    name: str
    mean: float
    percent: float
    interval: float


def run(plan: SoakPlan, progress: Callable[[str], None]) -> Report:
    """Run or continue a soak and return its report. Writes `samples.jsonl` and `soak.svg` to the folder."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    file = plan.folder / "samples.jsonl"
    samples = load(file)
    before = samples[-1].seconds if samples else 0.0
    if before < plan.minutes * 60:
        model = plan.model or str(_tiny(plan.folder))
        settings = itertools.chain(*((f"--{name.replace('_', '-')}", str(value)) for name, value in _SETTINGS.items()))
        server = Process.everlong(plan.folder / "data", "--model", model, *settings)
        try:
            progress("starting the server")
            server.start()
            asyncio.run(_soak(plan, server, samples, file, progress))
        finally:
            server.kill()
    draw(samples, plan.folder / "soak.svg")
    return report(samples, plan)


def load(file: Path) -> list[Sample]:
    """Return the samples of a file. Removes a last line that was cut off."""
    if not file.exists():
        return []
    whole, _, _ = file.read_bytes().rpartition(b"\n")
    with file.open("r+b") as stored:
        stored.truncate(len(whole) + bool(whole))
    return [Sample(**json.loads(line)) for line in whole.splitlines()]


def _tiny(folder: Path) -> Path:
    return folder / "model" if (folder / "model" / "backbone").exists() else save_tiny(folder / "model")


async def _soak(
    plan: SoakPlan, server: Process, samples: list[Sample], file: Path, progress: Callable[[str], None]
) -> None:
    """Put load on the server and sample it until the plan's time is over."""
    begun, before = time.monotonic(), samples[-1].seconds if samples else 0.0
    number = samples[-1].run + 1 if samples else 0
    counts, rng = Counts(), random.Random(number)  # noqa: S311 - not for secrets
    url = str(server.http.base_url)
    loads = [client(url, each, counts, plan.rest_seconds) for each in range(plan.clients)]
    db = redis.Redis(unix_socket_path=str(EmbeddedRedis(plan.folder / "data").socket), socket_timeout=1)
    async with db, running(*loads, _inject(plan, server, rng, counts)):
        with file.open("a") as output:
            seconds = before
            while seconds < plan.minutes * 60:
                await asyncio.sleep(plan.every_seconds)
                seconds = before + time.monotonic() - begun
                try:
                    used = int((await db.info("memory"))["used_memory"])
                except redis.RedisError:  # during a fault
                    continue
                sample = _sample(server, counts, number, seconds, used)
                samples.append(sample)
                output.write(json.dumps(asdict(sample)) + "\n")
                output.flush()
                if len(samples) % 60 == 0:
                    progress(
                        f"{sample.seconds / 60:.0f} of {plan.minutes:g} minutes: {sample.answers} answers, {sample.faults} faults, "
                        f"{sample.resident / 1e6:.0f} MB, {sample.files} files, Redis {sample.redis / 1e6:.1f} MB"
                    )


def _sample(server: Process, counts: Counts, number: int, seconds: float, used: int) -> Sample:
    """Measure the server once. `used`: bytes that Redis uses."""
    process = psutil.Process(server.pid)
    return Sample(
        number, seconds, process.memory_info().rss, process.num_fds(), process.num_threads(), used, counts.answers, counts.again,
        counts.faults, counts.take_latencies(),
    )  # fmt: skip


async def _inject(plan: SoakPlan, server: Process, rng: random.Random, counts: Counts) -> None:
    """Inject faults until it is cancelled: in turns, Redis is killed, Redis stalls, and clients send half a request."""
    for fault in itertools.cycle((_kill_redis, _stall_redis, _half_requests)):
        await asyncio.sleep(rng.expovariate(1 / plan.fault_seconds))
        try:
            await fault(server)
        except (psutil.Error, OSError) as error:
            raise RuntimeError(f"a fault could not be injected: {error!r}") from error
        counts.faults += 1


def _redis_of(server: Process) -> list[psutil.Process]:
    """Return the server's embedded Redis; [] while it is being restarted."""
    found = []
    for each in psutil.Process(server.pid).children():
        with suppress(psutil.NoSuchProcess):
            found += [each] if each.name() in ("redis-server", "valkey-server") else []
    return found


async def _kill_redis(server: Process) -> None:
    for each in _redis_of(server):
        with suppress(psutil.NoSuchProcess):
            each.kill()


async def _stall_redis(server: Process) -> None:
    stalled = _redis_of(server)
    for each in stalled:
        with suppress(psutil.NoSuchProcess):
            each.suspend()
    try:
        await asyncio.sleep(_STALL_SECONDS)
    finally:
        for each in stalled:
            with suppress(psutil.NoSuchProcess):  # the server replaces a Redis that does not answer
                each.resume()


async def _half_requests(server: Process) -> None:
    """Open connections, send half a request on each, and close them after some seconds."""
    url = server.http.base_url
    opened = [await asyncio.open_connection(url.host, url.port) for _ in range(20)]
    for number, (_, writer) in enumerate(opened):
        writer.write(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n" + b"\r\n{" * (number % 2))
    await asyncio.sleep(_STALL_SECONDS)
    for _, writer in opened:
        writer.close()


def slopes(samples: list[Sample], warm_up: float, answers: int = 0) -> list[Slope]:
    """Fit lines to the samples after the first `warm_up` minutes and `answers` of each run: one slope for all runs, and a level for each.

    The latency is the 99th percentile of five minutes. Raises `ValueError` if there are fewer than three points.
    """
    starts = {run: min(s.seconds for s in samples if s.run == run) for run in {s.run for s in samples}}
    kept = [
        sample
        for sample in samples
        if sample.seconds >= starts[sample.run] + warm_up * 60 and sample.answers >= answers
    ]
    figures = {
        name: [(sample.run, sample.seconds / 3600, float(getattr(sample, name))) for sample in kept]
        for name in ("resident", "files", "redis")
    }
    figures["p99"] = [(run, hour, value) for (run, hour), value in percentiles(kept, 99).items()]
    return [_fit(name, points) for name, points in figures.items() if len(points) > 2 + len(starts)]


def percentiles(samples: list[Sample], percent: float) -> dict[tuple[int, float], float]:
    """Return a percentile of the latencies for each run and five minutes, by run and middle of the time in hours."""
    bins: dict[tuple[int, float], list[float]] = {}
    for sample in samples:
        middle = (int(sample.seconds / 3600 * _BINS_PER_HOUR) + 0.5) / _BINS_PER_HOUR
        bins.setdefault((sample.run, middle), []).extend(sample.latencies)
    return {key: float(np.percentile(found, percent)) for key, found in bins.items() if found}


def _fit(name: str, points: list[tuple[int, float, float]]) -> Slope:
    """Fit one slope and a level for each run by least squares."""
    runs = np.array([run for run, _, _ in points])
    hours, values = (np.array([point[column] for point in points]) for column in (1, 2))
    inner_hours, inner_values = hours.copy(), values.copy()
    for run in np.unique(runs):
        inner_hours[runs == run] -= hours[runs == run].mean()
        inner_values[runs == run] -= values[runs == run].mean()
    spread = float((inner_hours**2).sum())
    slope = float((inner_hours * inner_values).sum()) / spread
    residuals = inner_values - slope * inner_hours
    freedom = len(points) - 1 - len(np.unique(runs))
    error = float(np.sqrt((residuals**2).sum() / freedom / spread))
    mean = float(values.mean())
    return Slope(name, mean, 100 * slope / mean, 100 * 1.96 * error / mean)


def report(samples: list[Sample], plan: SoakPlan) -> Report:
    """Return the slopes and whether they meet the target."""
    names = {
        "resident": "memory of the server, MB",
        "files": "open files",
        "redis": "memory of Redis, MB",
        "p99": "p99, ms",
    }
    scales = {"resident": 1e6, "files": 1.0, "redis": 1e6, "p99": 1e-3}
    found = slopes(samples, plan.warm_up, plan.warm_up_answers)
    if not found:
        raise ValueError(
            f"{len(samples)} samples are too few for a slope: let it run for longer than {plan.warm_up:g} minutes and {plan.warm_up_answers:,} answers"
        )
    rows = [
        {
            "figure": names[slope.name], "mean": slope.mean / scales[slope.name], "percent_an_hour": slope.percent,
            "95 % ±": slope.interval,
        }
        for slope in found
    ]  # fmt: skip
    targets = [
        Target(f"{names[slope.name].split(',')[0]}: slope, % an hour", slope.percent, _SLOPE_LIMIT, at_most=True)
        for slope in found
    ]
    last = {sample.run: sample for sample in samples}.values()
    notes = [
        f"{samples[-1].seconds / 60:.0f} minutes of load by {plan.clients} clients, {len(last)} server processes; "
        f"{sum(s.answers for s in last):,} answers, {sum(s.faults for s in last)} faults, {sum(s.again for s in last)} requests sent again",
        f"slopes leave out the first {plan.warm_up:g} minutes and {plan.warm_up_answers:,} answers of each process; samples are not independent, so the intervals are too "
        "narrow",
        "p99: of five minutes each, with retries and faults; the load generator runs on the same machine",
    ]
    return Report("soak", rows, targets, notes)


def draw(samples: list[Sample], path: Path) -> None:
    """Plot the figures over time, as SVG."""
    curves.draw(
        {
            "memory of the\nserver, MB": [(s.seconds / 60, s.resident / 1e6) for s in samples],
            "open files": [(s.seconds / 60, float(s.files)) for s in samples],
            "memory of\nRedis, MB": [(s.seconds / 60, s.redis / 1e6) for s in samples],
            "p99 of five\nminutes, s": [(hour * 60, value) for (_, hour), value in percentiles(samples, 99).items()],
        },
        path,
    )
