"""`everlong bench soak`: slopes of known lines, a short run that is continued, and its picture."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from everlong_lab.benchmarks.soak import measure
from everlong_lab.benchmarks.soak.measure import Sample, SoakPlan, load, percentiles, run, slopes


def line(run: int, start: float, hours: float, **changes: float) -> list[Sample]:
    """Samples every 10 seconds of a run that begins `start` hours in; `changes`: of each figure in an hour."""
    first = Sample(run, 0, 1_000_000, 100, 5, 2_000_000, 0, 0, 0)
    samples = []
    for number in range(int(hours * 360)):
        hour = number / 360
        grown = {name: int(getattr(first, name) + change * hour) for name, change in changes.items()}
        samples.append(replace(first, seconds=(start + hour) * 3600, latencies=[1.0 + hour] * 5, **grown))
    return samples


def test_slopes_of_known_lines() -> None:
    found = {slope.name: slope for slope in slopes(line(0, 0, 2, resident=20_000), warm_up=0)}
    assert found["resident"].percent == pytest.approx(2, rel=0.05)  # of the mean, 1,020,000
    assert found["resident"].interval < 0.01
    assert found["files"].percent == found["redis"].percent == 0
    assert found["p99"].percent == pytest.approx(50, rel=0.05)  # 1 second an hour, of 2 seconds


def test_a_new_process_is_a_new_level_and_no_slope() -> None:
    samples = line(0, 0, 1) + [replace(s, run=1, resident=3 * s.resident) for s in line(0, 1, 1)]
    assert next(iter(slopes(samples, warm_up=0))).percent == pytest.approx(0, abs=1e-9)


def test_the_warm_up_is_left_out() -> None:
    samples = [replace(s, resident=s.resident * (2 if s.seconds < 600 else 1)) for s in line(0, 0, 1)]
    assert abs(slopes(samples, warm_up=0)[0].percent) > 1
    assert slopes(samples, warm_up=10)[0].percent == 0


def test_the_first_answers_are_left_out() -> None:
    samples = [replace(s, answers=int(s.seconds)) for s in line(0, 0, 1)]
    samples = [replace(s, resident=s.resident * (2 if s.answers < 600 else 1)) for s in samples]
    assert abs(slopes(samples, warm_up=0)[0].percent) > 1
    assert slopes(samples, warm_up=0, answers=600)[0].percent == 0
    assert slopes(samples, warm_up=0, answers=10**6) == []


def test_percentiles_are_of_five_minutes() -> None:
    samples = [replace(s, latencies=[s.seconds]) for s in line(0, 0, 0.25)]
    assert list(percentiles(samples, 100)) == [(0, 0.5 / 12), (0, 1.5 / 12), (0, 2.5 / 12)]
    assert list(percentiles(samples, 100).values()) == [290, 590, 890]


@pytest.mark.parametrize("fault", [measure._kill_redis, measure._stall_redis])
async def test_a_redis_that_ends_during_a_fault_does_not_end_the_soak(
    fault: Callable[[Any], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server replaces a Redis that does not answer, also while the fault lasts."""
    shutil.copy(shutil.which("sleep") or "", tmp_path / "redis-server")
    child = psutil.Popen([tmp_path / "redis-server", "60"])
    find = measure._redis_of

    def found(server: Any) -> list[psutil.Process]:
        own = [each for each in find(server) if each.pid == child.pid]  # other tests may have a Redis, too
        assert len(own) == 1
        child.kill()
        child.wait()
        return own

    monkeypatch.setattr(measure, "_redis_of", found)
    monkeypatch.setattr(measure, "_STALL_SECONDS", 0.0)
    await fault(SimpleNamespace(pid=os.getpid()))
    assert child.pid not in [each.pid for each in find(SimpleNamespace(pid=os.getpid()))]  # type: ignore[arg-type]


@pytest.mark.long
def test_a_soak_that_is_told_to_stop_leaves_no_process(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "everlong_client",
        "bench",
        "soak",
        str(tmp_path),
        "--clients",
        "1",
        "--every",
        "0.2",
    ]
    soak = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not load(tmp_path / "samples.jsonl"):
        assert soak.poll() is None
        time.sleep(0.1)
    started = soak.children(recursive=True)
    assert started
    soak.terminate()
    assert soak.wait(60) == 128 + signal.SIGTERM
    assert psutil.wait_procs(started, timeout=60)[1] == []


@pytest.mark.long
def test_a_soak_is_continued(tmp_path: Path) -> None:
    plan = SoakPlan(
        tmp_path, minutes=0.2, clients=2, every_seconds=0.5, fault_seconds=1.5, warm_up=0, warm_up_answers=0
    )
    run(plan, print)
    first = load(tmp_path / "samples.jsonl")
    assert first
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"run": 0, "sec')  # as a kill leaves it
    report = run(replace(plan, minutes=0.4), print)
    samples = load(tmp_path / "samples.jsonl")
    assert samples[: len(first)] == first
    assert {sample.run for sample in samples} == {0, 1}
    assert samples[-1].seconds >= 0.4 * 60 - 1
    assert {row["figure"] for row in report.rows} >= {"memory of the server, MB", "open files", "memory of Redis, MB"}
    assert "<svg" in (tmp_path / "soak.svg").read_text()
