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
    """Convert each file once with each reader. `python`: the interpreter that has the libraries."""
    rows = []
    for file in files:
        for reader in readers:
            rows.append(_row(file, reader, python))
            progress(f"{file.name}, {reader}: {rows[-1]['cpu_s']} CPU s")
    notes = [
        "each a whole process with its imports, once; memory is the largest resident size",
        "libraries: their defaults, without network, one thread where they can be told; - where they return no text",
    ]
    return Report("formats", rows, [], notes)


def _row(file: Path, reader: str, python: str) -> dict[str, Any]:
    made, size = peers.convert(file, reader, python), file.stat().st_size / 1e6
    text = 0.0 if made.text is None else len(made.text.encode()) / 1e6
    figures = {
        "text_mb": text, "cpu_s": made.seconds, "mb_per_cpu_s": size / made.seconds if made.seconds else "-", "memory_mb": made.memory,
        "memory_mb_per_mb": made.memory / size,
    }  # fmt: skip
    return {"file": file.name, "mb": size, "reader": reader} | (figures if text else dict.fromkeys(figures, "-"))
