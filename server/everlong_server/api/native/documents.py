"""`/v1/documents`: upload, list, watch and delete documents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from redis.exceptions import RedisError, ResponseError
from sse_starlette import EventSourceResponse

from everlong_server.api import schemas
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey
from everlong_server.api.sse import event_stream
from everlong_server.api.upload import DiscardingWriter, FormFields, ReceivedFile, UploadSource, converted, receive
from everlong_server.api.views import CallerServices, document_view
from everlong_server.errors import NotFound, ServerError, Unavailable
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import Document, is_id, now
from everlong_server.store.texts import outline

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES)

Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=128, description="last id of the previous page")]
_POLL_SECONDS = 0.25

_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}


@router.post("", status_code=202, openapi_extra=_UPLOAD)
async def upload(
    request: Request,
    services: CallerServices,
    filename: Annotated[str | None, Query(max_length=255, description="name to show for the document")] = None,
    key: IdempotencyKey = None,
) -> schemas.Document:
    """Uploads UTF-8 text or a PDF, Word, EPUB or HTML file, as the body or as the part `file` of a form. The server reads it in
    the background."""
    async with await services.idempotency.begin(key) as record:
        document = await stored(request, services, record)
        if record.answer is not None:
            return schemas.Document.model_validate(record.answer)
        view = await document_view(services, document)
        await record.finish(view.model_dump(mode="json"))
        return view


async def stored(
    source: UploadSource, services: Services, record: IdempotencyRecord, form: FormFields | None = None
) -> Document:
    """Receive and store the document of `source`, and queue its reading. Everything is durable on return.

    For a retry of a completed request, only compares the content with the first request's.
    """
    if services.engine.draining:
        raise Unavailable("the server is shutting down", code="draining", retry_after=5)
    await services.redis.ping()  # fail before the upload, not after it
    document_id, limit = f"doc_{record.id}", services.settings.max_document_bytes
    exists = record.answer is not None or (not record.first and await services.documents.exists(document_id))
    length = source.headers.get("content-length", "")
    if not exists:
        await services.quota.require_room(int(length) if length.isdigit() else 0, services.model.fingerprint)
    writer = DiscardingWriter() if exists else await services.blobs.create(document_id)

    async def allow(received: ReceivedFile) -> None:
        await record.is_for("upload", "file" if form else "document", received.digest, received.filename or "")

    received = await receive(source, writer, limit, form, allow)
    if exists:
        return (
            document_of(document_id, received)
            if record.answer is not None
            else await services.documents.get(document_id)
        )
    made = await make(services, document_id, received, record)
    assert made is not None, "only a multipart upload can be cancelled or completed by another request"
    return made


def document_of(document_id: str, received: ReceivedFile) -> Document:
    """Return the document record of a received file."""
    return Document(
        document_id, received.filename, received.bytes, received.text_offset, now(), received.digest,
        received.format,
    )  # fmt: skip


async def make(
    services: Services,
    document_id: str,
    received: ReceivedFile,
    record: IdempotencyRecord | None,
    *,
    upload: str | None = None,
    held: int = 0,
) -> Document | None:
    """Convert the received blob to text and create its document. Deletes the text if the document is refused.

    Returns None if the multipart `upload` was cancelled or completed in the meantime. `upload` and `held` are passed to
    `Documents.create`.
    """
    creating = False
    try:
        received = await converted(services.blobs, document_id, received, services.settings.max_document_bytes)
        document, creating = document_of(document_id, received), True
        if await services.documents.create(document, services.model.fingerprint, upload=upload, held=held):
            return document
    except BaseException as error:
        # If Redis did not answer, it may still create the document. Then a later sweep deletes the text, if it is unused.
        if not creating or isinstance(error, ServerError | ResponseError):
            await _drop_text(services, document_id, record)
        raise
    await _drop_text(services, document_id, record)
    return None


async def _drop_text(services: Services, document_id: str, record: IdempotencyRecord | None) -> None:
    """Delete the text of a document that was not created. Keeps it if Redis cannot tell, or another server retries."""
    with contextlib.suppress(RedisError):
        if (record is None or await record.mine()) and not await services.documents.exists(document_id):
            for blob in (document_id, outline.name(document_id)):
                await services.blobs.delete(blob)


@router.get("")
async def index(services: CallerServices, limit: Limit = 20, after: After = None) -> schemas.DocumentList:
    """Lists all documents, newest first."""
    documents, more = await services.documents.newest(limit, after)
    data = []
    for document in documents:
        with contextlib.suppress(NotFound):  # deleted since the page was loaded
            data.append(await document_view(services, document))
    return schemas.DocumentList(data=data, has_more=more)


@router.get("/{document_id}")
async def get(document_id: str, services: CallerServices) -> schemas.Document:
    """Returns a document and the progress of its reading."""
    return await document_view(services, await services.documents.get(document_id))


@router.delete("/{document_id}")
async def delete(document_id: str, services: CallerServices) -> schemas.Deleted:
    """Deletes a document, its text and its state, and cancels its reading. Sessions keep their memory."""
    missing: NotFound | None = None
    try:
        await services.documents.delete(document_id)
    except NotFound as error:
        # A deletion may have been interrupted. The text is deleted last, so it shows whether something is left.
        missing = error
        if not is_id("doc", document_id) or not await asyncio.to_thread(services.blobs.exists, document_id):
            raise
    if not await services.documents.exists(document_id):  # else it belongs to another tenant
        await services.chats.forget(document_id)
        await services.passages.delete(document_id)
        await services.token_offsets.delete(document_id)
        for blob in (outline.name(document_id), document_id):
            await services.blobs.delete(blob)
    if missing is not None:
        raise missing
    return schemas.Deleted(id=document_id, object="document.deleted")


@router.get("/{document_id}/events", response_class=EventSourceResponse)
async def events(document_id: str, services: CallerServices) -> EventSourceResponse:
    """Streams the progress as server-sent events: `document.progress`, then `document.ready`, `.failed` or `.deleted`."""
    document = await services.documents.get(document_id)
    first = await document_view(services, document)

    async def changes() -> AsyncGenerator[dict[str, Any], None]:
        view = first
        while True:
            kind = view.status if view.status in ("ready", "failed") else "progress"
            yield {"type": f"document.{kind}", "document": view.model_dump()}
            if kind != "progress":
                return
            before = view
            while view == before:
                if services.engine.draining:
                    raise Unavailable("the server is shutting down", code="draining", retry_after=5)
                await asyncio.sleep(_POLL_SECONDS)
                try:
                    view = await document_view(services, await services.documents.get(document_id))
                except NotFound:
                    yield {"type": "document.deleted", "document": {"id": document_id}}
                    return

    return event_stream(changes(), services.settings.keepalive_seconds)
