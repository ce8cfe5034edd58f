"""`everlong bench sessions`: how many sessions, each with a long document, a gigabyte of Redis holds."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import redis

from everlong_lab.corpora.text import packaged
from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report
from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone, load_tokenizer
from everlong_server.settings import GiB, load_settings
from everlong_server.store.redis.embedded import EmbeddedRedis

_BROUGHT_BACK = 5
_LONG_SECONDS = 20


def run(*, count: int, tokens: int, quick: bool, progress: Callable[[str], None]) -> Report:
    """Create `count` sessions (quick: 5), each with its own document of `tokens` tokens, and measure the growth of Redis.

    Uses the default model with two memories. RMT gets a hundredth of the sessions, at least two, because its prefill is
    slow."""
    tokenizer = load_tokenizer(find_backbone(DEFAULT_BACKBONE, models_dir=load_settings().models_dir.expanduser()))
    ids = tokenizer.encode(packaged())
    ids = (ids * -(-2 * tokens // len(ids)))[: 2 * tokens]
    rows = []
    for memory in ("window", "rmt"):
        made = 5 if quick else count if memory == "window" else max(2, count // 100)
        # A different stretch of the text for each session, so that no two documents are equal.
        texts = (tokenizer.decode(ids[tokens * k // made :][:tokens]) for k in range(made))
        with tempfile.TemporaryDirectory(prefix="evl") as folder:
            embedded = EmbeddedRedis(Path(folder))
            embedded.start()
            server = Process.everlong(Path(folder) / "data", "--memory", memory, "--redis-url", embedded.url)
            try:
                server.start()
                progress(f"{memory}: {made} sessions with {tokens:,} tokens each")
                rows.append({"memory": memory, "tokens": tokens} | _measure(server, embedded.url, texts, progress))
            finally:
                server.kill()
                embedded.stop()
    return Report("sessions", rows, [], _NOTES)


_NOTES = [
    "bytes each: growth of Redis's used_memory ÷ number of sessions; a document's text and passages are files",
    "back: median time from a question to its first token, of sessions not used since the server started",
]


def _measure(server: Process, url: str, texts: Iterable[str], progress: Callable[[str], None]) -> dict[str, Any]:
    database = redis.Redis.from_url(url)
    before = database.info("memory")["used_memory"]
    sessions: list[str] = []
    for text in texts:
        document = server.read(text, partial(_say, progress, len(sessions) + 1, time.monotonic()))
        made = server.http.post("/v1/sessions", json={"documents": [document["id"]]})
        sessions.append(made.raise_for_status().json()["id"])
        if len(sessions) % 20 == 0:
            progress(f"{len(sessions)} sessions")
    each = (database.info("memory")["used_memory"] - before) / len(sessions)
    progress("restarting the server")
    server.kill()
    server.start()
    back = []
    for session in sessions[:_BROUGHT_BACK]:
        began = time.perf_counter()
        body = {"content": "Who is the Count?", "stream": True, "max_tokens": 1, "ignore_eos": True}
        with server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
            next(line for line in response.iter_lines() if line.startswith("event: response.output_text.delta"))
            back.append(time.perf_counter() - began)
    return {
        "sessions": len(sessions),
        "bytes_each": round(each),
        "sessions_per_gib": int(GiB / each),
        "back_s": statistics.median(back),
    }


def _say(progress: Callable[[str], None], number: int, began: float, share: float) -> None:
    """Report progress of documents that take long."""
    if time.monotonic() - began > _LONG_SECONDS:
        progress(f"session {number}: {share:.0%} read")
