"""The load of `everlong bench soak`: clients that upload, ask, break off and delete, and send again what a fault broke."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

_TEXT = "The harbour master counted the boats, and the boats were {number} short. " * 60
_PATIENCE_SECONDS = 600.0
_SAMPLING = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}


@dataclass(slots=True)
class Counts:
    """What the clients have done. `again`: requests that were sent again. `failure`: why a client has ended."""

    answers: int = 0
    again: int = 0
    faults: int = 0
    failure: BaseException | None = None
    _latencies: list[float] = field(default_factory=list)

    def answered(self, seconds: float) -> None:
        """Count an answer."""
        self.answers += 1
        self._latencies.append(seconds)

    def take_latencies(self) -> list[float]:
        """Return the latencies since the last call, in seconds."""
        taken, self._latencies = self._latencies, []
        return [round(seconds, 4) for seconds in taken]

    def require_running(self) -> None:
        """Raise `RuntimeError` if a client has ended."""
        if self.failure is not None:
            raise RuntimeError(f"a client ended: {self.failure!r}") from self.failure


@contextlib.asynccontextmanager
async def clients(url: str, count: int, counts: Counts) -> AsyncIterator[None]:
    """Run `count` clients within the context."""

    async def work(number: int) -> None:
        rng = random.Random(number)  # noqa: S311 - not for secrets
        try:
            async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_SECONDS) as http:
                while True:
                    await _round(_Client(http, counts), rng)
        except Exception as error:
            counts.failure = error

    tasks = [asyncio.create_task(work(number)) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Client:
    http: httpx.AsyncClient
    counts: Counts

    async def send(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Send a request until it succeeds, with one idempotency key. Raises `RuntimeError` if it is refused."""
        headers = {"Idempotency-Key": uuid.uuid4().hex, **request.pop("headers", {})}
        deadline, tries = time.monotonic() + _PATIENCE_SECONDS, 0
        while True:
            tries += 1
            with contextlib.suppress(httpx.TransportError):
                answer = await self.http.request(method, path, headers=headers, **request)
                if answer.is_success or (
                    method == "DELETE" and tries > 1 and answer.status_code == httpx.codes.NOT_FOUND
                ):
                    found: dict[str, Any] = answer.json()
                    return found
                if answer.status_code not in (409, 429, 503):
                    raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{method} {path}: no success in {_PATIENCE_SECONDS:g} s")
            self.counts.again += 1
            await asyncio.sleep(0.2)

    async def ask(self, path: str, body: dict[str, Any]) -> None:
        """Send a question and time its answer."""
        begun = time.perf_counter()
        await self.send("POST", path, json=body | _SAMPLING)
        self.counts.answered(time.perf_counter() - begun)

    async def break_off(self, path: str) -> None:
        """Ask, and disconnect in the middle of the answer."""
        body = {"content": "Go on.", "stream": True, **_SAMPLING, "max_tokens": 500}
        with contextlib.suppress(httpx.TransportError):
            async with self.http.stream("POST", path, json=body) as stream:
                async for _ in stream.aiter_lines():
                    return


async def _round(client: _Client, rng: random.Random) -> None:
    """Use each part of the API once, and delete what was made."""
    text = _TEXT.format(number=rng.randrange(10**6))
    plain = {"content-type": "text/plain"}
    document = (await client.send("POST", "/v1/documents", content=text.encode(), headers=plain))["id"]
    session = (await client.send("POST", "/v1/sessions", json={"documents": [document]}))["id"]
    messages = f"/v1/sessions/{session}/messages"
    for number in range(3):
        await client.ask(messages, {"content": f"How many boats were short in year {rng.randrange(100 + number)}?"})
    await client.break_off(messages)
    parts = [{"type": "file", "file": {"file_id": document}}, {"type": "text", "text": "Who counted the boats?"}]
    model = (await client.send("GET", "/v1/models"))["data"][0]["id"]
    await client.ask("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": parts}]})
    await client.send("DELETE", f"/v1/sessions/{session}")
    await client.send("DELETE", f"/v1/documents/{document}")
