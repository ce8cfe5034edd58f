"""`everlong bench crowd`: whether answers are as fast while many other clients hold connections and upload."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
from websockets.asyncio.client import connect

from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.sse_timing import StreamTimer
from everlong_models.model import SHIPPED_MODEL

_ROUNDS = 3
_PIECE = b"All in the golden afternoon full leisurely we glide. " * 300
_PAUSE = 0.25
"""Seconds between two pieces of an upload."""
_CONNECT_SECONDS = 20.0
"""Time limit for opening connections and starting uploads."""


def run(*, sockets: int, uploads: int, written: int, quick: bool, progress: Callable[[str], None]) -> Report:
    """Measure with `sockets` idle WebSockets and `uploads` endless uploads of about 60 kB a second each.

    `written`: tokens of an answer. `quick`: use a tiny random model instead of the default one."""
    progress("starting a server")
    with Process.served(*([] if quick else ["--model", SHIPPED_MODEL]), tiny=quick) as server:
        rows = asyncio.run(_measure(str(server.http.base_url), sockets, uploads, written, progress))
    alone, crowded = (
        statistics.median(row["ms_per_token"] for row in rows if bool(row["sockets"]) == c) for c in (0, 1)
    )
    targets = [Target("time per token with all of them ÷ without", crowded / alone, 1.1, at_most=True)]
    notes = [
        f"ms per token: of an answer of {written} tokens, streamed; medians of {_ROUNDS} answers each, taken in turns",
        f"{sockets} WebSockets, each of a session of its own; {uploads} uploads of {len(_PIECE):,} bytes every {_PAUSE:g} s",
        "the load generator runs on the same machine and uses part of it",
    ]
    return Report("crowd", rows, targets, notes)


async def _measure(
    url: str, sockets: int, uploads: int, written: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        await _answer(http, written)  # warm up
        for _ in range(_ROUNDS):
            progress("alone")
            rows.append({"sockets": 0, "uploads": 0, "ms_per_token": await _answer(http, written)})
            progress(f"with {sockets} WebSockets and {uploads} uploads")
            async with _crowd(http, url, sockets, uploads):
                rows.append({"sockets": sockets, "uploads": uploads, "ms_per_token": await _answer(http, written)})
    return rows


@contextlib.asynccontextmanager
async def _crowd(http: httpx.AsyncClient, url: str, sockets: int, uploads: int) -> AsyncIterator[None]:
    """Keep the WebSockets and uploads open within the context."""
    started = [asyncio.Event() for _ in range(uploads)]

    async def pieces(event: asyncio.Event) -> AsyncIterator[bytes]:
        while True:
            yield _PIECE
            event.set()
            await asyncio.sleep(_PAUSE)

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(sockets):
            session = (await http.post("/v1/sessions", json={})).raise_for_status().json()["id"]
            address = f"{url.replace('http', 'ws', 1)}/v1/sessions/{session}/stream"
            await stack.enter_async_context(connect(address, open_timeout=_CONNECT_SECONDS))
        sending = [asyncio.create_task(http.post("/v1/documents", content=pieces(event))) for event in started]
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.gather(*(event.wait() for event in started))
            yield
            if ended := [task for task in sending if task.done()]:
                raise RuntimeError(f"{len(ended)} uploads ended although they should have continued")
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)


async def _answer(http: httpx.AsyncClient, written: int) -> float:
    """Return the milliseconds per token of an answer, after its first token."""
    session = (await http.post("/v1/sessions", json={})).raise_for_status().json()["id"]
    body = {"content": "Tell me a story.", "stream": True, "max_tokens": written, "ignore_eos": True, "temperature": 0}
    streamed = StreamTimer()
    async with http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        async for line in response.aiter_lines():
            streamed.feed(line)
    return streamed.each * 1e3
