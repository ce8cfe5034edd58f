"""`receive_file`: stores an uploaded file as its purpose says: as a document, or as the input of batches."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
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
PIECE = 1 << 18
"""Bytes of a stored file that are read at once."""


async def receive_file(services: Services, request: Request, record: IdempotencyRecord) -> Document | BatchFile:
    """Receive and store the file of a request, durably. Raises `ServerError`."""
    upload = RequestFile(request, fields={"purpose": [DOCUMENT, ASSISTANTS, BATCH]}, limit=services.ingest.max_bytes)
    async with contextlib.aclosing(upload.chunks()) as chunks:
        first = await anext(chunks, b"")
        begun = _Received(upload, upload.announced_bytes, lambda: _joined(first, chunks))
        if "purpose" in upload.values:
            return await _store(services, begun, upload.values["purpose"], record)
        # The purpose comes after the file: keep the file until it is known.
        services.ingest.engine.require_running()
        if record.first:  # before the file is stored, not after it
            await services.quota.require_bytes(upload.announced_bytes)
        name, blobs = f"file_{record.id}.{uuid.uuid4().hex}.upload", services.shared.stores.blobs
        try:
            size = await _keep(blobs, name, begun, services.ingest.max_bytes)
            kept = _Received(upload, size, lambda: _read(blobs, name))
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


async def _joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield a chunk that was taken already, and those after it."""
    if first:
        yield first
    async for chunk in rest:
        yield chunk


async def _read(blobs: Blobs, name: str) -> AsyncGenerator[bytes, None]:
    """Yield the content of a blob."""
    with await asyncio.to_thread(blobs.open, name) as file:
        while data := await asyncio.to_thread(file.read, PIECE):
            yield data


@dataclass(frozen=True, slots=True)
class _Received:
    """A `FileSource` with the name and the media type of `upload`, whose own chunks were taken already."""

    upload: RequestFile
    announced_bytes: int
    chunks: Callable[[], AsyncGenerator[bytes, None]]

    @property
    def filename(self) -> str | None:
        return self.upload.filename

    @property
    def media_type(self) -> str | None:
        return self.upload.media_type
