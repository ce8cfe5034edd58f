"""`Shelf`: documents whose passages are searched; and a story to put on it."""

from __future__ import annotations

import asyncio

from everlong_server.engine.answering.evidence.grounding import select_passages
from everlong_server.engine.answering.search.question import search_query
from everlong_server.errors import NotFound
from everlong_server.store.records import Document, new_id
from everlong_server.store.search.passages import Passages
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage
from tests.tinymodel import STORY

ALICE = STORY.read_text()


class Shelf:
    """Documents in a folder, or anywhere that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.blobs = Blobs(url)
        self.documents: dict[str, Document] = {}
        self.passages = Passages(self.blobs, self)

    async def get(self, id: str) -> Document:
        if id not in self.documents:
            raise NotFound(id)
        return self.documents[id]

    def add(self, text: str) -> str:
        async def write() -> Document:
            document = Document(new_id("doc"), None, len(text.encode()), 0, 0.0)
            writer = await self.blobs.create(document.id)
            await writer.write(text.encode())
            await writer.commit()
            return document

        document = asyncio.run(write())
        self.documents[document.id] = document
        return document.id

    def ask(self, question: str, *documents: str, before: str | None = None, limit: int = 8) -> list[Passage]:
        """Return the passages that a question is answered with, without a limit of tokens."""
        query = search_query(question, before)
        if query is None:
            return []
        found = asyncio.run(self.passages.find(documents or tuple(self.documents), query, limit))
        return select_passages(found.passages, "", 10_000, len)[0]
