"""`ChatTurns`: what callers say in full each time. An answer goes on from where the dialogue is known to have stood."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from redis.exceptions import RedisError

from everlong_models import MemoryState, SamplingParams
from everlong_server.engine.answering.grounding import Recall
from everlong_server.engine.answering.sessions import unread
from everlong_server.engine.answering.turn import Event, Turn, TurnContext, TurnRunner, Written, load_state
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import StateUnusable
from everlong_server.store.chats import Chats, digests
from everlong_server.store.documents import Documents
from everlong_server.store.records import Message, Session

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatCheckpoint:
    """Where a dialogue stood after an answer: its `session` under its digest, whose memory is `state`. `asked`: the
    question of that answer."""

    session: Session
    state: MemoryState
    asked: str | None


class ChatTurns:
    """Answers the last message of chat_turns that their callers keep."""

    def __init__(self, turns: TurnRunner, engine: Engine, chats: Chats, documents: Documents) -> None:
        self._turns = turns
        self._engine = engine
        self._chats = chats
        self._documents = documents

    async def answer(
        self,
        documents: Sequence[str],
        said: Sequence[Message],
        params: SamplingParams,
        recall: Recall,
        *,
        behind: ChatCheckpoint | None = None,
        kept: Callable[[Event, Session], Awaitable[None]] | None = None,
    ) -> Turn:
        """A turn for the last message of a dialogue about `documents`, all of which is `said` by the caller; or all
        that comes `behind` the place where it stood.

        Admitted: its first event is at hand. Where it is known how the dialogue stood after an answer, it goes on from
        there; the rest is read now. `kept`: told of the complete answer and where the dialogue stands then, before the
        caller is.
        """
        place = self._place(documents, said, behind, kept)
        return await self._turns.begin(lambda _: place, said[-1].content, params, recall)

    @asynccontextmanager
    async def _place(
        self,
        documents: Sequence[str],
        said: Sequence[Message],
        behind: ChatCheckpoint | None,
        kept: Callable[[Event, Session], Awaitable[None]] | None,
    ) -> AsyncIterator[TurnContext]:
        """The dialogue up to the last answer after which it is known how it stood, or its documents."""
        fingerprint = self._engine.model.fingerprint
        asked = next((message.content for message in reversed(said[:-1]) if message.role == "user"), None)
        if behind is not None:
            after, session, state, heard = behind.session.id, behind.session, behind.state, 0
            asked = asked or behind.asked
        else:
            if documents:  # also if the dialogue is known: what was deleted is not talked about
                await self._documents.readings.ensure(fingerprint, documents)
            after = None
            points = digests(fingerprint, documents, said)
            session, state, heard = await self._known(points, said) or await self._fresh(documents)

        async def keep(message: Event, written: Written) -> None:
            point = digests(fingerprint, documents, [*said, Message("assistant", message["content"])], after)[-1]
            stands = session.after_answer(point, session.messages + len(said) - heard + 1, **written)
            try:
                await self._chats.keep(stands)
            except RedisError as error:  # the answer is whole all the same; going on from it costs more
                log.warning("a chat was not kept: %s", error)
            if kept is not None:
                await kept(message, stands)

        yield TurnContext(session, state, said[heard:-1], asked, keep)

    async def _known(self, points: Sequence[str], said: Sequence[Message]) -> tuple[Session, MemoryState, int] | None:
        """Where the dialogue stood after the last answer of which that is known, and how many messages that was after."""
        answered = [n for n in reversed(range(len(said) - 1)) if said[n].role == "assistant"]
        while answered and (found := await self._chats.find([points[n] for n in answered])) is not None:
            index, session = found
            n, answered = answered[index], answered[index + 1 :]
            try:
                return session, await asyncio.to_thread(load_state, session, self._engine.model), n + 1
            except StateUnusable as error:
                log.warning("a chat is read again: %s", error)
                await self._chats.drop(points[n])
        return None

    async def _fresh(self, documents: Sequence[str]) -> tuple[Session, MemoryState, int]:
        """A session over `documents` that nobody has talked to, and that is stored nowhere."""
        model = self._engine.model
        fields = Session.fields("", model.fingerprint, model.name, documents)
        session = Session.of({name.encode(): str(value).encode() for name, value in fields.items()})
        if session.reading is not None:
            reading = await self._documents.readings.get(session.reading, with_state=True)
            if reading is None or reading.status != "ready":
                raise unread(reading, "this chat", "messages")
            session = replace(
                session,
                started=True,
                state=reading.state,
                open=reading.cursor.open,
                position=reading.cursor.position,
            )
        return session, await asyncio.to_thread(load_state, session, model), 0
