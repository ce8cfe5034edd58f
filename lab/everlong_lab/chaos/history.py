"""Record the operations of concurrent clients on the same sessions during faults, for a linearizability checker (`lab/checker`).

Each operation has two lines with the same id. The first is written before it is sent and returns null. The second has what was
returned, and the time of the first try and of the final answer (monotonic nanoseconds). An operation without a second line may have
taken effect or not. A history that was interrupted goes on in the same file, with new sessions.
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
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from everlong_lab.chaos.faults import FAULTS, FaultContext
from everlong_lab.chaos.load import Load
from everlong_lab.chaos.partitions import PARTITIONS, PartitionContext
from everlong_lab.chaos.processes import Cluster, Replica, start_cluster
from everlong_lab.chaos.sentinels import SentinelCluster, start_sentinel_cluster
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
_SAMPLING = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
_CALM_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Ends after `operations` and all of `faults`, or after `minutes`. `sentinel`: three Redis servers with Sentinels, each server
    and replica on a host of its own, and partitions between them (`partitions`) instead of one Redis."""

    file: Path
    operations: int = 100_000
    faults: int = 50
    minutes: float = 60.0
    clients: int = 8
    replicas: int = 3
    seed: int = 0
    sentinel: bool = False


@dataclass(slots=True)
class _History:
    """The open file, and the sessions that the clients use. `done`: operations with a final answer. `again`: retries. `faults`: how
    often each was injected."""

    output: IO[str]
    replicas: Sequence[Replica] = ()
    sessions: list[str] = field(default_factory=list)
    done: int = 0
    begun: int = 0
    again: int = 0
    failovers: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self, count: int) -> None:
        """Wait for this many operations."""
        while self.done < count:
            self._more.clear()
            await self._more.wait()

    def sent_again(self) -> None:
        """Count a retry."""
        self.again += 1

    def begin(self, **operation: Any) -> dict[str, Any]:
        """Write that an operation begins, and return it."""
        self.begun += 1
        operation |= {"id": uuid.uuid4().hex, "call": time.monotonic_ns(), "return": None}
        self._write(operation)
        return operation

    def end(self, operation: dict[str, Any], **result: Any) -> None:
        """Write the result of an operation."""
        self.done += 1
        self._more.set()
        self._write(operation | {"return": time.monotonic_ns()} | result)

    def fault(self, name: str) -> None:
        """Write that a fault was injected and repaired."""
        self.faults[name] += 1
        self._write({"fault": name, "return": time.monotonic_ns()})

    def _write(self, line: dict[str, Any]) -> None:
        self.output.write(json.dumps(line) + "\n")


def run(plan: HistoryPlan, progress: Callable[[str], None]) -> Report:
    """Record a history and return how much it has. Raises `ClusterError` and `RuntimeError`."""
    before = Counter[str]()
    if plan.file.exists():
        before = _count(plan.file)
    with tempfile.TemporaryDirectory(prefix="evl") as folder, plan.file.open("a", buffering=1) as output:
        history = _History(output)
        history.done = history.begun = before.pop("", 0)
        history.faults = before
        seconds = asyncio.run(_record(plan, save_tiny(Path(folder), 64), history, progress))
    faults = history.faults.total()
    rows = [{"operations": history.done, "faults": faults, "sent_again": history.again, "unfinished": history.begun - history.done,
             "minutes": seconds / 60}]  # fmt: skip
    targets = [
        Target("operations", history.done, plan.operations, at_most=False),
        Target("faults", faults, plan.faults, at_most=False),
    ]
    notes = [f"{count} × {name}" for name, count in sorted(history.faults.items())]
    if plan.sentinel:
        notes.append(f"{history.failovers} times another Redis became the master")
    notes.append("check it with Go: cd lab/checker && go mod tidy && go run . FILE")
    return Report("history", rows, targets, notes)


def _count(file: Path) -> Counter[str]:
    """Return how often each fault was injected in an earlier run, and under "" the operations with a result. Removes a last line
    that was cut off."""
    found = Counter[str]()
    with file.open("r+b") as stored:
        end = 0
        for line in stored:
            if not line.endswith(b"\n"):
                stored.truncate(end)
                break
            end += len(line)
            entry = json.loads(line)
            if entry["return"] is not None:
                found[entry.get("fault", "")] += 1
    return found


async def _record(plan: HistoryPlan, model: Path, history: _History, progress: Callable[[str], None]) -> float:
    """Run clients and faults until the plan's end. Returns the seconds."""
    if plan.sentinel:
        async with start_sentinel_cluster(model, plan.replicas) as cluster:
            seconds = await _use(plan, cluster.replicas, history, _inject_partitions(plan, cluster, history, progress))
            history.failovers = await cluster.failovers()
            return seconds
    async with start_cluster(model, plan.replicas) as cluster:
        return await _use(plan, cluster.replicas, history, _inject_faults(plan, cluster, history, progress))


async def _use(
    plan: HistoryPlan, replicas: Sequence[Replica], history: _History, injecting: Coroutine[Any, Any, None]
) -> float:
    """Run clients beside `injecting` until the plan's end. Returns the seconds."""
    begun = time.monotonic()
    history.replicas = replicas
    ending = asyncio.Event()
    working = [asyncio.create_task(_client(number, plan, history, ending)) for number in range(plan.clients)]
    faults = asyncio.create_task(injecting)
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


async def _inject_faults(
    plan: HistoryPlan, cluster: Cluster, history: _History, progress: Callable[[str], None]
) -> None:
    """Inject the faults of `FAULTS` that do not need a load of their own."""
    load = Load(cluster.replicas, plan.seed, 1, scripts=1)  # idle: the faults need one
    context = FaultContext(cluster, load, random.Random(plan.seed), away=6.0, burst=1)  # noqa: S311 - not for secrets
    try:
        async for name in _due(plan, _FAULTS, history, progress):
            await FAULTS[name](context)
    finally:
        await load.caller.close()


async def _inject_partitions(
    plan: HistoryPlan, cluster: SentinelCluster, history: _History, progress: Callable[[str], None]
) -> None:
    """Inject the faults of `PARTITIONS`, and wait after each until all copies are there again."""
    context = PartitionContext(cluster, random.Random(plan.seed + history.faults.total()))  # noqa: S311 - not for secrets
    async for name in _due(plan, tuple(PARTITIONS), history, progress):
        await PARTITIONS[name](context)
        await cluster.whole()


async def _due(
    plan: HistoryPlan, names: Sequence[str], history: _History, progress: Callable[[str], None]
) -> AsyncIterator[str]:
    """Yield the faults in turns, each when it is due: they are spread over the operations."""
    first = history.faults.total()
    for number, name in enumerate(itertools.islice(itertools.cycle(names), first, plan.faults), first + 1):
        await history.reached(plan.operations * number // (plan.faults + 1))
        yield name
        history.fault(name)
        progress(f"{number} of {plan.faults} faults, {history.done:,} of {plan.operations:,} operations; last: {name}")


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
        begun = time.monotonic_ns()
        made, tries = await self._send("POST", "/v1/sessions", json={})
        self._created(made["id"], begun, tries, [])
        self.history.sessions.append(made["id"])

    def _created(self, session: str, call: int, tries: int, content: list[list[str]]) -> None:
        """Record a session that nobody else knows yet. It was made at `call` or later."""
        created = self.history.begin(client=self.number, session=session, kind="create", content=content)
        self.history.end(created, tries=tries, call=call)

    async def act(self, session: str) -> None:
        """Do something with a session, at random."""
        (kind,) = self.rng.choices(list(_KINDS), list(_KINDS.values()))
        path, result = f"/v1/sessions/{session}", dict[str, Any]()
        word = uuid.uuid4().hex[:8] if kind == "append" else None
        operation = self.history.begin(client=self.number, session=session, kind=kind, word=word)
        match kind:
            case "append":
                found, tries = await self._send("POST", f"{path}/messages", json={"content": word, **_SAMPLING})
                result = {"answer": found and found["content"]}
            case "read":
                found, tries = await self._send("GET", f"{path}/messages")
                result = {"content": found and _content(found)}
            case "fork":
                found, tries = await self._send("POST", f"{path}/fork")
                result = {"content": found and await self._fork(found["id"], operation["call"], tries)}
            case "delete":
                found, tries = await self._send("DELETE", path)
                result = {"deleted": found is not None}
        self.history.end(operation, tries=tries, **result)
        if found is None or kind == "delete":
            with contextlib.suppress(ValueError):  # another client has noticed it first
                self.history.sessions.remove(session)

    async def _fork(self, child: str, call: int, tries: int) -> list[list[str]]:
        """Return the messages of a new fork, before anybody else knows it. It begins a history of its own. Raises `RuntimeError`."""
        found, _ = await self._send("GET", f"/v1/sessions/{child}/messages")
        if found is None:
            raise RuntimeError(f"the fork {child} was acknowledged, and is lost")
        content = _content(found)
        self._created(child, call, tries, content)
        if len(self.history.sessions) < 2 * _SESSIONS:
            self.history.sessions.append(child)
        return content

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
