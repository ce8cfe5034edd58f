"""`SessionTurns`: messages to sessions, one writer at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.exceptions import RedisError

from everlong_models import SamplingParams
from everlong_server.engine.answering.grounding import Recall
from everlong_server.engine.answering.turn import Event, Turn, TurnContext, TurnRunner, Written, load_state
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import DocumentFailed, DocumentNotReady, ServerError, StateUnusable
from everlong_server.observability.metrics import Metrics
from everlong_server.store.documents import Documents
from everlong_server.store.records import Reading, Session, new_id
from everlong_server.store.sessions import Lease, Sessions, unchanged


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
        """`ready`, `reading` or `failed`: whether the session can be talked to. Raises nothing."""
        if session.started or session.reading is None:
            return "ready"
        reading = await self._documents.readings.get(session.reading)
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
        raise unread(await self._documents.readings.get(session.reading), f"session {session.id!r}", "session_id")

    async def send(
        self, session_id: str, content: str, params: SamplingParams, recall: Recall, *, id: str | None = None
    ) -> Turn:
        """A turn that has been admitted: its first event is at hand. Every refusal is raised here, before any event.

        `id`: of the answer.
        """
        return await self._turns.begin(
            lambda turn: self._place(turn, session_id, content), content, params, recall, id=id
        )

    @asynccontextmanager
    async def _place(self, turn: Turn, session_id: str, content: str) -> AsyncIterator[TurnContext]:
        """The session, ours as long as the context lasts."""
        # A session that cannot be talked to says why before it says that it is busy.
        await self.require_ready(await self._sessions.get(session_id))
        async with self._lease(turn, session_id) as lease:
            session = await self._sessions.get(session_id, with_state=True)
            await self.require_ready(session)
            state = await asyncio.to_thread(load_state, session, self._engine.model)
            # Only what is looked for in documents depends on the question before.
            before = await self._sessions.messages(session.id, last=2) if session.documents and session.messages else []

            async def keep(message: Event, written: Written) -> None:
                question = {
                    "id": new_id("msg"), "object": "message", "role": "user", "content": content,
                    "created_at": message["created_at"],
                }  # fmt: skip
                answer = {key: value for key, value in message.items() if key not in ("logprobs", "session")}
                await self._sessions.commit(session, lease, **written, messages=[question, answer])

            yield TurnContext(session, state, (), before[0]["content"] if before else None, keep)

    @asynccontextmanager
    async def _lease(self, turn: Turn, session_id: str) -> AsyncIterator[Lease]:
        """The session's lease, renewed meanwhile and given back. If it is lost the answer ends with `Conflict`."""
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
            self._metrics.lease_losses.labels("session").inc()
            turn.lose(unchanged(session_id, "the lease was lost"))

        keeper = asyncio.create_task(keep())
        try:
            yield lease
        finally:
            keeper.cancel()
            with contextlib.suppress(RedisError):  # it expires by itself; what was committed is committed
                await asyncio.shield(self._sessions.release(lease))


def unread(reading: Reading | None, who: str, param: str) -> ServerError:
    """Why `who` cannot be talked to, whose documents' `reading` has not come to its end."""
    if reading is None:
        return DocumentFailed(f"a document of {who} was deleted before it was read", param="documents")
    if reading.status == "failed":
        return DocumentFailed(
            f"a document of {who} could not be read: {(reading.error or {}).get('message')}", param="documents"
        )
    return DocumentNotReady(f"the documents of {who} are still being read", param=param, retry_after=1)
