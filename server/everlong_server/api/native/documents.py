"""`/v1/documents`: upload, list, watch and delete documents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sse_starlette import EventSourceResponse

from everlong_server.api import schemas
from everlong_server.api.bodies.request_file import BINARY, RequestFile, request_body
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey
from everlong_server.api.schemas import OCR_LANGUAGE, REUSE, AfterId, PageLimit
from everlong_server.api.streams.sse import event_stream
from everlong_server.api.views import document_view
from everlong_server.engine.documents.archives import add_archive
from everlong_server.errors import NotFound
from everlong_server.services import Services
from everlong_server.store.records import Document

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES)

_POLL_SECONDS = 0.25

_UPLOAD = request_body({"file": BINARY}, **{"text/plain": {"schema": {"type": "string"}}})
_ARCHIVE = request_body({"file": BINARY}, **{"application/octet-stream": {"schema": BINARY}})


@router.post("", status_code=202, openapi_extra=_UPLOAD)
async def upload(
    request: Request,
    services: CallerServices,
    filename: Annotated[str | None, Query(max_length=255, description="name to show for the document")] = None,
    ocr_language: Annotated[str | None, Query(max_length=60, description=OCR_LANGUAGE)] = None,
    reuse: Annotated[bool, Query(description=REUSE)] = False,
    key: IdempotencyKey = None,
) -> schemas.Document:
    """Uploads a text, or a file in one of the formats of `GET /v1/formats`, as the body or as the part `file` of a form. The server
    reads it in the background."""
    async with await services.idempotency.begin(key) as record:
        source = RequestFile(request, limit=services.ingest.max_bytes)
        document = await services.ingest.add(source, record, "document", ocr_language, reuse=reuse)
        if record.answer is not None:
            return schemas.Document.model_validate(record.answer)
        view = await document_view(services, document)
        await record.finish(view.model_dump(mode="json"))
        return view


@router.post("/archive", status_code=202, openapi_extra=_ARCHIVE)
async def upload_archive(
    request: Request,
    services: CallerServices,
    filename: Annotated[str | None, Query(max_length=255, description="name of the archive")] = None,
    ocr_language: Annotated[str | None, Query(max_length=60, description=OCR_LANGUAGE)] = None,
    key: IdempotencyKey = None,
) -> schemas.UploadedArchive:
    """Uploads an archive (zip, tar), as the body or as the part `file` of a form. Each file in it becomes a document of its own. The
    server stores all of them or, if it answers with an error, none."""
    async with await services.idempotency.begin(key) as record:
        source = RequestFile(request, limit=services.ingest.max_bytes)
        stored = await add_archive(services.ingest, source, record, ocr_language)
        if stored is None:
            return schemas.UploadedArchive.model_validate(record.answer)
        view = schemas.UploadedArchive(
            data=await _existing(services, stored.documents),
            notes=[schemas.DocumentNote(**asdict(note)) for note in stored.notes],
        )
        await record.finish(view.model_dump(mode="json"))
        return view


@router.get("")
async def index(services: CallerServices, limit: PageLimit = 20, after: AfterId = None) -> schemas.DocumentList:
    """Lists all documents, newest first."""
    documents, more = await services.documents.newest(limit, after)
    return schemas.DocumentList(data=await _existing(services, documents), has_more=more)


async def _existing(services: Services, documents: Iterable[Document]) -> list[schemas.Document]:
    """Return the documents that were not deleted since they were loaded."""
    views = []
    for document in documents:
        with contextlib.suppress(NotFound):
            views.append(await document_view(services, document))
    return views


@router.get("/{document_id}")
async def get(document_id: str, services: CallerServices) -> schemas.Document:
    """Returns a document and the progress of its reading."""
    return await document_view(services, await services.documents.get(document_id))


@router.delete("/{document_id}")
async def delete(document_id: str, services: CallerServices) -> schemas.Deleted:
    """Deletes a document, its text and its state, and cancels its reading. Sessions keep their memory."""
    await services.ingest.delete(document_id)
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
                services.shared.engine.require_running()
                await asyncio.sleep(_POLL_SECONDS)
                try:
                    view = await document_view(services, await services.documents.get(document_id))
                except NotFound:
                    yield {"type": "document.deleted", "document": {"id": document_id}}
                    return

    return event_stream(changes(), services.shared.settings.keepalive_seconds)
