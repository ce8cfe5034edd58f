"""`everlong bench restart`: the time to an answer right after a restart, compared with that before it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target

_QUESTIONS = 5


def run(*, quick: bool, progress: Callable[[str], None]) -> Report:
    """Read a document, ask, kill the server with SIGKILL, restart it, and ask again: no token is read twice."""
    tokens = 10_000 if quick else 100_000
    kind = "a tiny random model" if quick else "the default model"
    progress(f"starting a server with {kind} and untrained RMT")
    # With a tiny model the times are milliseconds, most of which are the new process's warm-up.
    with Process.served(*([] if quick else ["--memory", "rmt"]), tiny=quick) as server:
        read = server.read("All in the golden afternoon. " * (tokens // (29 if quick else 6) + 1))
        progress(f"read {read['tokens']:,} tokens")
        rows, first = [], {}
        for phase in ("before", "after kill -9 and restart"):
            if phase != "before":
                server.kill()
                progress(f"restarted in {server.start():.1f} s")
            session = server.http.post("/v1/sessions", json={"documents": [read["id"]]}).json()["id"]
            very_first = first_token(server, session)  # separate, so that it does not affect the median
            first[phase] = statistics.median(first_token(server, session) for _ in range(_QUESTIONS))
            rows.append(
                {
                    "phase": phase, "document_tokens": read["tokens"], "first_token_ms": first[phase] * 1e3,
                    "very_first_ms": very_first * 1e3,
                }
            )  # fmt: skip
    ratio = first["after kill -9 and restart"] / first["before"]
    targets = [Target("first token after the restart ÷ without", ratio, 1.2, at_most=True)]
    notes = [f"first token: median of {_QUESTIONS} questions, without the very first question after a start"]
    return Report("restart", rows, targets, notes)


def first_token(server: Process, session: str) -> float:
    """Return the seconds from the request to the first piece of the answer."""
    body = {
        "content": "And then?",
        "stream": True,
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "logprobs": True,
    }
    start, first = time.perf_counter(), 0.0
    with server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        for line in response.iter_lines():
            if not first and line.startswith("event: response.output_text.delta"):
                first = time.perf_counter() - start
    return first
