"""`/v1/uploads`: a file that comes in parts, in any order and over any number of connections."""

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
"""By upload."""
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
    """A file that is about to come."""

    bytes: int = Field(ge=1, description="of all parts together")
    filename: str = Field(min_length=1, max_length=255)
    mime_type: str = Field(max_length=255, description="what counts is what comes: UTF-8 text")
    purpose: Literal["user_data"]


class CompleteUpload(Nullable, Wire):
    """All parts are there."""

    part_ids: list[Annotated[str, Field(max_length=128)]] = Field(
        min_length=1, max_length=MAX_PARTS, description="in the order of the text"
    )
    md5: str | None = Field(None, pattern="^[0-9a-fA-F]{32}$", description="of the whole text")


class Upload(Wire):
    """A file that comes in parts, or has come."""

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
    """A part that is on disk."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


@router.post("")
async def create(body: CreateUpload, services: CallerServices) -> Upload:
    """Begins an upload, which expires in an hour (`EVERLONG_UPLOAD_SECONDS`) with all of its parts."""
    limit = services.settings.max_document_bytes
    if body.bytes > limit:
        error = too_large(limit)
        error.param = "bytes"
        raise error
    if (filename := clean_filename(body.filename)) is None:
        raise InvalidRequest("filename: it is a path, and not a file's name", param="filename")
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
    """Adds a part: any bytes of the text, streamed to disk. One whose answer was lost can be sent again."""
    if services.engine.draining:
        raise Unavailable("the server is shutting down", code="draining", retry_after=5)
    upload = _pending(await services.uploads.get(upload_id))
    there = await services.uploads.parts(upload.id)
    if len(there) >= MAX_PARTS:
        raise InvalidRequest(f"the upload has {len(there)} parts, the limit is {MAX_PARTS}", param="upload_id")
    # Room for all of it twice: a part may come again whose answer was lost.
    room = 2 * upload.bytes - sum(part.bytes for part in there.values())
    piece = PartChecker(min(upload.bytes, room), room, _IN_FLIGHT.setdefault(upload.id, BytesInFlight()))
    part_id, moment = new_id("part"), await services.uploads.moment()
    name = store.Part(part_id, upload.id, 0, moment).name
    added = False
    try:
        await receive_part(request, services.blobs, name, piece)
        part = store.Part(part_id, upload.id, piece.size, moment)
        size = part.bytes + sum(one.bytes for one in (await services.uploads.parts(upload.id)).values())
        if size > upload.bytes:  # a part came twice
            await services.quota.hold(upload.id, size, upload.expires_at - moment)
        added = await services.uploads.add(part, 2 * upload.bytes, MAX_PARTS)
    except FileNotFoundError:  # what was received was thrown away meanwhile, with the upload
        log.info("part %s has lost its upload", part_id)
    finally:
        piece.end()
        if not added:
            await services.blobs.delete(name)
    if not added:
        _pending(await services.uploads.get(upload_id))
        raise Conflict(f"part {part_id!r} was not added: send it again", param="upload_id")
    return UploadPart(id=part_id, created_at=int(moment), upload_id=upload.id)


@router.post("/{upload_id}/complete")
async def complete(upload_id: str, body: CompleteUpload, services: CallerServices) -> Upload:
    """Makes a file of the parts; it is being read when this answers. Sent again, it answers the same."""
    upload = await services.uploads.get(upload_id)
    if upload.status != "completed":
        refused: ServerError | None = None
        try:
            await _make(services, _pending(upload), body)
        except (Conflict, NotFound) as error:  # as when another request has completed it meanwhile
            refused = error
        upload = await services.uploads.get(upload_id)
        if upload.status != "completed":
            raise refused or _not_pending(upload)
    await services.blobs.delete_parts(upload.id)
    await services.quota.release(upload.id)
    return await _view(services, upload)


@router.post("/{upload_id}/cancel")
async def cancel(upload_id: str, services: CallerServices) -> Upload:
    """Cancels it and deletes its parts."""
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
    """Raises `Conflict` for one to which nothing can be added any more."""
    if upload.status != "pending":
        raise _not_pending(upload)
    return upload


def _not_pending(upload: store.Upload) -> Conflict:
    return Conflict(f"upload {upload.id!r} is {upload.status}", param="upload_id", code=f"upload_{upload.status}")


async def _make(services: Services, upload: store.Upload, body: CompleteUpload) -> None:
    """The document of the upload's parts, unless the upload was cancelled or completed meanwhile."""
    parts = await _parts(services, upload, body.part_ids)
    document_id = new_id("doc")
    received = await _joined(services, upload, document_id, parts, body.md5)
    await make(services, document_id, received, None, upload=upload.id, held=upload.bytes)


async def _parts(services: Services, upload: store.Upload, ids: Sequence[str]) -> list[store.Part]:
    """The parts in that order. Raises what is wrong with them."""
    there = await services.uploads.parts(upload.id)
    seen = set[str]()
    for place, id in enumerate(ids):
        name = f"part_ids.{place}"
        if id not in there:
            raise NotFound(f"{name}: no part {id!r} of this upload", param=name, code="part_not_found")
        if id in seen:
            raise InvalidRequest(f"{name}: part {id!r} is named twice", param=name)
        seen.add(id)
    parts = [there[id] for id in ids]
    size = sum(part.bytes for part in parts)
    if size != upload.bytes:
        raise InvalidRequest(
            f"part_ids: the parts have {size} bytes, the upload was to have {upload.bytes}",
            param="part_ids",
            code="size_mismatch",
        )
    return parts


async def _joined(
    services: Services, upload: store.Upload, document_id: str, parts: Sequence[store.Part], md5: str | None
) -> ReceivedFile:
    """The parts in one blob. Raises what is wrong with them."""
    if services.engine.draining:
        raise Unavailable("the server is shutting down", code="draining", retry_after=5)
    blobs = services.blobs
    text, total = TextChecker(services.settings.max_document_bytes), hashlib.md5(usedforsecurity=False)
    writer = await blobs.create(document_id)
    try:
        for part in parts:
            try:
                file = await asyncio.to_thread(blobs.open, part.name)
            except FileNotFoundError:  # cancelled meanwhile, or completed by another request
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
                f"md5: the parts have {total.hexdigest()}, not {md5.lower()}", param="md5", code="checksum_mismatch"
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
