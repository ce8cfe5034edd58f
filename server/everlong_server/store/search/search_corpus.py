"""`SearchCorpus`: texts that are indexed and searched without a model or Redis, for evaluations and benchmarks."""

from __future__ import annotations

from everlong_models.text.embedder import Embedder
from everlong_server.errors import NotFound
from everlong_server.store.records import Document, new_id, now
from everlong_server.store.search.passages import Passages
from everlong_server.store.search.vectors import VectorBuilds, Vectors
from everlong_server.store.texts.blobs import Blobs


class SearchCorpus:
    """A set of texts in a blob store. Its `passages` searches them. Implements `DocumentLookup` in memory."""

    def __init__(self, blobs: Blobs, embedder: Embedder | None = None) -> None:
        """`embedder`: None to search by words alone."""
        self.blobs = blobs
        vectors = None if embedder is None else Vectors(blobs, self, embedder, VectorBuilds())
        self.passages = Passages(blobs, self, vectors)
        self._documents: dict[str, Document] = {}

    async def get(self, document_id: str) -> Document:
        if document_id not in self._documents:
            raise NotFound(document_id)
        return self._documents[document_id]

    async def put(self, text: str, filename: str | None = None, format: str | None = None) -> Document:
        document = Document(new_id("doc"), filename, len(text.encode()), 0, now(), format=format)
        writer = await self.blobs.create(document.id)
        await writer.write(text.encode())
        await writer.commit()
        self._documents[document.id] = document
        return document

    async def remove(self, document: Document) -> None:
        await self.passages.delete(document.id)
        await self.blobs.delete(document.id)
        del self._documents[document.id]
