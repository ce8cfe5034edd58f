"""`GET /v1/documents/{id}/text`: a part of a document's text, however long that is.

Counted in bytes of its UTF-8, as `Evidence` counts too: where a character stands in a file can only be found by reading
all that is before it, a byte is found at once.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from everlong_server.api import schemas
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.views import CallerServices
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES)

USUAL, MOST = 16 << 10, 64 << 10
"""Bytes: of an answer whose end was not named, and of any."""


@router.get("/{document_id}/text")
async def text(
    document_id: str,
    services: CallerServices,
    start_byte: Annotated[int, Query(ge=0, description="the first byte")] = 0,
    end_byte: Annotated[
        int | None, Query(ge=0, description=f"the byte after the last; {USUAL} more than the first if left out")
    ] = None,
) -> schemas.DocumentText:
    """A part of the text, of at most 65,536 bytes. Both ends move back to the beginning of a character, so that parts
    that meet have every character once; what lies beyond the end of the text is left out."""
    end = start_byte + USUAL if end_byte is None else end_byte
    document = await services.documents.get(document_id)
    if start_byte > document.bytes:
        raise InvalidRequest(f"start_byte: {start_byte}; the text has {document.bytes} bytes", param="start_byte")
    if not 0 <= end - start_byte <= MOST:
        raise InvalidRequest(
            f"end_byte: {end} is {end - start_byte} bytes behind start_byte; it can be 0 … {MOST}", param="end_byte"
        )
    try:
        start, part = await asyncio.to_thread(_part, services.blobs, document, start_byte, end)
    except FileNotFoundError:  # deleted since it was looked up
        raise NotFound(f"no document {document_id!r}", param="document_id", code="document_not_found") from None
    return schemas.DocumentText(
        document=document_id, start_byte=start, end_byte=start + len(part), bytes=document.bytes, text=part.decode()
    )


def _part(blobs: Blobs, document: Document, start: int, end: int) -> tuple[int, bytes]:
    """Bytes `start` to `end` of the text, both moved back to a character's first byte: where they start, and they."""
    first = max(0, start - 3)  # a character has at most four bytes
    with blobs.open(document.id, document.text_offset + first) as file:
        data = file.read(min(end, document.bytes) + 1 - first)  # with the byte behind: is it a character's first?

    def whole(at: int) -> int:
        at = min(at, document.bytes) - first
        while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
            at -= 1
        return at

    return first + whole(start), data[whole(start) : whole(end)]
