"""The default model: one rule, on numbers of a machine alone."""

from __future__ import annotations

import pytest

from everlong_models.catalogue.default import defaults, described
from everlong_models.catalogue.machine import Machine

GB = 10**9
LARGE, SMALL, SHIPPED = "qwen2.5-coder-1.5b-reader", "qwen2.5-coder-0.5b-instruct", "smollm2-135m-reader"


def machine(cores: int = 4, memory: float = 16, disk: float = 100, gpu: float = 0) -> Machine:
    return Machine(cores, int(memory * GB), int(disk * GB), int(gpu * GB))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (machine(), [LARGE, SMALL, SHIPPED]),
        (machine(cores=1), [SMALL, SHIPPED]),
        (machine(cores=1, gpu=80), [LARGE, SMALL, SHIPPED]),
        (machine(cores=1, gpu=4), [SMALL, SHIPPED]),
        (machine(cores=2), [LARGE, SMALL, SHIPPED]),
        (machine(memory=4), [SMALL, SHIPPED]),
        (machine(memory=2), [SHIPPED]),
        (machine(disk=2), [SMALL, SHIPPED]),
        (machine(disk=1), [SHIPPED]),
        (machine(disk=0.1), [SHIPPED]),
        (machine(cores=1, memory=0.5, disk=0), [SHIPPED]),
    ],
)
def test_the_best_that_the_machine_can_serve(given: Machine, found: list[str]) -> None:
    assert defaults(given) == found


def test_what_is_here_needs_no_disk() -> None:
    assert defaults(machine(disk=0), here={LARGE}) == [LARGE, SHIPPED]


def test_the_machine_in_words() -> None:
    words = "a GPU with 80 GB, 1 core, 16.0 GB of memory and 100.0 GB of free disk"
    assert described(machine(cores=1, gpu=80)) == words
