"""`/v1/files`: documents in the format of OpenAI's API. A file is a document and has the document's id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import IO, Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from everlong_server.api.bodies.request_file import BINARY, RequestFile, request_body
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey
from everlong_server.api.openai.file_schemas import File, FileDeleted, FileList
from everlong_server.api.openai.file_view import find_file, no_file, view_file
from everlong_server.api.schemas import AfterId
from everlong_server.api.views import CallerServices
from everlong_server.errors import NotFound

router = APIRouter(prefix="/v1/files", tags=["openai"], responses=ERROR_RESPONSES)

PURPOSE = "user_data"
_PIECE = 1 << 18
_UPLOAD = request_body({"file": BINARY, "purpose": {"type": "string", "enum": [PURPOSE]}})


@router.post("", openapi_extra=_UPLOAD)
async def create(request: Request, services: CallerServices, key: IdempotencyKey = None) -> File:
    """Uploads a file. The server reads it in the background; `status` is "processed" when it has been read."""
    async with await services.idempotency.begin(key) as record:
        source = RequestFile(request, fields={"purpose": [PURPOSE]}, limit=services.ingest.max_bytes)
        document = await services.ingest.add(source, record, "file")
        if record.answer is not None:
            return File.model_validate(record.answer)
        view = await view_file(services, document)
        await record.finish(view.model_dump(mode="json"))
        return view


@router.get("")
async def index(
    services: CallerServices,
    purpose: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    order: Annotated[Literal["desc"], Query(description="newest first")] = "desc",
    after: AfterId = None,
) -> FileList:
    """Lists all files, newest first."""
    if purpose not in (None, PURPOSE):
        return FileList(data=[], has_more=False)
    page, more = await services.documents.newest(limit, after)
    data = []
    for document in page:
        with contextlib.suppress(NotFound):  # deleted since the page was loaded
            data.append(await view_file(services, document))
    return FileList(data=data, has_more=more)


@router.get("/{file_id}")
async def get(file_id: str, services: CallerServices) -> File:
    """Returns a file. `status` is "processed" once it has been read."""
    return await view_file(services, await find_file(services, file_id))


@router.get("/{file_id}/content", response_class=StreamingResponse)
async def content(file_id: str, services: CallerServices) -> StreamingResponse:
    """Returns the file's text."""
    document = await find_file(services, file_id)
    try:
        file = await asyncio.to_thread(services.shared.stores.blobs.open, document.id)
    except FileNotFoundError:  # deleted in the meantime
        raise no_file(file_id) from None
    size = document.text_offset + document.bytes
    return StreamingResponse(_pieces(file), media_type="text/plain", headers={"Content-Length": str(size)})


@router.delete("/{file_id}")
async def delete(file_id: str, services: CallerServices) -> FileDeleted:
    """Deletes a file, its text and its state."""
    try:
        await services.ingest.delete(file_id)
    except NotFound:
        raise no_file(file_id) from None
    return FileDeleted(id=file_id)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while data := file.read(_PIECE):
            yield data
