"""`everlong bench formats`: CPU time and memory of converting files to text, compared with kreuzberg's own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everlong_lab.harness.report import Report
from everlong_server.engine.documents.formats import catalogue, conversion

_KREUZBERG = """
import sys, kreuzberg
config = kreuzberg.ExtractionConfig(use_cache=False, concurrency=kreuzberg.ConcurrencyConfig(max_threads=1))
print(len(kreuzberg.extract_file_sync(sys.argv[1], config=config).content.encode()))
"""
_WAIT = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print()
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command from a small process: the largest resident size of a process includes that of its parent, before `exec`."""


def run(files: Sequence[Path], *, progress: Callable[[str], None]) -> Report:
    """Convert each file once with the server's process and once with the library. Raises `ServerError` for a file that the
    server refuses."""
    rows = []
    for file in files:
        rows.append(_row(file))
        progress(f"{file.name}: {rows[-1]['cpu_s']:.2f} CPU s")
    notes = [
        "each a whole process with its imports, once; memory is the largest resident size",
        "kreuzberg: its defaults, without cache, one thread; - where it has no text",
    ]
    return Report("formats", rows, [], notes)


def _row(file: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        with file.open("rb") as stream:
            kind = catalogue.detect(stream.read(catalogue.HEAD), file.name) or "text"
        limits = conversion.Limits.of(file.stat().st_size, 1 << 30)
        code, seconds, memory, _ = _measured(conversion.command(file, kind, text, limits))
        if code:
            conversion.convert(file, kind, text, 1 << 30)  # raises the reason
        size = text.stat().st_size
    other_code, other_seconds, other_memory, out = _measured([sys.executable, "-c", _KREUZBERG, str(file)])
    other_size = int(out) if not other_code and out.strip().isdigit() else 0
    megabytes = file.stat().st_size / 1e6
    return {
        "file": file.name, "mb": megabytes, "text_mb": size / 1e6, "cpu_s": seconds, "cpu_s_per_text_mb": seconds / (size / 1e6),
        "memory_mb": memory, "kreuzberg_cpu_s": other_seconds if other_size else "-",
        "kreuzberg_memory_mb": other_memory if other_size else "-", "kreuzberg_text_mb": other_size / 1e6 if other_size else "-",
    }  # fmt: skip


def _measured(command: Sequence[str]) -> tuple[int, float, float, str]:
    """Run a command. Return its exit code, CPU seconds, largest resident size in MB, and what it printed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [sys.executable, "-S", "-c", _WAIT, *command], stdout=out, stderr=errors, env=environment, check=False
        )
        out.seek(0)
        *printed, last = out.read().splitlines()
        seconds, memory = map(float, last.split())
        return ran.returncode, seconds, memory / 1000, "\n".join(printed)
