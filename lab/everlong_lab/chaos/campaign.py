"""A campaign: inject faults at random moments of a load, one after the other, each until the load has recovered."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everlong_lab.chaos import clock, resources
from everlong_lab.chaos.faults import FAULTS, FaultContext
from everlong_lab.chaos.load import Load
from everlong_lab.chaos.processes import Cluster, ClusterError, start_cluster, until
from everlong_lab.chaos.resources import ResourceSample, sample_resources
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.tasks import running
from everlong_lab.harness.tiny import save_tiny
from everlong_server.store.texts.blobs import Blobs

_KILLS = ("replica killed while reading", "replica killed while generating")
_REDIS_CLOCK = "clock of Redis jumps"
_KILL_SHARE = 0.7
_CALM_SECONDS = 120.0
_SEGMENT = 64  # short, so that segments end while answers are generated


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """`points`: number of replicas to kill while they are busy; every fault is also injected at least once. `minutes`: time
    limit. `faults`: None for all. `away`: longest outage in seconds. `burst`: maximum number of replicas killed in a row."""

    points: int = 300
    minutes: float = 60.0
    seed: int = 0
    replicas: int = 3
    workers: int = 4
    away: float = 6.0
    burst: int = 2
    model: Path | None = None
    faults: Sequence[str] | None = None
    program: str | None = None
    """The Redis server; None for the one that the server would start."""
    keep_alive: bool = True
    """Whether callers reuse connections."""


@dataclass(slots=True)
class CampaignResult:
    """Results of a campaign. `recovery`: seconds by fault. `leaked`: keys and files left after everything was deleted."""

    recovery: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    killed: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    rehearsed: dict[str, int] = field(default_factory=dict)
    """Counts of `done` before the first fault."""
    done: dict[str, int] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)
    samples: list[ResourceSample] = field(default_factory=list)
    seconds: float = 0.0
    impossible: dict[str, str] = field(default_factory=dict)
    """Faults that could not be injected on this machine, and why."""

    @property
    def points(self) -> int:
        """Number of replicas that were killed while they were busy."""
        return sum(count for doing, count in self.killed.items() if doing != "nothing")


def run(plan: CampaignPlan, progress: Callable[[str], None], plot: Path | None = None) -> Report:
    """Run a campaign and return its report. `plot`: where to plot memory and open files over time."""
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        model = plan.model or save_tiny(Path(folder), _SEGMENT)
        outcome = asyncio.run(_cancelled_by_sigterm(campaign(plan, model, progress)))
    if plot is not None:
        resources.draw(outcome.samples, plot)
    return report(outcome, plan)


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, CampaignResult]) -> CampaignResult:
    """Cancel `work` at SIGTERM, so that all processes end and file systems are unmounted."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


async def campaign(plan: CampaignPlan, model: Path, progress: Callable[[str], None]) -> CampaignResult:
    """Inject faults until the plan's points are reached or its time is over."""
    rng = random.Random(plan.seed)  # noqa: S311 - not for secrets
    outcome = CampaignResult()
    wanted = list(plan.faults or FAULTS)
    async with start_cluster(model, plan.replicas, program=plan.program, redis_clock=_REDIS_CLOCK in wanted) as cluster:
        outcome.impossible = {name: why for name, why in _impossible(cluster).items() if name in wanted}
        load = Load(cluster.replicas, plan.seed, plan.workers, scripts=6, keep_alive=plan.keep_alive)
        context = FaultContext(cluster, load, rng, plan.away, plan.burst)
        names = [name for name in wanted if name not in outcome.impossible]
        before = await _keys(cluster)
        progress("running every script once without faults")
        await load.rehearse()
        outcome.rehearsed = dict(load.ledger.done)
        load.start()
        start = time.monotonic()
        async with running(sample_resources(cluster, outcome.samples)):
            queue: list[str] = []
            reported = 0
            while time.monotonic() - start < plan.minutes * 60:
                untried = [name for name in names if name not in outcome.recovery]
                if outcome.points >= plan.points and not untried:
                    break
                name = _next(names if outcome.points < plan.points else untried, queue, rng)
                load.fault = name
                await asyncio.sleep(rng.uniform(0, 0.5))
                moment = await FAULTS[name](context)
                outcome.killed = dict(context.killed)
                await load.settled()
                outcome.recovery[name].append(time.monotonic() - moment)
                load.fault = f"after: {name}"
                for entry in load.ledger.lost[reported:]:
                    progress(f"lost: {entry}")
                reported = len(load.ledger.lost)
                tried = sum(map(len, outcome.recovery.values()))
                progress(
                    f"{tried} faults, {outcome.points} of {plan.points} points; recovered {outcome.recovery[name][-1]:.1f} s after {name}; "
                    f"{len(load.ledger.lost)} lost, {len(load.ledger.stuck)} stuck"
                )
            await load.finish()
        outcome.seconds = time.monotonic() - start
        await load.caller.close()
        outcome.leaked = await _leaked(cluster, before)
    ledger = load.ledger
    outcome.lost, outcome.stuck = ledger.lost, ledger.stuck
    outcome.done, outcome.again = dict(ledger.done), dict(ledger.again)
    return outcome


def _impossible(cluster: Cluster) -> dict[str, str]:
    """Return the faults that cannot be injected on this machine, and why."""
    found = {}
    if not cluster.bounded:
        found["disk full"] = "this user cannot mount a small disk"
    if not clock.settable():
        found["clock of a replica jumps"] = "libfaketime is not installed (Debian: faketime)"
    if not cluster.redis.clock_settable:
        found[_REDIS_CLOCK] = (
            "libfaketime is not installed or does not work with this Redis (it does with Valkey's wheel)"
        )
    return found


def _next(names: Sequence[str], queue: list[str], rng: random.Random) -> str:
    """Choose the next fault: most often a kill, otherwise the next one of a shuffled `queue`, so that all are injected."""
    kills = [name for name in names if name in _KILLS]
    others = [name for name in names if name not in _KILLS]
    if kills and (not others or rng.random() < _KILL_SHARE):
        return rng.choice(kills)
    if not set(queue) & set(others):
        queue[:] = rng.sample(others, len(others))
    name = next(name for name in queue if name in others)
    queue.remove(name)
    return name


async def _keys(cluster: Cluster) -> dict[str, Any]:
    """Return every Redis key without a TTL, with its value or length if it is a counter or a queue."""
    client, found = cluster.redis.client, {}
    async for key in client.scan_iter("*"):
        kind, ttl = await client.type(key), await client.pttl(key)
        if ttl == -1:
            name = key.decode()
            size = await client.xlen(key) if kind == b"stream" else await client.get(key) if "stored" in name else 0
            found[name] = int(size or 0)
    return found


async def _leaked(cluster: Cluster, before: dict[str, Any]) -> list[str]:
    """Return keys and files left after everything was deleted. Waits, because running readings notice a deletion late."""
    found: list[str] = []

    async def clean() -> bool:
        found.clear()
        for key, size in (await _keys(cluster)).items():
            count = key.startswith("{everlong}:stored:")
            if (key not in before and not count and key != "{everlong}:fence") or size:
                found.append(f"key {key} ({size})")
        found.extend(f"file {path.name}" for path in cluster.spool.iterdir() if path.name != Blobs.STORE_ID_FILE)
        return not found

    with contextlib.suppress(ClusterError):
        await until(clean, _CALM_SECONDS, "a clean end")
    return found


def report(outcome: CampaignResult, plan: CampaignPlan) -> Report:
    """Return the report of a campaign."""
    rows = []
    for name in FAULTS:
        seconds = sorted(outcome.recovery.get(name, []))
        if not seconds:
            continue
        lost = sum(entry.split(": ")[:2].count(name) > 0 for entry in outcome.lost)
        stuck = sum(entry.split(": ")[:2].count(name) > 0 for entry in outcome.stuck)
        rows.append(
            {
                "fault": name, "tried": len(seconds), "lost": lost, "stuck": stuck,
                "recovery_p50_s": statistics.median(seconds), "recovery_p99_s": seconds[int(0.99 * len(seconds))],
            }
        )  # fmt: skip
    targets = [
        Target("points at which a replica was killed in the middle of something", outcome.points, plan.points, at_most=False),
        Target("acknowledged documents, messages or tokens lost or changed", len(outcome.lost), 0, at_most=True),
        Target("steps that did not come to their end", len(outcome.stuck), 0, at_most=True),
        Target("keys and files left behind", len(outcome.leaked), 0, at_most=True),
    ]  # fmt: skip
    doing = ", ".join(f"{count} while {what}" for what, count in sorted(outcome.killed.items()))
    notes = [
        f"{plan.replicas} replicas, {plan.workers} callers, seed {plan.seed}, {outcome.seconds / 60:.1f} minutes",
        f"kill -9 of replicas: {doing or 'none'}",
        "acknowledged and verified: " + ", ".join(f"{count} {what}" for what, count in sorted(outcome.done.items())),
        "retried: " + (", ".join(f"{count} × {why}" for why, count in sorted(outcome.again.items())) or "nothing"),
        "recovery: from the kill, or the end of the outage, until every step under way was done and verified",
        *(f"not tried: {name}: {why}" for name, why in outcome.impossible.items()),
        *resources.summary(outcome.samples),
        *outcome.lost, *outcome.stuck, *outcome.leaked,
    ]  # fmt: skip
    return Report("chaos", rows, targets, notes)
