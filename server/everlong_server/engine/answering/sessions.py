"""`SessionTurns`: sends messages to sessions, with one writer at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from everlong_models import SamplingParams
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.prompt import LINE_BREAK
from everlong_server.engine.answering.turn import Turn, TurnRunner
from everlong_server.engine.answering.turn_context import (
    MOST_EXCHANGES,
    Exchange,
    TurnContext,
    load_state,
    newest_exchanges,
)
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import Conflict, DocumentFailed, DocumentNotReady, ServerError, StateUnusable
from everlong_server.observability.metrics import Metrics
from everlong_server.store.documents import Documents
from everlong_server.store.messages import AnswerMessage, evidence_json
from everlong_server.store.records import Message, Reading, Session, now, reading_id
from everlong_server.store.sessions import Lease, Sessions, unchanged
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.turns import RunningTurn
from everlong_server.tasks import cancel

_EXCHANGES = MOST_EXCHANGES + 1
"""Number of the newest exchanges among which questions are looked for. The newest one may be thanks."""
_PUBLISH_SECONDS = 0.5
"""Interval at which the text of a detached answer is stored, and at which it is checked whether a client has cancelled it."""


class SessionTurns:
    """Sends messages to sessions."""

    def __init__(
        self,
        turns: TurnRunner,
        engine: Engine,
        sessions: Sessions,
        documents: Documents,
        metrics: Metrics,
        *,
        lease_seconds: float,
    ) -> None:
        self._turns = turns
        self._engine = engine
        self._sessions = sessions
        self._documents = documents
        self._metrics = metrics
        self._lease_seconds = lease_seconds

    async def state_of(self, session: Session) -> str:
        """Return whether the session can take messages: "ready", "reading" or "failed"."""
        if session.started or session.reading is None:
            return "ready"
        reading = await self._documents.readings.get(session.reading)
        if reading is None or reading.status == "failed":
            return "failed"
        return "reading"

    async def require_ready(self, session: Session, *, searching: bool = False) -> None:
        """Raise the reason if the session cannot take messages.

        `searching`: the message searches the documents, so it need not wait until they are read.
        """
        model = self._engine.model
        if session.model != model.fingerprint:
            raise StateUnusable(
                f"session {session.id!r} was created with model {session.model_name!r} (fingerprint {session.model[:12]}…); "
                f"this server serves {model.name!r} ({model.fingerprint[:12]}…): create a new session", param="session_id",
            )  # fmt: skip
        if session.started or session.reading is None:
            return
        reading = await self._documents.readings.get(session.reading)
        if not (searching and reading is not None and reading.status in ("queued", "reading")):
            raise not_ready_error(reading, f"session {session.id!r}", "session_id")

    async def send(
        self,
        session_id: str,
        content: str,
        params: SamplingParams,
        recall: Recall,
        *,
        turn: Turn | None = None,
        instructions: str | None = None,
        detached: bool = False,
        continues: bool | str = False,
    ) -> Turn:
        """Return an admitted turn, whose first event is available. Raises every refusal here, before any event.

        `turn`: see `TurnRunner.begin`. `instructions`: see `TurnContext`. `detached`: a disconnect of the client does not end the turn, so
        other clients can see and cancel it. `continues`: extend the last answer, which reached its limit of tokens, instead of answering
        `content`. Raises `Conflict` if there is none, or if it has another id than `continues`.
        """
        return await self._turns.begin(
            lambda turn: self._context(
                turn, session_id, content, instructions, searching=recall.passages > 0, detached=detached,
                continues=continues,
            ),
            content, params, recall, turn=turn,
        )  # fmt: skip

    @asynccontextmanager
    async def _context(
        self, turn: Turn, session_id: str, content: str, instructions: str | None, *, searching: bool, detached: bool,
        continues: bool | str,
    ) -> AsyncIterator[TurnContext]:  # fmt: skip
        """Lock the session for the turn, and yield its context.

        Until the documents are read, the memory is empty and the messages are prefilled anew for each answer. The memory reads
        them after the documents, with the first message that finds these read.
        """
        # Raise why the session cannot take messages before the error that it is busy.
        await self.require_ready(await self._sessions.get(session_id), searching=searching)
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(self._lease(turn, session_id))
            pair = await self._to_continue(session_id, continues) if continues else []
            if detached:
                question = pair[0]["content"] if pair else content
                await stack.enter_async_context(self._published(turn, session_id, question, continues=bool(pair)))
            session = await self._sessions.get(session_id, with_state=True)
            await self.require_ready(session, searching=searching)
            progress = await self._progress(session)
            state = await asyncio.to_thread(load_state, session, self._engine.model)
            # Only the search in documents needs the previous question.
            needed = max(session.unread, 2 * _EXCHANGES if session.documents and session.messages else 0)
            last = await self._sessions.messages(session.id, last=needed) if needed else []
            earlier = [Message(m["role"], m["content"]) for m in last]
            unread = earlier[len(earlier) - session.unread :]

            first, ending, added = _stored_answer(session, pair[1]) if pair else None, list[int](), ""

            async def commit(answer: AnswerMessage, snapshot: Snapshot) -> None:
                kept = snapshot if progress is None else None
                if first is None:
                    await self._sessions.commit(session, lease, kept, content, answer)
                else:
                    await self._sessions.commit(session, lease, kept, None, answer, replaces=first.id)

            read = replace(session, messages=session.messages - session.unread)
            if pair:
                exchanges = [Exchange(pair[0]["content"], pair[1]["content"])]
            else:  # on a thread: messages can be long
                exchanges = await asyncio.to_thread(newest_exchanges, earlier)
            if first is not None and not unread:
                if read.snapshot.open:
                    read, ending = _without_last_token(read)
                else:
                    added = LINE_BREAK
            yield TurnContext(read, state, unread, exchanges, commit, progress, instructions, first, ending, added)

    async def _to_continue(self, session_id: str, answer: bool | str) -> list[dict[str, Any]]:
        """Return the question and the answer to extend: the last ones. Raises `Conflict` if the answer is complete, or not the one meant.

        `answer`: its id, or True for any.
        """
        pair = await self._sessions.messages(session_id, last=2)
        reason = ""
        if len(pair) < 2 or pair[1].get("finish_reason") != "length":
            reason = "the last one did not reach its limit of tokens"
        elif isinstance(answer, str) and answer != pair[1]["id"]:
            reason = f"the last one is {pair[1]['id']!r}, not {answer!r}"
        if reason:
            raise Conflict(
                f"session {session_id!r} has no answer to continue: {reason}",
                param="continue_answer",
                code="nothing_to_continue",
            )
        return pair

    async def _progress(self, session: Session) -> float | None:
        """Return the share of the documents' bytes that was read, 0 to 1; None if the session has a memory or needs none."""
        if session.started or session.reading is None:
            return None
        read = total = 0
        for n, id in enumerate(session.documents, 1):
            document = await self._documents.get(id)
            reading = await self._documents.readings.get(reading_id(session.model, session.documents[:n]))
            total += document.bytes
            if reading is not None:
                read += (
                    document.bytes if reading.status == "ready" else max(0, reading.cursor.bytes - document.text_offset)
                )
        return read / total if total else 1.0

    @asynccontextmanager
    async def _published(self, turn: Turn, session_id: str, question: str, *, continues: bool) -> AsyncIterator[None]:
        """Store the turn and its text so far until it ends. Cancels it if a client has asked for that or deleted the session."""
        running, started = self._sessions.turns, now()

        async def publish() -> None:
            evidence = None if turn.evidence is None else [evidence_json(passage) for passage in turn.evidence]
            with contextlib.suppress(RedisError):  # Redis is unavailable, so nobody can have cancelled it
                stored = RunningTurn(turn.id, question, started, evidence, turn.text, continues)
                if not await running.write(session_id, stored):
                    turn.cancel()

        async def keep_publishing() -> None:
            while True:
                await asyncio.sleep(_PUBLISH_SECONDS)
                await publish()

        await publish()
        publishing = asyncio.create_task(keep_publishing())
        try:
            yield
        finally:
            await cancel(publishing)
            with contextlib.suppress(RedisError):  # it expires by itself
                await asyncio.shield(running.remove(session_id, turn.id))

    @asynccontextmanager
    async def _lease(self, turn: Turn, session_id: str) -> AsyncIterator[Lease]:
        """Hold and renew the session's lease, and release it at the end. If it is lost, the turn fails with `Conflict`."""
        lease = await self._sessions.acquire(session_id)

        async def renew() -> None:
            renewed = time.monotonic()
            while time.monotonic() - renewed < self._lease_seconds:
                await asyncio.sleep(self._lease_seconds / 3)
                try:
                    if not await self._sessions.renew(lease):
                        break
                    renewed = time.monotonic()
                except RedisError:  # Redis is unavailable: the lease lasts until it expires
                    continue
            self._metrics.lease_losses.labels("session").inc()
            turn.fail(unchanged(session_id, "the lease was lost"))

        renewal = asyncio.create_task(renew())
        try:
            yield lease
        finally:
            renewal.cancel()
            with contextlib.suppress(RedisError):  # the lease expires by itself
                await asyncio.shield(self._sessions.release(lease))


def _stored_answer(session: Session, message: Mapping[str, Any]) -> AnswerMessage:
    """Return an answer of a session. One that a client has sent may lack most fields."""
    usual = {"session": session.id, "model": session.model_name, "seed": 0, "usage": {}, "evidence": []}
    return AnswerMessage.of(usual | {name: value for name, value in message.items() if value is not None})


def _without_last_token(session: Session) -> tuple[Session, list[int]]:
    """Return the session as it was before the last token of its open segment, and that token."""
    snapshot = session.snapshot
    before = replace(snapshot, open=snapshot.open[:-1], position=snapshot.position - 1)
    return replace(session, snapshot=before), list(snapshot.open[-1:])


def not_ready_error(reading: Reading | None, who: str, param: str) -> ServerError:
    """Return the error for a session or chat `who` whose documents' `reading` is not ready."""
    if reading is None:
        return DocumentFailed(f"a document of {who} was deleted before it was read", param="documents")
    if reading.status == "failed":
        return DocumentFailed(
            f"a document of {who} could not be read: {(reading.error or {}).get('message')}", param="documents"
        )
    return DocumentNotReady(f"the documents of {who} are still being read; retry later", param=param, retry_after=1)
