"""`everlong bench start`: the time from the command to an answer's first token, once the model has been served before."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from everlong_lab.benchmarks.restart import first_token
from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.tiny import save_tiny
from everlong_models.model import SHIPPED_MODEL


def run(*, starts: int, quick: bool, progress: Callable[[str], None]) -> Report:
    """Measure `starts` starts. `quick`: use a tiny random model. Raises `RuntimeError` if a server ends instead."""
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        model = ["--model", str(save_tiny(Path(folder) / "model") if quick else SHIPPED_MODEL)]
        rows = _rows(starts, model, progress)
    median = statistics.median(row["first_token_s"] for row in rows)
    return Report(
        "start",
        rows,
        [Target("first token, s after the command (median)", median, 10.0, at_most=True)],
        ["an empty data folder each time, the embedded Redis, a session without documents; without the first start"],
    )


def _rows(starts: int, model: list[str], progress: Callable[[str], None]) -> list[dict[str, float]]:
    rows = []
    for number in range(starts + 1):  # the first start may convert weights and compile kernels
        with tempfile.TemporaryDirectory(prefix="evl") as folder:
            server = Process.everlong(Path(folder) / "data", *model)
            began = time.perf_counter()
            try:
                ready = server.start()
                session = server.http.post("/v1/sessions", json={}).json()["id"]
                created = time.perf_counter() - began
                first = created + first_token(server, session)
            finally:
                server.kill()
        progress(f"ready after {ready:.1f} s, first token after {first:.1f} s{'' if number else ' (not counted)'}")
        if number:
            rows.append({"start": number, "ready_s": ready, "first_token_s": first})
    return rows
