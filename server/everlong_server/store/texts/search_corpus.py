"""`SearchCorpus`: texts that are indexed and searched without a model or Redis, for evaluations and benchmarks."""

from __future__ import annotations

from everlong_server.store.records import Document, new_id, now
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passages import Passages


class SearchCorpus:
    """A set of texts in a blob store. Its `passages` searches them. Implements `DocumentLookup` in memory."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.passages = Passages(blobs, self)
        self._documents: dict[str, Document] = {}

    async def get(self, document_id: str) -> Document:
        return self._documents[document_id]

    async def put(self, text: str) -> Document:
        document = Document(new_id("doc"), None, len(text.encode()), 0, now())
        writer = await self.blobs.create(document.id)
        await writer.write(text.encode())
        await writer.commit()
        self._documents[document.id] = document
        return document

    async def remove(self, document: Document) -> None:
        await self.passages.delete(document.id)
        await self.blobs.delete(document.id)
        del self._documents[document.id]
