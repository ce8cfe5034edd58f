"""Chooses the model that a server serves if the settings name none."""

from __future__ import annotations

import functools
from collections.abc import Collection

from pydantic import BaseModel, ConfigDict

from everlong_models.catalogue.entry import read_catalogue
from everlong_models.catalogue.machine import Machine

HOW_TO_CHOOSE = (
    "make serve MODEL=NAME, everlong serve --model NAME, or EVERLONG_MODEL=NAME; names: everlong models list"
)


class Rule(BaseModel):
    """A model, and what a machine must have for it to be the default: cores or a GPU with enough memory, memory, free disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    cores: int
    gpu_gb: float
    memory_gb: float
    disk_gb: float


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return the catalogue's rules, the best model first. Every machine meets the last one."""
    return tuple(map(Rule.model_validate, read_catalogue()["default"]))


def defaults(machine: Machine, here: Collection[str] = ()) -> list[str]:
    """Return the models whose requirements `machine` meets, best first: the first is the default, the others are fallbacks.

    `here`: the models that need no download, and so no free disk.
    """
    return [rule.model for rule in rules() if _meets(machine, rule, rule.model in here)]


def _meets(machine: Machine, rule: Rule, here: bool) -> bool:
    computes = machine.cores >= rule.cores or 0 < rule.gpu_gb * 1e9 <= machine.gpu_memory
    return computes and machine.memory >= rule.memory_gb * 1e9 and (here or machine.disk >= rule.disk_gb * 1e9)


def described(machine: Machine) -> str:
    """Return what the default was chosen by, in words."""
    gpu = f"a GPU with {machine.gpu_memory / 1e9:.0f} GB, " if machine.gpu_memory else ""
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    return f"{gpu}{cores}, {machine.memory / 1e9:.1f} GB of memory and {machine.disk / 1e9:.1f} GB of free disk"
