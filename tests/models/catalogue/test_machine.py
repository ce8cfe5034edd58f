"""What a model may use: of the machine, and within control groups of both versions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from everlong_models.catalogue import machine
from everlong_models.catalogue.machine import available_memory, memory_needed, require_memory, this_machine
from everlong_models.errors import BackboneError

GB = 10**9


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tree of control groups, on a machine with eight cores and 16 GB, 12 of them available."""
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GB, available=12 * GB))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_without_limits(groups: Path, tmp_path: Path) -> None:
    write(groups, memory__max="max", memory__current=GB, memory__stat="anon 1", cpu__max="max 100000")
    found = this_machine(tmp_path / "not" / "yet", device="cpu")
    assert (found.cores, found.memory, found.gpu_memory) == (8, 16 * GB, 0)
    assert found.disk > 0
    assert available_memory() == 12 * GB
    assert this_machine(tmp_path, device="cpu", threads=3).cores == 3


def test_the_tightest_limit_of_version_2(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/pod/server\n")
    stat = f"anon {GB}\ninactive_file {2 * GB}\nactive_file {GB}"
    write(groups / "pod", memory__max=4 * GB, memory__current=4 * GB, memory__stat=stat, cpu__max="250000 100000")
    write(groups / "pod" / "server", memory__max=8 * GB, memory__current=GB, memory__stat=stat, cpu__max="max 100000")
    found = this_machine(tmp_path, device="cpu")
    assert (found.cores, found.memory) == (2, 4 * GB)
    assert available_memory() == 3 * GB  # page cache can be taken back


def test_the_limits_of_version_1(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("9:memory:/docker/1\n8:cpu,cpuacct:/docker/1\n")
    limits = {"memory__limit_in_bytes": 2 * GB, "memory__usage_in_bytes": GB, "memory__stat": "cache 1"}
    write(groups / "memory", **limits)
    write(groups / "cpu,cpuacct", cpu__cfs_quota_us=50_000, cpu__cfs_period_us=100_000)
    found = this_machine(tmp_path, device="cpu")
    assert (found.cores, found.memory) == (1, 2 * GB)
    assert available_memory() == GB


def test_a_model_that_does_not_fit_is_refused_with_both_sizes(groups: Path, tmp_path: Path) -> None:
    require_memory("a model", 2 * GB)
    write(groups, memory__max=3 * GB, memory__current=GB, memory__stat="anon 1")
    with pytest.raises(BackboneError, match=r"a model .*needs about 3\.3 GB, and 2\.0 GB are available"):
        require_memory("a model", 2 * GB)


def test_the_estimate_for_the_models_of_the_catalogue() -> None:
    """Resident memory after loading and a prompt of 1,256 tokens, measured with one copy of the weights: 2.12 GB and 1.32 GB."""
    assert memory_needed(1_117_320_768) == pytest.approx(2.12 * GB, rel=0.05)
    assert memory_needed(491_400_064) == pytest.approx(1.32 * GB, rel=0.05)
