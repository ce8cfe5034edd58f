"""`MemoryViews`: shows what a session's memory holds, how full it is and which phrases of its documents it attends to.

A view shows the session as last committed. It changes nothing and needs no lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from everlong_models import MemoryView
from everlong_server.engine.admission import admitted
from everlong_server.engine.answering.sessions import SessionTurns
from everlong_server.engine.answering.turn_context import load_state
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.token_offsets import Span, TokenOffsets
from everlong_server.errors import NotFound
from everlong_server.store.documents import Documents
from everlong_server.store.records import Session, reading_id
from everlong_server.store.sessions import Sessions
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts.passage import Passage


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """The tokens [`start`, `end`) of the session's context that belong to a document."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """A view of a session's memory. `passages`: the text of the view's phrases, by token span, if their document still exists."""

    session: Session
    view: MemoryView
    documents: list[DocumentSpan]
    passages: dict[Span, Passage]


class MemoryViews:
    """Makes views of the memories of sessions."""

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

    async def view(self, session_id: str) -> SessionMemory:
        """Return a view of the session's memory. Raises `NotFound` and the errors of a message to it, except that it is busy."""
        async with admitted(self._engine, self._quota):
            return await self._view(session_id)

    async def _view(self, session_id: str) -> SessionMemory:
        session = await self._sessions.get(session_id, with_state=True)
        await self._session_turns.require_ready(session)
        snapshot, state = session.snapshot, await asyncio.to_thread(load_state, session, self._engine.model)
        view = await self._engine.memory_view(
            state, list(snapshot.open), snapshot.position - len(snapshot.open), self._quota.tenant
        )
        document_spans = await self._document_spans(session)
        spans = {(phrase.start, phrase.end) for layer in view.layers for phrase in layer.phrases}
        return SessionMemory(session, view, document_spans, await self._passages(document_spans, spans))

    async def _document_spans(self, session: Session) -> list[DocumentSpan]:
        """Return the token ranges of the session's documents. A deleted document has none."""
        document_spans = []
        for n, document in enumerate(session.documents, 1):
            reading = await self._documents.readings.get(reading_id(session.model, session.documents[:n]))
            if reading is not None and reading.status == "ready":
                end = reading.snapshot.position
                document_spans.append(DocumentSpan(document, end - reading.cursor.tokens, end))
        return document_spans

    async def _passages(self, document_spans: Sequence[DocumentSpan], spans: Collection[Span]) -> dict[Span, Passage]:
        """Return the text of `spans`, in the documents that still exist."""
        passages: dict[Span, Passage] = {}
        for document_span in document_spans:
            inside = {span: local for span in spans if (local := _overlap(span, document_span)) is not None}
            if not inside:
                continue
            try:
                document = await self._documents.get(document_span.document)
            except NotFound:  # deleted in the meantime
                continue
            texts = await self._token_offsets.passages(document, list(inside.values()))
            # A phrase that spans two documents belongs to the later one, which has its end.
            passages |= {span: texts[local] for span, local in inside.items() if local in texts}
        return passages


def _overlap(span: Span, document_span: DocumentSpan) -> Span | None:
    """Return the part of `span` in the document, counted from the document's first token; None if there is none."""
    start, end = max(span[0], document_span.start), min(span[1], document_span.end)
    return (start - document_span.start, end - document_span.start) if start < end else None
