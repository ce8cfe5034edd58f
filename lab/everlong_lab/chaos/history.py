"""Record what concurrent clients do to the same sessions while parts break, for a checker of linearizability (`lab/checker`).

Each line of the history is one operation: its session, what was sent and returned, and the time of the first try and of the final
answer (monotonic nanoseconds). An operation that had no final answer at the end returns null: it may have taken effect or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from everlong_lab.chaos.faults import FAULTS, FaultContext
from everlong_lab.chaos.load import Load
from everlong_lab.chaos.processes import Cluster, Replica, start_cluster
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.retries import send_until_final
from everlong_lab.harness.tiny import save_tiny

_FAULTS = (
    "all replicas killed", "replica stalled past its lease", "rolling restart", "Redis killed", "Redis does not answer",
    "replica cut off from Redis", "replica half cut off from Redis", "late messages from and to Redis",
)  # fmt: skip
_KINDS = {"append": 45, "read": 40, "fork": 8, "delete": 7}
_SESSIONS = 6
"""Sessions that the clients share at a time."""
_SAMPLING = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
_CALM_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Ends after `operations` and all of `faults`, or after `minutes`."""

    file: Path
    operations: int = 100_000
    faults: int = 50
    minutes: float = 60.0
    clients: int = 8
    replicas: int = 3
    seed: int = 0


@dataclass(slots=True)
class _History:
    """The open file, and the sessions that the clients use. `faults`: how often each was injected."""

    output: IO[str]
    replicas: list[Replica]
    sessions: list[str] = field(default_factory=list)
    done: int = 0
    again: int = 0
    unfinished: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self, count: int) -> None:
        """Wait for so many operations."""
        while self.done < count:
            self._more.clear()
            await self._more.wait()

    def sent_again(self) -> None:
        """Count a retry."""
        self.again += 1

    def write(self, **operation: Any) -> None:
        """Append an operation to the file."""
        self.done += 1
        self._more.set()
        self.output.write(json.dumps(operation) + "\n")


def run(plan: HistoryPlan, progress: Callable[[str], None]) -> Report:
    """Record a history and return how much it has. Raises `ClusterError` and `RuntimeError`."""
    with tempfile.TemporaryDirectory(prefix="evl") as folder, plan.file.open("w") as output:
        history = _History(output, [])
        seconds = asyncio.run(_record(plan, save_tiny(Path(folder), 64), history, progress))
    faults = history.faults.total()
    rows = [{"operations": history.done, "faults": faults, "sent_again": history.again, "unfinished": history.unfinished,
             "minutes": seconds / 60}]  # fmt: skip
    targets = [
        Target("operations", history.done, plan.operations, at_most=False),
        Target("faults", faults, plan.faults, at_most=False),
    ]
    notes = [f"{count} × {name}" for name, count in sorted(history.faults.items())]
    notes.append("check it with Go: cd lab/checker && go mod tidy && go run . FILE")
    return Report("history", rows, targets, notes)


async def _record(plan: HistoryPlan, model: Path, history: _History, progress: Callable[[str], None]) -> float:
    """Run clients and faults until the plan's end. Returns the seconds."""
    rng, begun = random.Random(plan.seed), time.monotonic()  # noqa: S311 - not for secrets
    async with start_cluster(model, plan.replicas) as cluster:
        history.replicas = cluster.replicas
        ending = asyncio.Event()
        working = [asyncio.create_task(_client(number, plan, history, ending)) for number in range(plan.clients)]
        faults = asyncio.create_task(_inject(plan, cluster, history, rng, progress))
        try:
            while time.monotonic() - begun < plan.minutes * 60:
                await asyncio.wait([faults, *working], timeout=1, return_when=asyncio.FIRST_EXCEPTION)
                if ended := [task for task in working if task.done()]:
                    await ended[0]
                if faults.done():
                    await faults
                    if history.done >= plan.operations:
                        break
        finally:
            faults.cancel()
            ending.set()
            _, late = await asyncio.wait(working, timeout=_CALM_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(faults, *working, return_exceptions=True)
    return time.monotonic() - begun


async def _inject(
    plan: HistoryPlan, cluster: Cluster, history: _History, rng: random.Random, progress: Callable[[str], None]
) -> None:
    """Inject the faults in turns, spread over the operations."""
    load = Load(cluster.replicas, plan.seed, 1, scripts=1)  # idle: the faults need one
    context = FaultContext(cluster, load, rng, away=6.0, burst=1)
    try:
        for number, name in enumerate(itertools.islice(itertools.cycle(_FAULTS), plan.faults), 1):
            await history.reached(plan.operations * number // (plan.faults + 1))
            await FAULTS[name](context)
            history.faults[name] += 1
            progress(
                f"{number} of {plan.faults} faults, {history.done:,} of {plan.operations:,} operations; last: {name}"
            )
    finally:
        await load.caller.close()


async def _client(number: int, plan: HistoryPlan, history: _History, ending: asyncio.Event) -> None:
    rng = random.Random(plan.seed * 1000 + number)  # noqa: S311
    async with httpx.AsyncClient(timeout=httpx.Timeout(20, connect=2)) as http:
        client = _Client(number, http, history, rng)
        while not ending.is_set():
            if len(history.sessions) < _SESSIONS:
                await client.create()
            else:
                await client.act(rng.choice(history.sessions))


@dataclass(frozen=True, slots=True)
class _Client:
    number: int
    http: httpx.AsyncClient
    history: _History
    rng: random.Random

    async def create(self) -> None:
        """Create an empty session."""
        call = time.monotonic_ns()
        made, tries = await self._send("POST", "/v1/sessions", json={})
        self._write(made["id"], "create", call, tries, content=[])
        self.history.sessions.append(made["id"])

    async def act(self, session: str) -> None:
        """Do something with a session, at random."""
        (kind,) = self.rng.choices(list(_KINDS), list(_KINDS.values()))
        call, tries = time.monotonic_ns(), 0
        path, result = f"/v1/sessions/{session}", dict[str, Any]()
        word = uuid.uuid4().hex[:12] if kind == "append" else None
        try:
            match kind:
                case "append":
                    body = {"content": word, **_SAMPLING}
                    found, tries = await self._send("POST", f"{path}/messages", json=body)
                    result = {"answer": found and found["content"]}
                case "read":
                    found, tries = await self._send("GET", f"{path}/messages")
                    result = {"content": found and _content(found)}
                case "fork":
                    found, tries = await self._send("POST", f"{path}/fork")
                    result = {"content": found and await self._fork(found["id"], call, tries)}
                case "delete":
                    found, tries = await self._send("DELETE", path)
                    result = {"deleted": found is not None}
        except asyncio.CancelledError:
            self.history.unfinished += 1
            self.history.write(
                client=self.number, session=session, kind=kind, word=word, call=call, tries=tries, **{"return": None}
            )
            raise
        self._write(session, kind, call, tries, word=word, **result)
        if found is None or kind == "delete":
            with contextlib.suppress(ValueError):  # another client has noticed it first
                self.history.sessions.remove(session)

    async def _fork(self, child: str, call: int, tries: int) -> list[list[str]]:
        """Return the messages of a new fork, before anybody else knows it. It begins a history of its own."""
        found, _ = await self._send("GET", f"/v1/sessions/{child}/messages")
        content = _content(found)
        self._write(child, "create", call, tries, content=content)
        if len(self.history.sessions) < 2 * _SESSIONS:
            self.history.sessions.append(child)
        return content

    def _write(self, session: str, kind: str, call: int, tries: int, **result: Any) -> None:
        self.history.write(
            client=self.number,
            session=session,
            kind=kind,
            call=call,
            tries=tries,
            **{"return": time.monotonic_ns()},
            **result,
        )

    async def _send(self, method: str, path: str, **body: Any) -> tuple[Any, int]:
        """Send a request to random replicas until the answer is final. Returns its JSON, None for 404, and the number of tries."""

        def url() -> str:
            return f"{self.rng.choice(self.history.replicas).url}{path}"

        answer, tries = await send_until_final(self.http, method, url, self.history.sent_again, **body)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None, tries
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json(), tries


def _content(found: dict[str, Any]) -> list[list[str]]:
    """Return the questions of a session, each with its answer."""
    texts = [message["content"] for message in found["data"]]
    return [list(pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
