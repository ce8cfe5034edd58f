"""`Load`: callers that upload, ask and delete, and verify what the server has acknowledged.

Each script is run once without faults. From then on every answer, token and state must be identical, bit for bit,
whatever happens meanwhile: a segment that was applied twice or not at all changes the state.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from everlong_lab.chaos.processes import Replica
from everlong_lab.harness.retries import AGAIN_SECONDS, code_of, may_retry

STUCK_SECONDS = 180.0
_ANSWER_TOKENS = 48
_WITHIN = ", within an answer"
_WORDS = [
    "ash", "bell", "cliff", "dune", "elm", "fern", "gale", "hail", "isle", "jade", "kelp", "lake", "moss",
    "north", "oak", "pine", "quay", "reef", "salt", "tide",
]  # fmt: skip


class DataLost(Exception):
    """Acknowledged data is missing or has changed."""


@dataclass(frozen=True, slots=True)
class Script:
    """A text with questions about it, generated from `seed`."""

    seed: int
    text: bytes
    questions: tuple[str, ...]

    @staticmethod
    def of(seed: int) -> Script:
        """Return a text of 3 to 16 KB with two to four questions."""
        rng = random.Random(seed)  # noqa: S311 - not for secrets
        words = [rng.choice(_WORDS) for _ in range(rng.randrange(600, 3_200))]
        text = " ".join(word + "." * (n % 11 == 10) for n, word in enumerate(words))
        questions = tuple(f"Where is the {rng.choice(_WORDS)}, number {n}?" for n in range(rng.randrange(2, 5)))
        return Script(seed, text.encode(), questions)


@dataclass(slots=True)
class Reference:
    """Results of a script without faults: tokens and state after the text, answers and states after each question."""

    tokens: int
    digest: str
    answers: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Ledger:
    """What happened to the callers."""

    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """Acknowledged steps, by name."""
    again: Counter[str] = field(default_factory=Counter)
    """Retries, by reason."""


class Caller:
    """Sends each request to a random replica, and retries another one until it gets a final answer.

    All retries of a request are identical, with the same Idempotency-Key. `twice`: send each request to two replicas at
    once. `keep_alive`: False opens a connection for each request.
    """

    def __init__(self, replicas: Sequence[Replica], ledger: Ledger, seed: int, *, keep_alive: bool = True) -> None:
        self._replicas = replicas
        self._rng = random.Random(seed)  # noqa: S311
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=20 if keep_alive else 0)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(20, connect=2), limits=limits)
        self.ledger = ledger
        self.twice = False
        self.streaming: Counter[int] = Counter()
        """Answers being generated, by replica."""

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, wanted: int, *, missing_is_done: bool = False, **body: Any) -> Any:
        """Return the JSON of the response with the status `wanted`. Raises `DataLost` for any other final status.

        `missing_is_done`: accept 404 if an earlier attempt may have deleted the resource.
        """
        key = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}
        tries = 0
        while True:
            tries += 1
            copies = self._rng.sample(self._replicas, 2 if self.twice and len(self._replicas) > 1 else 1)
            answers = await asyncio.gather(*(self._once(replica, method, path, key, body) for replica in copies))
            good = [answer for answer in answers if isinstance(answer, httpx.Response) and answer.status_code == wanted]
            if good:
                if method == "POST" and len({answer.json()["id"] for answer in good}) > 1:
                    raise DataLost(f"{method} {path}: a request sent twice was carried out twice")
                return good[0].json()
            final = [answer for answer in answers if isinstance(answer, httpx.Response) and not may_retry(answer)]
            if final:
                worst = max(final, key=lambda answer: answer.status_code)
                # An attempt that broke off, earlier or at the same time, may have succeeded.
                if missing_is_done and worst.status_code == 404 and (tries > 1 or len(final) < len(answers)):
                    return None
                raise DataLost(f"{method} {path}: {worst.status_code} {worst.text[:300]}")
            self.ledger.again[_why(answers[0])] += 1
            await asyncio.sleep(AGAIN_SECONDS)

    async def _once(
        self, replica: Replica, method: str, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> httpx.Response | str:
        """Return the response, or why there is none."""
        begun = False
        try:
            async with self._http.stream(method, f"{replica.url}{path}", headers=headers, **body) as response:
                begun = True
                await response.aread()
                return response
        except httpx.TransportError as error:
            return _broken(error, begun=begun)

    async def send_message(self, session: str, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
        """Return the answer to a message. Text streamed by an attempt that broke off must be the start of the final answer."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        seen: list[str] = []
        while True:
            replica = self._rng.choice(self._replicas)
            self.streaming[replica.number] += 1
            try:
                if stream:
                    answer = await self._stream(replica, session, key, body, seen)
                else:
                    answer = await self._once(replica, "POST", f"/v1/sessions/{session}/messages", key, {"json": body})
            finally:
                self.streaming[replica.number] -= 1
            message: dict[str, Any] | None = None
            if isinstance(answer, httpx.Response) and answer.status_code == 200:
                message = answer.json()
            elif isinstance(answer, dict):
                message = answer
            if message is not None:
                if wrong := [text for text in seen if not message["content"].startswith(text)]:
                    raise DataLost(
                        f"message to {session}: {wrong[0]!r} was streamed, but {message['content']!r} was stored"
                    )
                return message
            if isinstance(answer, httpx.Response) and not may_retry(answer):
                raise DataLost(f"message to {session}: {answer.status_code} {answer.text[:300]}")
            self.ledger.again[_why(answer)] += 1
            await asyncio.sleep(AGAIN_SECONDS)

    async def _stream(
        self, replica: Replica, session: str, headers: dict[str, str], body: dict[str, Any], seen: list[str]
    ) -> dict[str, Any] | httpx.Response | str:
        """Return the complete message, or why there is none; append the streamed text to `seen`."""
        text, begun = "", False
        url = f"{replica.url}/v1/sessions/{session}/messages"
        try:
            async with self._http.stream("POST", url, json=body | {"stream": True}, headers=headers) as response:
                begun = True
                if response.status_code != 200:
                    await response.aread()
                    return response
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if event["type"] == "response.output_text.delta":
                        text += event["delta"]
                    elif event["type"] == "response.completed":
                        return dict(event["message"])
                    elif event["type"] == "error":
                        return f"stream: {event['error']['code']}{_WITHIN if text else ''}"
            return "a stream ended without a final event"
        except httpx.TransportError as error:
            return _broken(error, begun=begun)
        finally:
            seen.append(text)


def _broken(error: httpx.TransportError, *, begun: bool) -> str:
    """Return why there is no complete answer. `begun`: part of one was received."""
    return f"{type(error).__name__}{_WITHIN if begun else ''}"


def _why(answer: object) -> str:
    if isinstance(answer, httpx.Response):
        return f"{answer.status_code} {code_of(answer)}"
    return str(answer)


class Load:
    """Runs scripts with `workers` concurrent callers. `references`: results without faults by seed, after `rehearse`."""

    def __init__(
        self, replicas: Sequence[Replica], seed: int, workers: int, scripts: int, *, keep_alive: bool = True
    ) -> None:
        self.ledger = Ledger()
        self.caller = Caller(replicas, self.ledger, seed, keep_alive=keep_alive)
        self.references: dict[int, Reference] = {}
        self.fault = "no fault"
        """The fault being injected."""
        self._scripts = [Script.of(seed + n) for n in range(scripts)]
        self._kept: list[tuple[Script, str, str]] = []
        self._workers = workers
        self._rng = random.Random(seed)  # noqa: S311
        self._under_way: set[asyncio.Future[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    async def rehearse(self) -> None:
        """Run every script once without faults, and keep the results: they must still exist at the end."""
        for script in self._scripts:
            self._kept.append(await self._act(script))

    def start(self) -> None:
        """Start the callers."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def settled(self) -> float:
        """Wait until all steps under way are done; return the seconds that it took."""
        start = time.monotonic()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        return time.monotonic() - start

    async def finish(self) -> None:
        """Stop the callers, which delete what they made. Verify and delete what the rehearsal made."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        self.fault = "at the end"
        for script, document, session in self._kept:
            async with self._guarded():
                reference = self.references[script.seed]
                await self._read(script, document)
                await self._check_session(session, script, len(reference.answers))
                await self._forget(document, session)

    async def _work(self) -> None:
        while not self._ending:
            script = self._rng.choice(self._scripts)
            async with self._guarded():
                _, document, session = await self._act(script)
                await self._forget(document, session)

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        """Record what goes wrong in the block, under the current fault."""
        try:
            yield
        except DataLost as error:
            self.ledger.lost.append(f"{self.fault}: {error}")
        except TimeoutError as error:
            self.ledger.stuck.append(f"{self.fault}: {error}")

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        """Run one step with its verification, within a time limit."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(future)
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                yield
            self.ledger.done[name] += 1
        except TimeoutError:
            raise TimeoutError(f"{name} did not end within {STUCK_SECONDS:.0f} s") from None
        finally:
            self._under_way.discard(future)
            future.set_result(None)

    async def _act(self, script: Script) -> tuple[Script, str, str]:
        """Run a script; return it with its document and session."""
        call, rng = self.caller.call, self._rng
        async with self._step("upload"):
            made = await call("POST", "/v1/documents", 202, content=script.text)
            document = str(made["id"])
            await call("GET", f"/v1/documents/{document}", 200)
        early = rng.random() < 0.3  # a session may be created before its document is read
        session = await self._begin(document) if early else ""
        async with self._step("read"):
            await self._read(script, document)
        session = session or await self._begin(document)
        for n, question in enumerate(script.questions):
            async with self._step("message"):
                body = {
                    "content": question, "max_tokens": _ANSWER_TOKENS, "temperature": 1.0, "seed": script.seed,
                    "ignore_eos": True,
                }  # fmt: skip
                answer = await self.caller.send_message(session, body, stream=rng.random() < 0.6)
                await self._check_session(session, script, n + 1, answer)
        return script, document, session

    async def _begin(self, document: str) -> str:
        async with self._step("session"):
            made = await self.caller.call("POST", "/v1/sessions", 201, json={"documents": [document]})
            await self.caller.call("GET", f"/v1/sessions/{made['id']}", 200)
            return str(made["id"])

    async def _read(self, script: Script, document: str) -> None:
        """Wait until the document is read, and verify its tokens and state."""
        while True:
            now = await self.caller.call("GET", f"/v1/documents/{document}", 200)
            if now["status"] == "failed":
                raise DataLost(f"document {document} failed: {now['error']}")
            if now["status"] == "ready":
                break
            await asyncio.sleep(AGAIN_SECONDS)
        reference = self.references.setdefault(script.seed, Reference(now["tokens"], now["state_digest"]))
        if (now["tokens"], now["state_digest"]) != (reference.tokens, reference.digest):
            raise DataLost(
                f"document {document}: {now['tokens']} tokens, state {now['state_digest']}; without faults {reference}"
            )

    async def _check_session(
        self, session: str, script: Script, count: int, answer: dict[str, Any] | None = None
    ) -> None:
        """Verify that the session has exactly `count` answers, those of the reference, and the same state."""
        reference = self.references[script.seed]
        messages = (await self.caller.call("GET", f"/v1/sessions/{session}/messages", 200))["data"]
        now = await self.caller.call("GET", f"/v1/sessions/{session}", 200)
        if len(reference.answers) < count and answer is not None:  # the rehearsal
            reference.answers.append(answer["content"])
            reference.digests.append(now["state_digest"])
        wanted = [part for pair in zip(script.questions, reference.answers, strict=False) for part in pair][: 2 * count]
        found = [message["content"] for message in messages]
        if found != wanted:
            raise DataLost(f"session {session} has {len(found)} messages {found}, should have {wanted}")
        if answer is not None and answer["content"] != reference.answers[count - 1]:
            raise DataLost(
                f"session {session} was answered {answer['content']!r}, without faults {reference.answers[count - 1]!r}"
            )
        if now["state_digest"] != reference.digests[count - 1]:
            raise DataLost(f"session {session} has another state after {count} answers than without faults")

    async def _forget(self, document: str, session: str) -> None:
        async with self._step("delete"):
            await self.caller.call("DELETE", f"/v1/sessions/{session}", 200, missing_is_done=True)
            await self.caller.call("DELETE", f"/v1/documents/{document}", 200, missing_is_done=True)
