"""`ChatTurns`: answers chats, whose callers send all messages each time. An answer resumes from the last stored checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from redis.exceptions import RedisError

from everlong_models import MemoryState, SamplingParams
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.sessions import not_ready_error
from everlong_server.engine.answering.tools import ToolUse
from everlong_server.engine.answering.turn import Turn, TurnRunner
from everlong_server.engine.answering.turn_context import Exchange, TurnContext, load_state, newest_exchanges
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import StateUnusable
from everlong_server.store.chats import Chats, digests
from everlong_server.store.documents import Documents
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Message, Session, now
from everlong_server.store.snapshot import Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatCheckpoint:
    """A chat after an answer: its `session`, whose id is the chat's digest, and memory `state`. `question`: the message that was answered, with `answer`."""

    session: Session
    state: MemoryState
    question: str | None
    answer: str | None = None


class ChatTurns:
    """Answers the last message of chats whose messages their callers keep."""

    def __init__(self, turns: TurnRunner, engine: Engine, chats: Chats, documents: Documents) -> None:
        self._turns = turns
        self._engine = engine
        self._chats = chats
        self._documents = documents

    async def answer(
        self,
        documents: Sequence[str],
        messages: Sequence[Message],
        params: SamplingParams,
        recall: Recall,
        *,
        tools: ToolUse | None = None,
        checkpoint: ChatCheckpoint | None = None,
        on_complete: Callable[[AnswerMessage, Session], Awaitable[None]] | None = None,
        field: str = "messages",
        system: str | None = None,
        id: str | None = None,
    ) -> Turn:
        """Return an admitted turn for the last of `messages`, in a chat about `documents`. Its first event is available.

        `messages`: the whole chat, or those after `checkpoint`. Without one, the chat resumes from the last of its answers
        whose state is stored. `tools`: for this answer; the model must have a tool format. `on_complete`: called with the complete
        answer and the session after it, before the caller has the last event. `field`: the request's field that names the documents. `system`: the
        instructions that hold for the chat; None: the system messages of `messages`. `id`: that of the answer; None: a new one.
        """
        context = self._context(documents, messages, recall, tools, checkpoint, on_complete, field, system=system)
        return await self._turns.begin(lambda _: context, messages[-1].content, params, recall, id=id, tools=tools)

    async def count_tokens(
        self,
        documents: Sequence[str],
        messages: Sequence[Message],
        recall: Recall,
        tools: ToolUse | None = None,
        *,
        checkpoint: ChatCheckpoint | None = None,
        field: str = "messages",
        system: str | None = None,
    ) -> int:
        """Return the number of tokens of the prompt that `answer` would make with the same arguments."""
        context = self._context(documents, messages, recall, tools, checkpoint, None, field, system=system)
        return await self._turns.count_tokens(context, messages[-1].content, recall, tools)

    @asynccontextmanager
    async def _context(
        self,
        documents: Sequence[str],
        messages: Sequence[Message],
        recall: Recall,
        tools: ToolUse | None,
        checkpoint: ChatCheckpoint | None,
        on_complete: Callable[[AnswerMessage, Session], Awaitable[None]] | None,
        field: str = "messages",
        *,
        system: str | None = None,
    ) -> AsyncIterator[TurnContext]:
        """Yield the context of the last message: the chat after its last stored answer, or its documents."""
        fingerprint, format = self._engine.model.fingerprint, self._engine.model.tools
        exchanges = await asyncio.to_thread(newest_exchanges, messages[:-1], format.question_of if format else str)
        shown = format.definitions(tools.shown) if format and tools and tools.shown else ""
        if checkpoint is not None:
            after, session, state, included = checkpoint.session.id, checkpoint.session, checkpoint.state, 0
            newest = exchanges[-1] if exchanges else Exchange(checkpoint.question or "", "")
            if checkpoint.question and not newest.answer:
                exchanges = [*exchanges[:-1], Exchange(newest.question, checkpoint.answer or "")]
        else:
            if documents:  # checked even if the chat is stored, since deleted documents must not be answered about
                await self._documents.readings.ensure(fingerprint, documents)
            after = None
            chat_ids = digests(fingerprint, documents, messages, tools=shown)
            session, state, included = await self._stored(chat_ids, messages) or await self._fresh(documents, field)

        async def commit(answer: AnswerMessage, snapshot: Snapshot) -> None:
            text = format.answer_text(answer.content, answer.tool_calls) if format else answer.content
            chat_id = digests(fingerprint, documents, [*messages, Message("assistant", text)], after, shown)[-1]
            count = session.messages + len(messages) - included + 1
            next_session = replace(session, id=chat_id, snapshot=snapshot, messages=count, created_at=now())
            # The state must not outlive a document whose passages it holds, but a chat knows those of its session only. A
            # checkpoint may hold passages of earlier searches. A response stores its own state.
            if not recall.also_in and checkpoint is None:
                try:
                    await self._chats.keep(next_session)
                except RedisError as error:  # the answer is complete; continuing the chat will only cost more
                    log.warning("cannot store the state of a chat; its next request prefills it again: %s", error)
            if on_complete is not None:
                await on_complete(answer, next_session)

        told = [message.content for message in messages if message.role == "system"]
        system = system or "\n\n".join(told) or None
        yield TurnContext(session, state, messages[included:-1], exchanges, commit, system=system)

    async def _stored(
        self, chat_ids: Sequence[str], messages: Sequence[Message]
    ) -> tuple[Session, MemoryState, int] | None:
        """Return the chat after its last answer whose state is stored, and the number of messages that it includes."""
        answers = [n for n in reversed(range(len(messages) - 1)) if messages[n].role == "assistant"]
        while answers and (hit := await self._chats.find([chat_ids[n] for n in answers])) is not None:
            index, session = hit
            n, answers = answers[index], answers[index + 1 :]
            try:
                return session, await asyncio.to_thread(load_state, session, self._engine.model), n + 1
            except StateUnusable as error:
                log.warning(
                    "cannot use the stored state of a chat; prefilling it again from an earlier message: %s", error
                )
                await self._chats.drop(chat_ids[n])
        return None

    async def _fresh(self, documents: Sequence[str], field: str) -> tuple[Session, MemoryState, int]:
        """Return a new session over `documents`, which is not stored, its state, and 0 for the number of its messages."""
        model = self._engine.model
        session = Session("", model.fingerprint, model.name, tuple(documents))
        if session.reading is not None:
            reading = await self._documents.readings.get(session.reading, with_state=True)
            if reading is None or reading.status != "ready":
                raise not_ready_error(reading, "this conversation", field)
            session = replace(session, snapshot=reading.snapshot)
        return session, await asyncio.to_thread(load_state, session, model), 0
