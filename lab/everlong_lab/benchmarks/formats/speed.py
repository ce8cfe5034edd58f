"""`everlong bench formats`: CPU time and memory of converting files to text, compared with libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everlong_lab.benchmarks.formats import peers
from everlong_lab.harness.report import Report


def run(
    files: Sequence[Path], *, readers: Sequence[str] = ("everlong", "kreuzberg"), python: str = sys.executable,
    progress: Callable[[str], None],
) -> Report:  # fmt: skip
    """Convert each file once with each reader. `python`: the interpreter that has the libraries.

    Each file is a row: its megabytes, and for each reader the CPU seconds, the largest resident memory, and the megabytes of the text.
    """
    rows: list[dict[str, Any]] = []
    for file in files:
        rows.append({"file": file.name, "mb": file.stat().st_size / 1e6})
        for reader in readers:
            rows[-1][reader] = _figures(peers.convert(file, reader, python))
            progress(f"{file.name}, {reader}: {rows[-1][reader]}")
    notes = [
        "CPU seconds, memory, and size of the text; each a whole process with its imports, once; memory is the largest resident size",
        "libraries: their defaults, without network, one thread where they can be told; no text: not supported, refused or failed",
    ]
    return Report("formats", rows, [], notes)


def _figures(made: peers.Conversion) -> str:
    if not made.text:
        return "no text"
    return f"{made.seconds:.2f} s, {made.memory:.0f} MB, {len(made.text.encode()) / 1e6:.2f} MB"
