"""`/v1/uploads`: multipart uploads. The parts of a file arrive in any order and over any number of connections."""

from __future__ import annotations

import contextlib
from typing import Annotated

from fastapi import APIRouter, Query, Request

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.bodies.request_file import BINARY, RequestFile, request_body
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of, run_once
from everlong_server.api.openai.files.receive import DOCUMENT
from everlong_server.api.openai.files.schemas import CompleteUpload, CreateUpload, Upload, UploadPart
from everlong_server.api.openai.files.view import find_file, view_file
from everlong_server.api.schemas import REUSE
from everlong_server.errors import NotFound
from everlong_server.services import Services
from everlong_server.store import uploads as store
from everlong_server.store.idempotency import IdempotencyRecord

router = APIRouter(prefix="/v1/uploads", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post("")
async def create(body: CreateUpload, services: CallerServices, key: IdempotencyKey = None) -> Upload:
    """Creates an upload. It expires with its parts after an hour (`EVERLONG_UPLOAD_SECONDS`)."""

    async def make(record: IdempotencyRecord) -> Upload:
        uploads = services.multipart_uploads
        return await _view(services, await uploads.create(f"upload_{record.id}", body.bytes, body.filename, DOCUMENT))

    return await run_once(services, key, ("multipart upload", content_of(body)), Upload, make)


@router.post("/{upload_id}/parts", openapi_extra=request_body({"data": BINARY}))
async def add(upload_id: str, request: Request, services: CallerServices, key: IdempotencyKey = None) -> UploadPart:
    """Adds a part: any bytes of the file. A part whose response was lost can be sent again."""
    async with await services.idempotency.begin(key) as record:
        source = RequestFile(request, part="data", fields={})
        part = await services.multipart_uploads.add_part(upload_id, source, record)
        if record.answer is not None:
            return UploadPart.model_validate(record.answer)
        view = UploadPart(id=part.id, created_at=int(part.created_at), upload_id=part.upload)
        await record.finish(view.model_dump(mode="json"))
        return view


@router.post("/{upload_id}/complete")
async def complete(
    upload_id: str,
    body: CompleteUpload,
    services: CallerServices,
    reuse: Annotated[bool, Query(description=f"an extension: {REUSE}")] = False,
    key: IdempotencyKey = None,
) -> Upload:
    """Joins the parts to a file, which the server reads in the background. A retry returns the same result."""

    async def make(record: IdempotencyRecord) -> Upload:
        # The upload knows its file, also after a retry without a key.
        upload = await services.multipart_uploads.complete(
            upload_id, body.part_ids, body.md5, record, body.ocr_language, reuse=reuse
        )
        return await _view(services, upload)

    return await run_once(services, key, ("complete", upload_id, content_of(body)), Upload, make)


@router.post("/{upload_id}/cancel")
async def cancel(upload_id: str, services: CallerServices) -> Upload:
    """Cancels an upload and deletes its parts."""
    return await _view(services, await services.multipart_uploads.cancel(upload_id))


async def _view(services: Services, upload: store.Upload) -> Upload:
    file = None
    if upload.file is not None:
        with contextlib.suppress(NotFound):  # the file was deleted
            file = await view_file(services, await find_file(services, upload.file))
    return Upload(
        id=upload.id,
        bytes=upload.bytes,
        created_at=int(upload.created_at),
        expires_at=int(upload.expires_at),
        filename=upload.filename,
        purpose=DOCUMENT,
        status=upload.status,
        file=file,
    )
