"""`GET /v1/documents/{id}/text`: a part of a document's text.

Offsets count bytes of UTF-8, like those of `Evidence`. A seek finds a byte at once; finding a character would mean reading
the whole text before it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from everlong_server.api import schemas
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.errors import InvalidRequest
from everlong_server.store.readings import no_document
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES)

DEFAULT_BYTES, MAX_BYTES = 16 << 10, 64 << 10
"""Size of a part without `end_byte`, and maximum size of a part."""


@router.get("/{document_id}/text")
async def text(
    document_id: str,
    services: CallerServices,
    start_byte: Annotated[int, Query(ge=0, description="offset of the first byte")] = 0,
    end_byte: Annotated[
        int | None, Query(ge=0, description=f"offset after the last byte; default: start_byte + {DEFAULT_BYTES}")
    ] = None,
) -> schemas.DocumentText:
    """Returns a part of the text of at most 65,536 bytes. Both ends move back to the start of a character, so that adjacent
    parts contain each character once. The part stops at the end of the text."""
    end = start_byte + DEFAULT_BYTES if end_byte is None else end_byte
    document = await services.documents.get(document_id)
    if start_byte > document.bytes:
        raise InvalidRequest(
            f"start_byte: {start_byte} is beyond the end of the text, which has {document.bytes} bytes",
            param="start_byte",
        )
    if not 0 <= end - start_byte <= MAX_BYTES:
        raise InvalidRequest(
            f"end_byte: {end} is {end - start_byte} bytes after start_byte; it must be 0 to {MAX_BYTES} bytes after it",
            param="end_byte",
        )
    try:
        start, part = await asyncio.to_thread(_part, services.shared.stores.blobs, document, start_byte, end)
    except FileNotFoundError:  # deleted in the meantime
        raise no_document(document_id, "document_id") from None
    return schemas.DocumentText(
        document=document_id, start_byte=start, end_byte=start + len(part), bytes=document.bytes, text=part.decode()
    )


def _part(blobs: Blobs, document: Document, start: int, end: int) -> tuple[int, bytes]:
    """Read bytes `start` to `end`, both moved back to a character's first byte. Returns the offset and the bytes."""
    first = max(0, start - 3)  # a character has at most four bytes
    with blobs.open(document.id, document.text_offset + first) as file:
        data = file.read(min(end, document.bytes) + 1 - first)  # one byte more, to see if it starts a character

    def character_start(at: int) -> int:
        at = min(at, document.bytes) - first
        while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
            at -= 1
        return at

    return first + character_start(start), data[character_start(start) : character_start(end)]
