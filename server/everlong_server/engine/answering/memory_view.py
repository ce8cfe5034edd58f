"""`MemoryViews`: what a session's memory holds, how full it is and what it attends to, in words of its documents.

A look changes nothing and needs no lease: it is of the session as it was last committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from everlong_models import MemoryView
from everlong_server.engine.answering.sessions import SessionTurns
from everlong_server.engine.answering.turn import load_state
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.token_offsets import Span, TokenOffsets
from everlong_server.errors import NotFound
from everlong_server.store.documents import Documents
from everlong_server.store.records import Session, reading_id
from everlong_server.store.sessions import Sessions
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts.passages import Passage


@dataclass(frozen=True, slots=True)
class Extent:
    """The tokens [`start`, `end`) of the context that are a document's."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """`passages`: the text of the view's phrases, as far as they are of documents that are there."""

    session: Session
    view: MemoryView
    documents: list[Extent]
    passages: dict[Span, Passage]


class MemoryViews:
    """Looks at the memories of sessions."""

    def __init__(
        self,
        engine: Engine,
        session_turns: SessionTurns,
        sessions: Sessions,
        documents: Documents,
        token_offsets: TokenOffsets,
        quota: Quota,
    ) -> None:
        self._engine = engine
        self._session_turns = session_turns
        self._sessions = sessions
        self._documents = documents
        self._token_offsets = token_offsets
        self._quota = quota

    async def look(self, session_id: str) -> SessionMemory:
        """Raises `NotFound`, and whatever a message to the session would be refused with, but for its being busy."""
        with self._engine.admit():
            async with self._quota.stream(self._engine.usual_seconds):
                return await self._look(session_id)

    async def _look(self, session_id: str) -> SessionMemory:
        session = await self._sessions.get(session_id, with_state=True)
        await self._session_turns.require_ready(session)
        state = await asyncio.to_thread(load_state, session, self._engine.model)
        view = await self._engine.look(
            state, list(session.open), session.position - len(session.open), self._quota.tenant
        )
        extents = await self._extents(session)
        spans = {(phrase.start, phrase.end) for layer in view.layers for phrase in layer.phrases}
        return SessionMemory(session, view, extents, await self._passages(extents, spans))

    async def _extents(self, session: Session) -> list[Extent]:
        """Where the session's documents are; of one that was deleted nobody knows."""
        extents = []
        for n, document in enumerate(session.documents, 1):
            reading = await self._documents.readings.get(reading_id(session.model, session.documents[:n]))
            if reading is not None and reading.status == "ready":
                end = reading.cursor.position
                extents.append(Extent(document, end - reading.cursor.tokens, end))
        return extents

    async def _passages(self, extents: Sequence[Extent], spans: Collection[Span]) -> dict[Span, Passage]:
        """The words of `spans`, in the documents that are there."""
        passages: dict[Span, Passage] = {}
        for extent in extents:
            inside = {span: own for span in spans if (own := _inside(span, extent)) is not None}
            if not inside:
                continue
            try:
                document = await self._documents.get(extent.document)
            except NotFound:  # deleted since
                continue
            found = await self._token_offsets.passages(document, list(inside.values()))
            # A phrase that reaches into two documents is the later one's, which has its end.
            passages |= {span: found[own] for span, own in inside.items() if own in found}
        return passages


def _inside(span: Span, extent: Extent) -> Span | None:
    """The part of `span` that is the document's, counted from its beginning; None if there is none."""
    start, end = max(span[0], extent.start), min(span[1], extent.end)
    return (start - extent.start, end - extent.start) if start < end else None
