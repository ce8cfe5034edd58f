"""`receive_file`: stores an uploaded file as its purpose says: as a document, or as the input of batches."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import Request

from everlong_server.api.bodies.request_file import RequestFile
from everlong_server.engine.documents.ingest import FileSource
from everlong_server.engine.documents.text_checker import too_large
from everlong_server.services import Services
from everlong_server.store.batches.files import BatchFile
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs

DOCUMENT, BATCH, BATCH_OUTPUT = "user_data", "batch", "batch_output"
ASSISTANTS = "assistants"
"""Another name of `DOCUMENT` in requests. OpenAI's SDKs send it with files of vector stores."""
_PIECE = 1 << 18


async def receive_file(services: Services, request: Request, record: IdempotencyRecord) -> Document | BatchFile:
    """Receive and store the file of a request, durably. Raises `ServerError`."""
    upload = RequestFile(request, fields={"purpose": [DOCUMENT, ASSISTANTS, BATCH]}, limit=services.ingest.max_bytes)
    async with contextlib.aclosing(upload.chunks()) as chunks:
        first = await anext(chunks, b"")
        begun = _Begun(upload, first, chunks)
        if "purpose" in upload.values:
            return await _store(services, begun, upload.values["purpose"], record)
        # The purpose comes after the file: keep the file until it is known.
        services.ingest.engine.require_running()
        if record.first:  # before the file is stored, not after it
            await services.quota.require_bytes(upload.announced_bytes)
        name, blobs = f"file_{record.id}.{uuid.uuid4().hex}.upload", services.shared.stores.blobs
        try:
            kept = _Kept(upload, blobs, name, await _keep(blobs, name, begun, services.ingest.max_bytes))
            return await _store(services, kept, upload.values["purpose"], record)
        finally:
            await blobs.delete(name)


async def _store(
    services: Services, source: FileSource, purpose: str, record: IdempotencyRecord
) -> Document | BatchFile:
    if purpose == BATCH:
        return await services.batches.add_file(source, record)
    return await services.ingest.add(source, record, "file")


async def _keep(blobs: Blobs, name: str, source: FileSource, limit: int) -> int:
    """Store the file as a blob and return its size."""
    async with await blobs.create(name) as writer:
        async for chunk in source.chunks():
            if writer.bytes + len(chunk) > limit:
                raise too_large(limit)
            await writer.write(chunk)
        await writer.commit()
    return writer.bytes


@dataclass(frozen=True, slots=True)
class _Named:
    """A file with the name and the media type of `upload`."""

    upload: RequestFile

    @property
    def filename(self) -> str | None:
        return self.upload.filename

    @property
    def media_type(self) -> str | None:
        return self.upload.media_type


@dataclass(frozen=True, slots=True)
class _Begun(_Named):
    """A `FileSource` whose first chunk was taken already."""

    first: bytes
    rest: AsyncGenerator[bytes, None]

    @property
    def announced_bytes(self) -> int:
        return self.upload.announced_bytes

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        if self.first:
            yield self.first
        async for chunk in self.rest:
            yield chunk


@dataclass(frozen=True, slots=True)
class _Kept(_Named):
    """A `FileSource` whose content is a blob."""

    blobs: Blobs
    name: str
    announced_bytes: int

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        with await asyncio.to_thread(self.blobs.open, self.name) as file:
            while data := await asyncio.to_thread(file.read, _PIECE):
                yield data
