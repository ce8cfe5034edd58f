"""Vector stores, their files and what is found in them, in the format of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping

from everlong_server.api.openai.retrieval import vector_store_schemas as schemas
from everlong_server.api.schemas import Evidence
from everlong_server.engine.answering.search.store_search import Hit
from everlong_server.store.messages import evidence_json
from everlong_server.store.vector_stores.records import FileBatch, StoredFile, VectorStore


def view_store(store: VectorStore) -> schemas.VectorStore:
    """Return a vector store."""
    return schemas.VectorStore(
        id=store.id,
        created_at=int(store.created_at),
        name=store.name,
        description=store.description,
        metadata=dict(store.metadata),
        usage_bytes=store.bytes,
        file_counts=schemas.FileCounts(completed=store.files, total=store.files),
        last_active_at=int(store.active_at),
    )


def view_store_file(file: StoredFile) -> schemas.VectorStoreFile:
    """Return a file of a vector store."""
    return schemas.VectorStoreFile(
        id=file.document,
        created_at=int(file.created_at),
        vector_store_id=file.store,
        usage_bytes=file.bytes,
        attributes=dict(file.attributes),
    )


def view_batch(batch: FileBatch) -> schemas.FileBatch:
    """Return a batch of files."""
    count = len(batch.documents)
    return schemas.FileBatch(
        id=batch.id,
        created_at=int(batch.created_at),
        vector_store_id=batch.store,
        file_counts=schemas.FileCounts(completed=count, total=count),
    )


def view_hit(hit: Hit, names: Mapping[str, str | None]) -> schemas.SearchResultItem:
    """Return a passage that was found. `names`: the file names of documents."""
    passage = hit.passage
    return schemas.SearchResultItem(
        file_id=passage.document,
        filename=names.get(passage.document) or passage.document,
        score=passage.score,
        attributes=dict(hit.file.attributes),
        content=[schemas.ResultText(text=passage.text)],
        evidence=Evidence(**evidence_json(passage)),
    )
