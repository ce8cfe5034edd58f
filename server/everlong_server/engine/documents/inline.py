"""Documents that a request carries itself, instead of the id of an uploaded one.

The id of such a document is a digest of its content. So it is stored and read once, however often a client sends it. It is an
ordinary document of its tenant: listed, counted and deleted as others are.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from everlong_server.engine.documents.ingest import Ingest
from everlong_server.errors import Unavailable
from everlong_server.store.idempotency import IdempotencyRecords
from everlong_server.store.records import Document

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class InlineFile:
    """A file inside a request: a `FileSource`."""

    content: bytes
    filename: str | None
    media_type: str | None

    @property
    def announced_bytes(self) -> int:
        """Size of the content."""
        return len(self.content)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the content."""
        yield self.content

    def document_id(self, tenant: str) -> str:
        """Return the id of the document with this content."""
        named = json.dumps([tenant, self.filename, self.media_type]).encode()
        return f"doc_{hashlib.sha256(named + self.content).hexdigest()[:32]}"


async def add_inline(ingest: Ingest, records: IdempotencyRecords, file: InlineFile) -> Document:
    """Store the file unless it is stored already, queue its reading, and return its document. Raises `ServerError`."""
    id = file.document_id(ingest.quota.tenant)
    if await ingest.documents.exists(id):
        return await ingest.documents.get(id)
    return await ingest.add(file, records.unkeyed(id.removeprefix("doc_")), None)


async def wait_until_read(ingest: Ingest, documents: Sequence[str]) -> None:
    """Return once the reading of `documents` has ended, in whatever way. Raises `ServerError` if it cannot begin, and
    `Unavailable` if the server shuts down meanwhile."""
    readings = ingest.documents.readings
    id = await readings.ensure(ingest.engine.model.fingerprint, documents)
    while (reading := await readings.get(id)) is not None and reading.status in ("queued", "reading"):
        if ingest.engine.draining:
            raise Unavailable("the server is shutting down", code="draining", retry_after=5)
        await asyncio.sleep(_POLL_SECONDS)
