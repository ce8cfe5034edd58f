"""`/v1/files`: documents and the files of batches in the format of OpenAI's API. A file that is a document has the document's id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import IO, Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from everlong_server.api.bodies.request_file import BINARY, request_body
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey
from everlong_server.api.openai.files.receive import ASSISTANTS, BATCH, BATCH_OUTPUT, DOCUMENT, PIECE, receive_file
from everlong_server.api.openai.files.schemas import File, FileDeleted, FileList
from everlong_server.api.openai.files.view import find_file, is_batch_file, no_file, view_file
from everlong_server.api.schemas import AfterId
from everlong_server.errors import NotFound
from everlong_server.store.batches.files import BatchFile

router = APIRouter(prefix="/v1/files", tags=["openai"], responses=ERROR_RESPONSES)

_UPLOAD = request_body({"file": BINARY, "purpose": {"type": "string", "enum": [DOCUMENT, ASSISTANTS, BATCH]}})


@router.post("", openapi_extra=_UPLOAD)
async def create(request: Request, services: CallerServices, key: IdempotencyKey = None) -> File:
    """Uploads a file.

    With the purpose `user_data`, the server reads it in the background; `status` is "processed" when it has been read. `assistants`
    is another name of this purpose. A file with the purpose `batch` is only stored: it has the requests of a batch.
    """
    async with await services.idempotency.begin(key) as record:
        file = await receive_file(services, request, record)
        if record.answer is not None:
            return File.model_validate(record.answer)
        view = await view_file(services, file)
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
    kinds: list[Literal["document", "batch"]] = []
    if purpose in (None, DOCUMENT, ASSISTANTS):
        kinds.append("document")
    if purpose in (None, BATCH, BATCH_OUTPUT):
        kinds.append("batch")
    if not kinds:
        return FileList(data=[], has_more=False)
    data: list[File] = []
    last, more = after, True
    while more and len(data) < limit:
        ids, more = await services.batches.files.newest(limit - len(data), last, kinds)
        for last in ids:
            with contextlib.suppress(NotFound):  # deleted or expired since
                file = await find_file(services, last)
                if purpose is None or not isinstance(file, BatchFile) or file.purpose == purpose:
                    data.append(await view_file(services, file))
    return FileList(data=data, has_more=more)


@router.get("/{file_id}")
async def get(file_id: str, services: CallerServices) -> File:
    """Returns a file. `status` is "processed" once it has been read."""
    return await view_file(services, await find_file(services, file_id))


@router.get("/{file_id}/content", response_class=StreamingResponse)
async def content(file_id: str, services: CallerServices) -> StreamingResponse:
    """Returns the file's text."""
    found = await find_file(services, file_id)
    try:
        file = await asyncio.to_thread(services.shared.stores.blobs.open, found.id)
    except FileNotFoundError:  # deleted in the meantime
        raise no_file(file_id) from None
    size = found.bytes if isinstance(found, BatchFile) else found.text_offset + found.bytes
    return StreamingResponse(_pieces(file), media_type="text/plain", headers={"Content-Length": str(size)})


@router.delete("/{file_id}")
async def delete(file_id: str, services: CallerServices) -> FileDeleted:
    """Deletes a file, its text and its state. A batch whose input file is deleted fails, and keeps the results that it has."""
    try:
        if is_batch_file(file_id):
            await services.batches.files.delete(file_id)
        else:
            await services.ingest.delete(file_id)
    except NotFound:
        raise no_file(file_id) from None
    return FileDeleted(id=file_id)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while data := file.read(PIECE):
            yield data
