"""`SearchCorpus`: texts that are indexed and searched without a model or Redis, for evaluations and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from everlong_models.text.embedder import Embedder
from everlong_server.errors import NotFound
from everlong_server.store.records import Document, new_id, now
from everlong_server.store.search.passages import Passages
from everlong_server.store.search.query import Query
from everlong_server.store.search.vectors import VectorBuilds, Vectors
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage


class SearchCorpus:
    """A set of texts in a blob store. Its `passages` searches them. Implements `DocumentLookup` in memory."""

    def __init__(self, blobs: Blobs, embedder: Embedder | None = None) -> None:
        """`embedder`: None to search by words alone."""
        self.blobs = blobs
        self._vectors = None if embedder is None else Vectors(blobs, self, embedder, VectorBuilds())
        self.passages = Passages(blobs, self, self._vectors)
        self._documents: dict[str, Document] = {}

    async def get(self, document_id: str) -> Document:
        if document_id not in self._documents:
            raise NotFound(document_id)
        return self._documents[document_id]

    async def add(self, text: str, filename: str | None = None, format: str | None = None) -> Document:
        """Store a text, and wait until all of it can be searched."""
        document = await self.put(text, filename, format)
        await self.index(document)
        return document

    async def index(self, document: Document) -> None:
        """Wait until a stored text has its index and vectors."""
        await self.passages.ensure(document)
        if self._vectors is not None:
            await self._vectors.ensure(document)

    async def put(self, text: str, filename: str | None = None, format: str | None = None) -> Document:
        document = Document(new_id("doc"), filename, len(text.encode()), 0, now(), format=format)
        writer = await self.blobs.create(document.id)
        await writer.write(text.encode())
        await writer.commit()
        self._documents[document.id] = document
        return document

    async def search(self, documents: Sequence[str], query: Query, limit: int) -> list[Passage]:
        """Return at most `limit` passages of `documents` for the query."""
        return (await self.passages.find(documents, query, limit)).passages

    async def remove(self, document: Document) -> None:
        await self.passages.delete(document.id)
        await self.blobs.delete(document.id)
        del self._documents[document.id]
