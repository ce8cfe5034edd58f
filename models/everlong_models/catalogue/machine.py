"""`Machine`: the processors, memory and disk that a model may use here, within the limits of a container."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from everlong_models.errors import BackboneError

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is for a model. Sizes are in bytes. `gpu_memory`: 0 without a GPU. `disk`: free where models are stored."""

    cores: int
    memory: int
    disk: int
    gpu_memory: int = 0


OVERHEAD = 700_000_000
"""Estimate of the bytes that a process takes besides the weights on a CPU: Python, PyTorch, compiled kernels, and activations."""


def this_machine(models_dir: Path, *, device: str = "auto", threads: int = 0) -> Machine:
    """Measure this machine. `device`, `threads`: the server's settings; a GPU that they exclude is not counted."""
    wants_gpu = device == "auto" or device.startswith("cuda")
    gpu = wants_gpu and torch.cuda.is_available()
    return Machine(
        cores=threads or _cores(),
        memory=min([psutil.virtual_memory().total, *(limit for limit, _ in _memory_limits())]),
        disk=shutil.disk_usage(_existing(models_dir)).free,
        gpu_memory=torch.cuda.get_device_properties("cuda" if device == "auto" else device).total_memory if gpu else 0,
    )


def available_memory() -> int:
    """Return the bytes of memory that this process can still take: what is free here, and within its container's limit."""
    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _memory_limits())]))


def free_memory(device: torch.device | str) -> int:
    """Return the bytes that models can still take on `device`: of the GPU's memory, or `available_memory`."""
    device = torch.device(device)
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_memory()


def memory_needed(file_bytes: int) -> int:
    """Estimate the resident bytes of a model on a CPU that has read a prompt, from the size of its quantised GGUF file.

    The weights are held once, rearranged for the kernels: a fifth larger than the file. The rest is Python, PyTorch, compiled kernels,
    and activations. Documents and their search come on top.
    """
    return weights_needed(file_bytes) + OVERHEAD


def weights_needed(file_bytes: int) -> int:
    """Estimate the part of `memory_needed` that another model in the same process would add."""
    return int(1.3 * file_bytes)


def require_memory(name: str, file_bytes: int) -> None:
    """Raise `BackboneError` if serving `name`, a GGUF file of `file_bytes`, would take more memory than is available."""
    needed, available = memory_needed(file_bytes), available_memory()
    if needed > available:
        raise BackboneError(
            f"{name} does not fit into memory: it needs about {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are "
            "available. Free some, raise the container's limit, or serve a smaller model (`everlong models list`)"
        )


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    folder = folder.expanduser().absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _cores() -> int:
    """Return how many cores this process may use: its affinity, and its container's quota rounded down, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in _own_cgroups("cpu") if (quota := _quota(group)) is not None]
    return max(1, int(min([float(allowed), *quotas])))


def _quota(group: Path) -> float | None:
    """Return a control group's limit in cores; None if it has none."""
    try:
        if (file := group / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _memory_limits() -> list[tuple[int, int]]:
    """Return limit and use in bytes of every control group with a limit that this process is in. Page cache does not count."""
    found = []
    for group in _own_cgroups("memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                numbers = int((group / limit).read_text()), int((group / used).read_text())
                lines = (group / "memory.stat").read_text().splitlines()
                stat = {name: int(value) for name, value in (line.split() for line in lines)}
            except (OSError, ValueError):  # no such file, or "max"
                continue
            found.append((numbers[0], numbers[1] - stat.get("inactive_file", 0) - stat.get("active_file", 0)))
    return found


def _own_cgroups(controller: str) -> list[Path]:
    """Return the folders of this process's control groups and their parents. Version 2 has one tree, version 1 one per controller."""
    try:
        lines = [line.split(":", 2) for line in _OWN_CGROUPS.read_text().splitlines()]
    except OSError:  # not Linux
        return []
    folders = []
    for _, controllers, path in lines:
        if controllers == "" or controller in controllers.split(","):
            root = _CGROUPS / controllers if controllers else _CGROUPS
            own = root / path.lstrip("/")
            folders += [group for group in (own, *own.parents) if group == root or root in group.parents]
    # In a container, version 1 may give the host's path, while the container's own group is mounted at the root.
    return folders
