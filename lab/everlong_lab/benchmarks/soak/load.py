"""The load of `everlong bench soak`: clients that upload, ask, disconnect and delete, and retry the requests that a fault interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from everlong_lab.harness.retries import send_until_final

_TEXT = "The harbour master counted the boats, and the boats were {number} short. " * 60
_PATIENCE_SECONDS = 600.0
_SAMPLING = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}


@dataclass(slots=True)
class Counts:
    """What the clients have done. `again`: requests that were sent again."""

    answers: int = 0
    again: int = 0
    faults: int = 0
    _latencies: list[float] = field(default_factory=list)

    def answered(self, seconds: float) -> None:
        """Count an answer."""
        self.answers += 1
        self._latencies.append(seconds)

    def sent_again(self) -> None:
        """Count a retry."""
        self.again += 1

    def take_latencies(self) -> list[float]:
        """Return the latencies since the last call, in seconds."""
        taken, self._latencies = self._latencies, []
        return [round(seconds, 4) for seconds in taken]


async def client(url: str, number: int, counts: Counts, rest: float) -> None:
    """Repeat `_round`, with a pause of `rest` seconds after each, until it is cancelled. Raises `RuntimeError` if the server refuses a request."""
    rng = random.Random(number)  # noqa: S311 - not for secrets
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_SECONDS) as http:
        while True:
            await _round(_Client(http, counts), rng)
            await asyncio.sleep(rest)


@dataclass(frozen=True, slots=True)
class _Client:
    http: httpx.AsyncClient
    counts: Counts

    async def send(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Send a request until it succeeds, with one idempotency key. Raises `RuntimeError` if it is refused."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                answer, tries = await send_until_final(
                    self.http, method, lambda: path, self.counts.sent_again, **request
                )
        except TimeoutError:
            raise RuntimeError(f"{method} {path}: no success in {_PATIENCE_SECONDS:g} s") from None
        was_deleted = method == "DELETE" and tries > 1 and answer.status_code == httpx.codes.NOT_FOUND
        if answer.is_error and not was_deleted:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        found: dict[str, Any] = answer.json()
        return found

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
