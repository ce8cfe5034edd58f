"""`everlong bench NAME`: measurements that are held against their targets. Ratios, each measured in one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from everlong_server.bench import flat, read, restart
from everlong_server.bench.report import Report


class Benchmark(Protocol):
    """`quick`: smaller sizes. `progress`: told what is being measured."""

    def __call__(self, *, quick: bool, progress: Callable[[str], None]) -> Report:
        """Measures."""


BENCHMARKS: dict[str, Benchmark] = {"flat": flat.run, "read": read.run, "restart": restart.run}
"""By name."""
