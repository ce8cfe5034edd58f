"""`/v1/uploads`: multipart uploads. The parts of a file arrive in any order and over any number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from typing import Annotated, Literal
from weakref import WeakValueDictionary

from fastapi import APIRouter, Request
from pydantic import Field

from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.native.documents import make
from everlong_server.api.openai import files
from everlong_server.api.openai.chat_schemas import File
from everlong_server.api.openai.text_formats import Nullable
from everlong_server.api.schemas import Wire
from everlong_server.api.upload import (
    BytesInFlight,
    PartChecker,
    ReceivedFile,
    TextChecker,
    clean_filename,
    commit,
    receive_part,
    too_large,
)
from everlong_server.api.views import CallerServices
from everlong_server.errors import Conflict, InvalidRequest, NotFound, ServerError, Unavailable
from everlong_server.services import Services
from everlong_server.store import uploads as store
from everlong_server.store.records import new_id

router = APIRouter(prefix="/v1/uploads", tags=["openai"], responses=ERROR_RESPONSES)

log = logging.getLogger(__name__)

MAX_PARTS = 10_000
_IN_FLIGHT: WeakValueDictionary[str, BytesInFlight] = WeakValueDictionary()
"""The bytes that this server is receiving, by upload."""
_BLOCK = 1 << 20
_PART = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}


class CreateUpload(Nullable, Wire):
    """A new multipart upload."""

    bytes: int = Field(ge=1, description="size of the file: all parts together")
    filename: str = Field(min_length=1, max_length=255)
    mime_type: str = Field(max_length=255, description="ignored: the server checks the content")
    purpose: Literal["user_data"]


class CompleteUpload(Nullable, Wire):
    """The parts of a complete upload."""

    part_ids: list[Annotated[str, Field(max_length=128)]] = Field(
        min_length=1, max_length=MAX_PARTS, description="ids of all parts, in the order of the file"
    )
    md5: str | None = Field(None, pattern="^[0-9a-fA-F]{32}$", description="MD5 of the whole file, checked if given")


class Upload(Wire):
    """A multipart upload."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["user_data"]
    status: Literal["pending", "completed", "cancelled"]
    file: File | None


class UploadPart(Wire):
    """A stored part of an upload."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


@router.post("")
async def create(body: CreateUpload, services: CallerServices) -> Upload:
    """Creates an upload. It expires with its parts after an hour (`EVERLONG_UPLOAD_SECONDS`)."""
    limit = services.settings.max_document_bytes
    if body.bytes > limit:
        error = too_large(limit)
        error.param = "bytes"
        raise error
    if (filename := clean_filename(body.filename)) is None:
        raise InvalidRequest(f"filename: {body.filename[:60]!r} is not a file name", param="filename")
    await services.quota.require_room(0, services.model.fingerprint)
    moment = await services.uploads.moment()
    upload = store.Upload(
        new_id("upload"),
        body.bytes,
        filename,
        body.purpose,
        moment,
        moment + services.settings.upload_seconds,
    )
    await services.quota.hold(upload.id, upload.bytes, services.settings.upload_seconds)
    await services.uploads.create(upload)
    return await _view(services, upload)


@router.post("/{upload_id}/parts", openapi_extra=_PART)
async def add(upload_id: str, request: Request, services: CallerServices) -> UploadPart:
    """Adds a part: any bytes of the file. A part whose response was lost can be sent again."""
    if services.engine.draining:
        raise Unavailable("the server is shutting down", code="draining", retry_after=5)
    upload = _pending(await services.uploads.get(upload_id))
    stored = await services.uploads.parts(upload.id)
    if len(stored) >= MAX_PARTS:
        raise InvalidRequest(f"the upload has {len(stored)} parts, the limit is {MAX_PARTS}", param="upload_id")
    # Twice the size of the file, as parts may be sent again whose response was lost.
    room = 2 * upload.bytes - sum(part.bytes for part in stored.values())
    checker = PartChecker(min(upload.bytes, room), room, _IN_FLIGHT.setdefault(upload.id, BytesInFlight()))
    part_id, moment = new_id("part"), await services.uploads.moment()
    name = store.Part(part_id, upload.id, 0, moment).name
    added = False
    try:
        await receive_part(request, services.blobs, name, checker)
        part = store.Part(part_id, upload.id, checker.size, moment)
        size = part.bytes + sum(one.bytes for one in (await services.uploads.parts(upload.id)).values())
        if size > upload.bytes:  # a part was sent twice
            await services.quota.hold(upload.id, size, upload.expires_at - moment)
        added = await services.uploads.add(part, 2 * upload.bytes, MAX_PARTS)
    except FileNotFoundError:  # the upload was deleted in the meantime, with this part's data
        log.info("the upload of part %s was deleted in the meantime", part_id)
    finally:
        checker.end()
        if not added:
            await services.blobs.delete(name)
    if not added:
        _pending(await services.uploads.get(upload_id))
        raise Conflict("the part could not be added to the upload: send it again", param="upload_id")
    return UploadPart(id=part_id, created_at=int(moment), upload_id=upload.id)


@router.post("/{upload_id}/complete")
async def complete(upload_id: str, body: CompleteUpload, services: CallerServices) -> Upload:
    """Joins the parts to a file, which the server reads in the background. A retry returns the same result."""
    upload = await services.uploads.get(upload_id)
    if upload.status != "completed":
        refused: ServerError | None = None
        try:
            await _make(services, _pending(upload), body)
        except (Conflict, NotFound) as error:  # for example if another request completed it in the meantime
            refused = error
        upload = await services.uploads.get(upload_id)
        if upload.status != "completed":
            raise refused or _not_pending(upload)
    await services.blobs.delete_parts(upload.id)
    await services.quota.release(upload.id)
    return await _view(services, upload)


@router.post("/{upload_id}/cancel")
async def cancel(upload_id: str, services: CallerServices) -> Upload:
    """Cancels an upload and deletes its parts."""
    upload = await services.uploads.get(upload_id)
    if upload.status == "pending":
        await services.uploads.cancel(upload.id)
        upload = await services.uploads.get(upload_id)
    if upload.status == "completed":
        _pending(upload)
    await services.blobs.delete_parts(upload.id)
    await services.quota.release(upload.id)
    return await _view(services, upload)


def _pending(upload: store.Upload) -> store.Upload:
    """Return `upload`. Raises `Conflict` if it is completed, cancelled or expired."""
    if upload.status != "pending":
        raise _not_pending(upload)
    return upload


def _not_pending(upload: store.Upload) -> Conflict:
    return Conflict(
        f"upload {upload.id!r} is {upload.status}: create a new one", param="upload_id", code=f"upload_{upload.status}"
    )


async def _make(services: Services, upload: store.Upload, body: CompleteUpload) -> None:
    """Create the document of the parts. Does nothing if the upload was cancelled or completed in the meantime."""
    parts = await _parts(services, upload, body.part_ids)
    document_id = new_id("doc")
    received = await _joined(services, upload, document_id, parts, body.md5)
    await make(services, document_id, received, None, upload=upload.id, held=upload.bytes)


async def _parts(services: Services, upload: store.Upload, ids: Sequence[str]) -> list[store.Part]:
    """Return the parts in the order of `ids`. Raises `ServerError` for unknown or repeated ids, and for a wrong total size."""
    stored = await services.uploads.parts(upload.id)
    seen = set[str]()
    for index, id in enumerate(ids):
        name = f"part_ids.{index}"
        if id not in stored:
            raise NotFound(f"{name}: no part {id!r} in this upload", param=name, code="part_not_found")
        if id in seen:
            raise InvalidRequest(f"{name}: part {id!r} is listed twice", param=name)
        seen.add(id)
    parts = [stored[id] for id in ids]
    size = sum(part.bytes for part in parts)
    if size != upload.bytes:
        raise InvalidRequest(
            f"part_ids: the parts have {size} bytes, but the upload was created with {upload.bytes}",
            param="part_ids",
            code="size_mismatch",
        )
    return parts


async def _joined(
    services: Services, upload: store.Upload, document_id: str, parts: Sequence[store.Part], md5: str | None
) -> ReceivedFile:
    """Join the parts in one blob and check the text. Raises `ServerError` if the file or its checksum is invalid."""
    if services.engine.draining:
        raise Unavailable("the server is shutting down", code="draining", retry_after=5)
    blobs = services.blobs
    text, total = TextChecker(services.settings.max_document_bytes), hashlib.md5(usedforsecurity=False)
    writer = await blobs.create(document_id)
    try:
        for part in parts:
            try:
                file = await asyncio.to_thread(blobs.open, part.name)
            except FileNotFoundError:  # cancelled in the meantime, or completed by another request
                _pending(await services.uploads.get(upload.id))
                raise
            with contextlib.closing(file):
                while block := await asyncio.to_thread(file.read, _BLOCK):
                    text.feed(block)
                    total.update(block)
                    await writer.write(block)
        start = text.finish()
        if md5 is not None and total.hexdigest() != md5.lower():
            raise InvalidRequest(
                f"md5: the MD5 of the parts is {total.hexdigest()}, got {md5.lower()}",
                param="md5",
                code="checksum_mismatch",
            )
        received = ReceivedFile(text.size - start, start, text.digest.hexdigest(), upload.filename, text.foreign)
        await commit(writer, received)
    except BaseException:
        await writer.abort()
        raise
    return received


async def _view(services: Services, upload: store.Upload) -> Upload:
    file = None
    if upload.file is not None:
        with contextlib.suppress(NotFound):  # deleted since
            file = await files.get(upload.file, services)
    return Upload(
        id=upload.id,
        bytes=upload.bytes,
        created_at=int(upload.created_at),
        expires_at=int(upload.expires_at),
        filename=upload.filename,
        purpose="user_data",
        status=upload.status,
        file=file,
    )
