"""`Conversations`: a message to a session, from lease to commit. A message is a transaction.

Either the answer is complete, and session and dialogue contain it before the caller is told so; or the session is as it
was before. A caller that goes away in the middle, a lost lease, a killed server: the session is as it was.

A chat is a dialogue that its caller keeps and says in full each time. It goes on from where it is known to have stood.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from redis.exceptions import RedisError

from everlong_models import EverlongModelError, MemoryState, SamplingParams, decode_state, encode_state
from everlong_server.engine.engine import Engine
from everlong_server.engine.grounding import BESIDE, TEMPLATE, Recall, Template, asks, choose, evidence_view, words_of
from everlong_server.engine.runner import Answer, Finished
from everlong_server.errors import (
    DocumentFailed,
    DocumentNotReady,
    InvalidRequest,
    ServerError,
    StateUnusable,
    TooLarge,
)
from everlong_server.metrics import Metrics
from everlong_server.store.chats import Chats, digests
from everlong_server.store.documents import Documents
from everlong_server.store.passages import Passage, Passages
from everlong_server.store.records import Reading, Said, Session, new_id, now
from everlong_server.store.sessions import Lease, Sessions

Event = dict[str, Any]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Turn:
    """A message and its answer under way. `events` yields what the caller is sent; `cancel` ends the answer and keeps it."""

    id: str
    events: AsyncGenerator[Event, None] = field(init=False)
    _answer: Answer | None = None
    _engine: Engine | None = None

    def cancel(self) -> None:
        """The answer ends within one step, with `finish_reason` "cancelled"; what was said is kept."""
        if self._answer is not None and self._engine is not None:
            self._engine.cancel(self._answer)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a message goes: to `session` as it stands, behind `earlier` messages that it has not read yet.

    `asked`: the question before it. `keep`: makes message and answer part of the dialogue.
    """

    session: Session
    earlier: Sequence[Said]
    asked: str | None
    keep: Callable[[Event, Finished], Awaitable[None]]


class Conversations:
    """Sends messages to sessions."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        chats: Chats,
        documents: Documents,
        passages: Passages,
        metrics: Metrics,
        *,
        lease_seconds: float,
        max_message_chars: int,
        template: Template = TEMPLATE,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._chats = chats
        self._documents = documents
        self._passages = passages
        self._metrics = metrics
        self._lease_seconds = lease_seconds
        self._max_message_chars = max_message_chars
        self._template = template

    async def state_of(self, session: Session) -> str:
        """`ready`, `reading` or `failed`: whether the session can be talked to. Raises nothing."""
        if session.started or session.reading is None:
            return "ready"
        reading = await self._documents.reading(session.reading)
        if reading is None or reading.status == "failed":
            return "failed"
        return "reading"

    async def require_ready(self, session: Session) -> None:
        """Raises why the session cannot be talked to, if it can't."""
        model = self._engine.model
        if session.model != model.fingerprint:
            raise StateUnusable(
                f"session {session.id!r} was made with model {session.model_name!r} (fingerprint {session.model[:12]}…); "
                f"this server serves {model.name!r} ({model.fingerprint[:12]}…)", param="session_id",
            )  # fmt: skip
        if session.started or session.reading is None:
            return
        raise _unread(await self._documents.reading(session.reading), f"session {session.id!r}", "session_id")

    def load_state(self, session: Session) -> MemoryState:
        """The session's state. Raises `StateUnusable`."""
        model = self._engine.model
        if session.state is None:
            return model.memory.initial_state(1).to("cpu")
        try:
            return decode_state(session.state, model.fingerprint)
        except EverlongModelError as error:
            raise StateUnusable(f"the stored state of session {session.id!r} is damaged: {error}") from error

    async def send(self, session_id: str, content: str, params: SamplingParams, recall: Recall) -> Turn:
        """A turn that has been admitted: its first event is at hand. Every refusal is raised here, before any event."""
        turn = Turn(id=new_id("msg"))
        return await self._admitted(turn, self._in_session(turn, session_id, content), content, params, recall)

    async def chat(
        self, documents: Sequence[str], said: Sequence[Said], params: SamplingParams, recall: Recall
    ) -> Turn:
        """The same for the last message of a dialogue about `documents`, all of which is `said` by the caller.

        Where it is known how the dialogue stood after an answer, it goes on from there; the rest is read now.
        """
        turn = Turn(id=new_id("msg"))
        return await self._admitted(turn, self._in_chat(documents, said), said[-1].content, params, recall)

    async def _admitted(
        self,
        turn: Turn,
        place: AbstractAsyncContextManager[_Place],
        content: str,
        params: SamplingParams,
        recall: Recall,
    ) -> Turn:
        turn.events = self._turn(turn, place, content, params, recall)
        first = await anext(turn.events)

        async def events() -> AsyncGenerator[Event, None]:
            async with contextlib.aclosing(rest):
                yield first
                async for event in rest:
                    yield event

        rest, turn.events = turn.events, events()
        return turn

    async def _turn(
        self,
        turn: Turn,
        entered: AbstractAsyncContextManager[_Place],
        content: str,
        params: SamplingParams,
        recall: Recall,
    ) -> AsyncGenerator[Event, None]:
        pace = self._metrics.pace()
        self._check(content, params)
        async with AsyncExitStack() as stack:
            stack.enter_context(self._engine.admit())
            place = await stack.enter_async_context(entered)
            session = place.session
            # Work that takes long in proportion to the message or the state is not for the event loop.
            state = await asyncio.to_thread(self.load_state, session)
            found = await self._recall(place, content, recall)
            prompt, evidence, newest = await asyncio.to_thread(self._prompt, place, state, content, found, recall)
            seed = params.seed if params.seed is not None else secrets.randbits(53)
            answer = Answer(state, list(session.open), prompt, params, seed, lambda event: None, newest)
            turn._answer, turn._engine = answer, self._engine
            message: dict[str, Any] = {
                "id": turn.id, "object": "message", "role": "assistant", "session": session.id,
                "model": self._engine.model.name, "created_at": now(), "seed": seed,
            }  # fmt: skip
            yield {"type": "response.created", "response": message}
            message["evidence"] = evidence
            if recall.passages:
                yield {"type": "response.evidence", "response_id": turn.id, "evidence": evidence}
            finished: Finished | None = None
            logprobs: list[dict[str, Any]] = []
            try:
                async with contextlib.aclosing(self._engine.answer(answer)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            finished = event
                            break
                        pace.token()
                        logprobs += event.logprobs
                        if event.text or event.logprobs:
                            more = {"logprobs": event.logprobs} if event.logprobs else {}
                            yield {
                                "type": "response.output_text.delta",
                                "response_id": turn.id,
                                "delta": event.text,
                                **more,
                            }
            except InterruptedError:  # cancelled before the prompt was read: there is nothing to keep
                pass
            reused = session.position - len(session.open)
            message |= {
                "content": finished.text if finished else "",
                "finish_reason": finished.reason if finished else "cancelled",
                "usage": {
                    "prompt_tokens": session.position + len(prompt),
                    "completion_tokens": finished.tokens if finished else 0,
                    "reused_tokens": reused,
                },
            }
            if params.logprobs:
                message["logprobs"] = logprobs
            if finished is not None:
                await place.keep(message, finished)
                self._metrics.answered(finished.reason, prompt=len(prompt), generated=finished.tokens, reused=reused)
        # The lease is back before the caller hears of the end, so that its next message finds the session free.
        yield {"type": "response.completed", "message": message}

    def _check(self, content: str, params: SamplingParams) -> None:
        """Raises what is wrong with a message, whatever its session."""
        if len(content) > self._max_message_chars:
            raise TooLarge(
                f"content has {len(content)} characters, the limit is {self._max_message_chars}: "
                "upload a long text as a document", param="content",
            )  # fmt: skip
        vocabulary = self._engine.model.memory.vocab_size
        for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            for token in tokens:
                if token >= vocabulary:
                    raise InvalidRequest(
                        f"{name}: token id {token} is not below the vocabulary's {vocabulary}", param=name
                    )

    async def _recall(self, place: _Place, content: str, recall: Recall) -> list[Passage]:
        """The passages of the session's documents that a question is about, the best first."""
        documents = place.session.documents
        if not recall.passages or not documents:
            return []
        words = words_of(content, place.asked)
        return await self._passages.search(documents, words, recall.passages) if words else []

    def _prompt(
        self, place: _Place, state: MemoryState, content: str, found: list[Passage], recall: Recall
    ) -> tuple[list[int], list[dict[str, Any]], int | None]:
        """The message's tokens, the passages that its answer can rest on, and what it looks at besides (`Answer.newest`)."""
        memory, chat, tokenizer = self._engine.model.memory, self._engine.model.chat, self._engine.model.tokenizer
        session = place.session
        seen = tokenizer.decode([*memory.kept(state)[-BESIDE:], *session.open]) if found else ""

        def count(text: str) -> int:
            return len(tokenizer.encode(text))

        evidence, text = choose(found, seen, recall.tokens, count, self._template)
        # Without a trained memory, what the passages don't hold nothing holds.
        if (
            not evidence
            and recall.passages
            and session.documents
            and asks(content)
            and self._engine.model.trained is None
        ):
            text = self._template.nothing if count(self._template.nothing) <= recall.tokens else ""
        prompt = [*self._before(place), *tokenizer.encode(text), *tokenizer.encode(content), *chat.ask]
        return prompt, [evidence_view(passage) for passage in evidence], BESIDE if evidence or text else None

    def _before(self, place: _Place) -> list[int]:
        """What stands between all that the session has read and the words of the question."""
        chat, encode = self._engine.model.chat, self._engine.model.tokenizer.encode
        lead = chat.turn if place.session.messages else chat.separator if place.session.position else chat.head
        tokens: list[int] = []
        for said in place.earlier:
            behind = {"system": chat.separator, "user": chat.ask, "assistant": chat.turn}[said.role]
            if said.role == "system" and not place.session.position and chat.system is not None:
                lead, behind = chat.system
            tokens += [*lead, *encode(said.content)]
            lead = behind
        return [*tokens, *lead]

    @asynccontextmanager
    async def _in_session(self, turn: Turn, session_id: str, content: str) -> AsyncIterator[_Place]:
        """The session, ours as long as the context lasts."""
        # A session that cannot be talked to says why before it says that it is busy.
        await self.require_ready(await self._sessions.get(session_id))
        async with self._lease(turn, session_id) as lease:
            session = await self._sessions.get(session_id, with_state=True)
            await self.require_ready(session)
            # Only what is looked for in documents depends on the question before.
            before = await self._sessions.messages(session.id, last=2) if session.documents and session.messages else []

            async def keep(message: Event, finished: Finished) -> None:
                await self._commit(session, lease, content, message, finished)

            yield _Place(session, (), before[0]["content"] if before else None, keep)

    @asynccontextmanager
    async def _in_chat(self, documents: Sequence[str], said: Sequence[Said]) -> AsyncIterator[_Place]:
        """The dialogue up to the last answer after which it is known how it stood, or its documents."""
        model = self._engine.model
        if documents:  # also if the dialogue is known: what was deleted is not talked about
            await self._documents.ensure_reading(model.fingerprint, documents)
        points = digests(model.fingerprint, documents, said)
        answered = [n for n in reversed(range(len(said) - 1)) if said[n].role == "assistant"]
        found = await self._chats.find([points[n] for n in answered]) if answered else None
        session = found[1] if found is not None else await self._fresh(documents)
        earlier = said[answered[found[0]] + 1 : -1] if found is not None else said[:-1]

        async def keep(message: Event, finished: Finished) -> None:
            point = digests(model.fingerprint, documents, [*said, Said("assistant", message["content"])])[-1]
            written = await self._written(session, finished)
            try:
                await self._chats.keep(point, session, **written, messages=len(said) + 1)
            except RedisError as error:  # the answer is whole all the same; going on from it costs more
                log.warning("a chat was not kept: %s", error)

        asked = next((message.content for message in reversed(said[:-1]) if message.role == "user"), None)
        yield _Place(session, earlier, asked, keep)

    async def _fresh(self, documents: Sequence[str]) -> Session:
        """A session over `documents` that nobody has talked to, and that is stored nowhere."""
        model = self._engine.model
        fields = Session.fields("", model.fingerprint, model.name, documents)
        session = Session.of({name.encode(): str(value).encode() for name, value in fields.items()})
        if session.reading is None:
            return session
        reading = await self._documents.reading(session.reading, with_state=True)
        if reading is None or reading.status != "ready":
            raise _unread(reading, "this chat", "messages")
        return replace(
            session,
            started=True,
            state=reading.state,
            open=reading.cursor.open,
            position=reading.cursor.position,
        )

    async def _written(self, session: Session, finished: Finished) -> dict[str, Any]:
        """What is stored of `session` behind an answer."""
        return {
            "state": await asyncio.to_thread(encode_state, finished.state, self._engine.model.fingerprint),
            "state_bytes": finished.state.nbytes,
            "state_digest": await asyncio.to_thread(finished.state.digest),
            "open": finished.open,
            "position": session.position + finished.prompt + finished.tokens,
        }

    async def _commit(
        self, session: Session, lease: Lease, content: str, message: dict[str, Any], finished: Finished
    ) -> None:
        question = {
            "id": new_id("msg"), "object": "message", "role": "user", "content": content,
            "created_at": message["created_at"],
        }  # fmt: skip
        kept = {key: value for key, value in message.items() if key not in ("logprobs", "session")}
        written = await self._written(session, finished)
        await self._sessions.commit(session, lease, **written, messages=[question, kept])

    @asynccontextmanager
    async def _lease(self, turn: Turn, session_id: str) -> AsyncIterator[Lease]:
        """The session's lease, renewed meanwhile and given back. If it is lost the answer ends, and its commit fails."""
        lease = await self._sessions.acquire(session_id)

        async def keep() -> None:
            renewed = time.monotonic()
            while time.monotonic() - renewed < self._lease_seconds:
                await asyncio.sleep(self._lease_seconds / 3)
                try:
                    if not await self._sessions.renew(lease):
                        break
                    renewed = time.monotonic()
                except RedisError:  # away: the lease is ours for as long as it was last promised
                    continue
            turn.cancel()

        keeper = asyncio.create_task(keep())
        try:
            yield lease
        finally:
            keeper.cancel()
            with contextlib.suppress(RedisError):  # it expires by itself; what was committed is committed
                await asyncio.shield(self._sessions.release(lease))


def _unread(reading: Reading | None, who: str, param: str) -> ServerError:
    """Why `who` cannot be talked to, whose documents' `reading` has not come to its end."""
    if reading is None:
        return DocumentFailed(f"a document of {who} was deleted before it was read", param="documents")
    if reading.status == "failed":
        return DocumentFailed(
            f"a document of {who} could not be read: {(reading.error or {}).get('message')}", param="documents"
        )
    return DocumentNotReady(f"the documents of {who} are still being read", param=param, retry_after=1)
