"""`/v1/documents`: upload, look, watch, delete."""

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
After = Annotated[str | None, Query(max_length=128, description="the last id of the page before")]
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
    filename: Annotated[str | None, Query(max_length=255, description="a name for people")] = None,
    key: IdempotencyKey = None,
) -> schemas.Document:
    """Uploads UTF-8 text, a PDF, Word, EPUB or HTML file: as the body, or as the part `file` of a form. Reading goes on in
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
    """The document that comes from `source`, acknowledged: its text and facts are on disk and its reading is queued.

    Of an record that was done before, what comes is only compared with what came then.
    """
    if services.engine.draining:
        raise Unavailable("the server is shutting down", code="draining", retry_after=5)
    await services.redis.ping()  # else a text would come that nobody can be told of
    document_id, limit = f"doc_{record.id}", services.settings.max_document_bytes
    there = record.answer is not None or (not record.first and await services.documents.exists(document_id))
    length = source.headers.get("content-length", "")
    if not there:
        await services.quota.require_room(int(length) if length.isdigit() else 0, services.model.fingerprint)
    writer = DiscardingWriter() if there else await services.blobs.create(document_id)

    async def allow(received: ReceivedFile) -> None:
        await record.is_for("upload", "file" if form else "document", received.digest, received.filename or "")

    received = await receive(source, writer, limit, form, allow)
    if there:
        return (
            document_of(document_id, received)
            if record.answer is not None
            else await services.documents.get(document_id)
        )
    made = await make(services, document_id, received, record)
    assert made is not None, "only an upload can be over before"
    return made


def document_of(document_id: str, received: ReceivedFile) -> Document:
    """What was received, as a document."""
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
    """The document of what was received as its blob. `upload`, `held`: as for `Documents.create`; None if that has made none.

    If it is refused, its text goes.
    """
    asked = False
    try:
        received = await converted(services.blobs, document_id, received, services.settings.max_document_bytes)
        document, asked = document_of(document_id, received), True
        if await services.documents.create(document, services.model.fingerprint, upload=upload, held=held):
            return document
    except BaseException as error:
        # Where Redis gave no answer it may be about to make the document: its text is left to the sweep.
        if not asked or isinstance(error, ServerError | ResponseError):
            await _drop_text(services, document_id, record)
        raise
    await _drop_text(services, document_id, record)
    return None


async def _drop_text(services: Services, document_id: str, record: IdempotencyRecord | None) -> None:
    """Deletes the text of a document that was not made. If that cannot be known, or another server is at it, the text stays."""
    with contextlib.suppress(RedisError):
        if (record is None or await record.mine()) and not await services.documents.exists(document_id):
            for blob in (document_id, outline.name(document_id)):
                await services.blobs.delete(blob)


@router.get("")
async def index(services: CallerServices, limit: Limit = 20, after: After = None) -> schemas.DocumentList:
    """All documents, newest first."""
    documents, more = await services.documents.newest(limit, after)
    data = []
    for document in documents:
        with contextlib.suppress(NotFound):  # deleted since the page was read
            data.append(await document_view(services, document))
    return schemas.DocumentList(data=data, has_more=more)


@router.get("/{document_id}")
async def get(document_id: str, services: CallerServices) -> schemas.Document:
    """A document and its progress."""
    return await document_view(services, await services.documents.get(document_id))


@router.delete("/{document_id}")
async def delete(document_id: str, services: CallerServices) -> schemas.Deleted:
    """Deletes the text and what was learnt from it; cancels its reading. Sessions keep the memory that they have."""
    missing: NotFound | None = None
    try:
        await services.documents.delete(document_id)
    except NotFound as error:
        # It may have been deleted before, and something of it be there still, of which the text goes last.
        missing = error
        if not is_id("doc", document_id) or not await asyncio.to_thread(services.blobs.exists, document_id):
            raise
    if not await services.documents.exists(document_id):  # else it is another tenant's
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
    """Progress as server-sent events: `document.progress`, and at the end `document.ready`, `.failed` or `.deleted`."""
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
