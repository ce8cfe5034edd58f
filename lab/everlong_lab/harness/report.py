"""`Report`: the results of a benchmark, as a table and as a JSON document."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and its target: `value` must be at most `target` if `at_most`, else at least."""

    name: str
    value: float
    target: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether the figure meets its target."""
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(slots=True)
class Report:
    """`rows`: figures by column. `notes`: what a reader must know to interpret them. `kind`: the command that measured."""

    name: str
    rows: list[dict[str, Any]]
    targets: list[Target]
    notes: list[str] = field(default_factory=list)
    kind: str = "bench"

    def document(self, command: str) -> dict[str, Any]:
        """Return the document for `--json`."""
        return {
            "benchmark": self.name,
            "command": command,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "rows": self.rows,
            "targets": [
                {
                    "name": target.name,
                    "value": target.value,
                    "target": target.target,
                    "comparison": "<=" if target.at_most else ">=",
                    "met": target.met,
                }
                for target in self.targets
            ],
            "notes": self.notes,
        }

    def show(self, console: Console) -> None:
        """Print the tables and notes."""
        figures = Table(title=f"everlong {self.kind} {self.name}")
        for column in self.rows[0]:
            figures.add_column(column.replace("_", " "), justify="right")
        for row in self.rows:
            figures.add_row(*(shown(value) for value in row.values()))
        console.print(figures)
        targets = Table("target", "is", "should be", "")
        for target in self.targets:
            sign = "≤" if target.at_most else "≥"
            verdict = "[green]met[/]" if target.met else "[bold red]missed[/]"
            targets.add_row(target.name, shown(target.value), f"{sign} {shown(target.target)}", verdict)
        console.print(targets)
        for note in self.notes:
            console.print(f"[dim]{note}[/]")


def machine() -> dict[str, Any]:
    """Describe the machine and software of a measurement."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def shown(value: object) -> str:
    """Format a figure for people."""
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
