"""`Load`: people who upload, ask and delete, and know what they were promised.

Each script is acted out once while nothing is broken. From then on every answer, token and state has to be the same
again, bit for bit, whatever happens meanwhile: a segment that was applied twice, or not at all, gives another state.
"""

from __future__ import annotations

import asyncio
import contextlib
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

STUCK_SECONDS = 180.0
_AGAIN_SECONDS = 0.1
_ANSWER_TOKENS = 48
PASSING = ("session_busy", "idempotency_in_progress", "document_not_ready", "conflict")
"""What 409 says that will be otherwise in a moment."""
_WITHIN = ", within an answer"
_WORDS = [
    "ash",
    "bell",
    "cliff",
    "dune",
    "elm",
    "fern",
    "gale",
    "hail",
    "isle",
    "jade",
    "kelp",
    "lake",
    "moss",
    "north",
    "oak",
    "pine",
    "quay",
    "reef",
    "salt",
    "tide",
]


class DataLost(Exception):
    """Something that was promised is not there, or is not what it was."""


@dataclass(frozen=True, slots=True)
class Script:
    """A text and what is asked about it. A function of `seed`."""

    seed: int
    text: bytes
    questions: tuple[str, ...]

    @staticmethod
    def of(seed: int) -> Script:
        """3 to 16 KB, and two to four questions."""
        rng = random.Random(seed)  # noqa: S311 - not for secrets
        words = [rng.choice(_WORDS) for _ in range(rng.randrange(600, 3_200))]
        text = " ".join(word + "." * (n % 11 == 10) for n, word in enumerate(words))
        questions = tuple(f"Where is the {rng.choice(_WORDS)}, number {n}?" for n in range(rng.randrange(2, 5)))
        return Script(seed, text.encode(), questions)


@dataclass(slots=True)
class Reference:
    """What became of a script while nothing was broken: after the text, and after each answer."""

    tokens: int
    digest: str
    answers: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Ledger:
    """What has happened to those who use the server."""

    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """Acknowledged steps."""
    again: Counter[str] = field(default_factory=Counter)
    """Tries that were repeated, by why."""


class Caller:
    """Asks any replica, and again another one as long as the answer is that it should try later, or there is none.

    Every request is the same each time, with the same Idempotency-Key. `twice`: each is sent to two replicas at once.
    `keep_alive`: False for a connection of its own for each.
    """

    def __init__(self, replicas: Sequence[Replica], ledger: Ledger, seed: int, *, keep_alive: bool = True) -> None:
        self._replicas = replicas
        self._rng = random.Random(seed)  # noqa: S311
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=20 if keep_alive else 0)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(20, connect=2), limits=limits)
        self.ledger = ledger
        self.twice = False
        self.streaming: Counter[int] = Counter()
        """Answers under way, by replica."""

    async def close(self) -> None:
        """Breaks all connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, wanted: int, *, missing_is_done: bool = False, **body: Any) -> Any:
        """The JSON of the answer with the `wanted` status. Raises `DataLost` for one that says that something is wrong.

        `missing_is_done`: what is deleted twice is not there the second time.
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
                    raise DataLost(f"{method} {path}: sent twice, done twice")
                return good[0].json()
            final = [answer for answer in answers if isinstance(answer, httpx.Response) and not _later(answer)]
            if final:
                worst = max(final, key=lambda answer: answer.status_code)
                # A try that broke off, earlier or at the same time, may have done it.
                if missing_is_done and worst.status_code == 404 and (tries > 1 or len(final) < len(answers)):
                    return None
                raise DataLost(f"{method} {path}: {worst.status_code} {worst.text[:300]}")
            self.ledger.again[_why(answers[0])] += 1
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _once(
        self, replica: Replica, method: str, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> httpx.Response | str:
        """The answer, or why there is none."""
        begun = False
        try:
            async with self._http.stream(method, f"{replica.url}{path}", headers=headers, **body) as response:
                begun = True
                await response.aread()
                return response
        except httpx.TransportError as error:
            return _broken(error, begun=begun)

    async def say(self, session: str, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
        """The answer to a message. What was streamed of it before it broke off has to be its beginning."""
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
                        f"of a message to {session} {wrong[0]!r} was streamed, and {message['content']!r} was kept"
                    )
                return message
            if isinstance(answer, httpx.Response) and not _later(answer):
                raise DataLost(f"message to {session}: {answer.status_code} {answer.text[:300]}")
            self.ledger.again[_why(answer)] += 1
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _stream(
        self, replica: Replica, session: str, headers: dict[str, str], body: dict[str, Any], seen: list[str]
    ) -> dict[str, Any] | httpx.Response | str:
        """The complete message, or why there is none; `seen` gets what was streamed."""
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
            return "a stream ended without a word"
        except httpx.TransportError as error:
            return _broken(error, begun=begun)
        finally:
            seen.append(text)


def _broken(error: httpx.TransportError, *, begun: bool) -> str:
    """Why there is no answer. `begun`: there was something of one."""
    return f"{type(error).__name__}{_WITHIN if begun else ''}"


def _later(answer: httpx.Response) -> bool:
    """Whether the request may be tried again."""
    return answer.status_code in (429, 503) or (answer.status_code == 409 and _code(answer) in PASSING)


def _code(answer: httpx.Response) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"]["code"])
    return ""


def _why(answer: object) -> str:
    if isinstance(answer, httpx.Response):
        return f"{answer.status_code} {_code(answer)}"
    return str(answer)


class Load:
    """`workers` people at once, each with a script after the other. `references` by seed, after `rehearse`."""

    def __init__(
        self, replicas: Sequence[Replica], seed: int, workers: int, scripts: int, *, keep_alive: bool = True
    ) -> None:
        self.ledger = Ledger()
        self.caller = Caller(replicas, self.ledger, seed, keep_alive=keep_alive)
        self.references: dict[int, Reference] = {}
        self.fault = "no fault"
        """What is broken now."""
        self._scripts = [Script.of(seed + n) for n in range(scripts)]
        self._kept: list[tuple[Script, str, str]] = []
        self._workers = workers
        self._rng = random.Random(seed)  # noqa: S311
        self._under_way: set[asyncio.Future[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    async def rehearse(self) -> None:
        """Acts every script out, and keeps what was made: it has to be there at the end."""
        for script in self._scripts:
            self._kept.append(await self._act(script))

    def start(self) -> None:
        """From now on the server is used."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def settled(self) -> float:
        """Waits until all that is under way now is done; the seconds that it took."""
        start = time.monotonic()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        return time.monotonic() - start

    async def finish(self) -> None:
        """Everybody deletes what they have made and leaves. What was made at the rehearsal is looked at, and deleted."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        self.fault = "at the end"
        for script, document, session in self._kept:
            async with self._guarded():
                reference = self.references[script.seed]
                await self._read(script, document)
                await self._heard(session, script, len(reference.answers))
                await self._forget(document, session)

    async def _work(self) -> None:
        while not self._ending:
            script = self._rng.choice(self._scripts)
            async with self._guarded():
                _, document, session = await self._act(script)
                await self._forget(document, session)

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        """Puts down what goes wrong in the block, under the fault that was at work."""
        try:
            yield
        except DataLost as error:
            self.ledger.lost.append(f"{self.fault}: {error}")
        except TimeoutError as error:
            self.ledger.stuck.append(f"{self.fault}: {error}")

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        """One step, with its proof, that has to come to its end."""
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
        """Script, document and session, after the last answer."""
        call, rng = self.caller.call, self._rng
        async with self._step("upload"):
            made = await call("POST", "/v1/documents", 202, content=script.text)
            document = str(made["id"])
            await call("GET", f"/v1/documents/{document}", 200)
        early = rng.random() < 0.3  # a session may be there before its document is read
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
                said = await self.caller.say(session, body, stream=rng.random() < 0.6)
                await self._heard(session, script, n + 1, said)
        return script, document, session

    async def _begin(self, document: str) -> str:
        async with self._step("session"):
            made = await self.caller.call("POST", "/v1/sessions", 201, json={"documents": [document]})
            await self.caller.call("GET", f"/v1/sessions/{made['id']}", 200)
            return str(made["id"])

    async def _read(self, script: Script, document: str) -> None:
        """Waits until the document is read, and looks at what was learnt."""
        while True:
            now = await self.caller.call("GET", f"/v1/documents/{document}", 200)
            if now["status"] == "failed":
                raise DataLost(f"document {document} failed: {now['error']}")
            if now["status"] == "ready":
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        reference = self.references.setdefault(script.seed, Reference(now["tokens"], now["state_digest"]))
        if (now["tokens"], now["state_digest"]) != (reference.tokens, reference.digest):
            raise DataLost(f"document {document}: {now['tokens']} tokens, state {now['state_digest']}; undisturbed {reference}")

    async def _heard(self, session: str, script: Script, answers: int, said: dict[str, Any] | None = None) -> None:
        """Looks whether the dialogue has exactly so many answers, those of the reference, and left the same state behind."""
        reference = self.references[script.seed]
        dialogue = (await self.caller.call("GET", f"/v1/sessions/{session}/messages", 200))["data"]
        now = await self.caller.call("GET", f"/v1/sessions/{session}", 200)
        if len(reference.answers) < answers and said is not None:  # the rehearsal
            reference.answers.append(said["content"])
            reference.digests.append(now["state_digest"])
        wanted = [part for pair in zip(script.questions, reference.answers, strict=False) for part in pair][: 2 * answers]
        found = [message["content"] for message in dialogue]
        if found != wanted:
            raise DataLost(f"session {session} holds {len(found)} messages {found}, and should hold {wanted}")
        if said is not None and said["content"] != reference.answers[answers - 1]:
            raise DataLost(
                f"session {session} was answered {said['content']!r}, undisturbed {reference.answers[answers - 1]!r}"
            )
        if now["state_digest"] != reference.digests[answers - 1]:
            raise DataLost(f"session {session} has another state after {answers} answers than undisturbed")

    async def _forget(self, document: str, session: str) -> None:
        async with self._step("delete"):
            await self.caller.call("DELETE", f"/v1/sessions/{session}", 200, missing_is_done=True)
            await self.caller.call("DELETE", f"/v1/documents/{document}", 200, missing_is_done=True)
