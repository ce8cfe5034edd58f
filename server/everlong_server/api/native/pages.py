"""`GET /v1/documents/{id}/pages/{page}.png`: a picture of a page of a PDF."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.native.document_text import MAX_BYTES, text
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.engine.documents.formats.pictures import draw_page
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.pools import SharedPool
from everlong_server.store.readings import no_document
from everlong_server.store.texts import originals

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES)

_PAINTERS = SharedPool("everlong-pages", 2, each=1)


@router.get(
    "/{document_id}/pages/{page}.png",
    response_class=Response,
    responses={200: {"content": {"image/png": {}}, "description": "The picture"}},
)
async def picture(
    document_id: str,
    request: Request,
    page: Annotated[int, Path(ge=1, le=1_000_000, description="number of the page, from 1")],
    services: CallerServices,
    width: Annotated[int, Query(ge=100, le=3000, description="width of the picture in pixels")] = 1000,
    start_byte: Annotated[
        int | None, Query(ge=0, description="first byte of a passage to mark, as in `Evidence`")
    ] = None,
    end_byte: Annotated[
        int | None, Query(ge=0, description=f"byte after the passage; at most {MAX_BYTES} bytes after its first")
    ] = None,
) -> Response:
    """Draws a page of a document that was uploaded as a PDF (`pages` of a document says so), and marks a passage on it."""
    document = await services.documents.get(document_id)
    if not document.original_bytes:
        raise NotFound(
            f"document {document_id!r} has no pages: it was not uploaded as a PDF, or it was uploaded to a version that did not keep PDFs",
            param="document_id", code="page_not_found",
        )  # fmt: skip
    if (start_byte is None) != (end_byte is None):
        raise InvalidRequest("start_byte and end_byte: send both, or neither", param="start_byte")
    passage = "" if start_byte is None else (await text(document_id, services, start_byte, end_byte)).text

    def drawn() -> bytes:
        with services.shared.stores.blobs.local(originals.name(document_id)) as file:
            return draw_page(file, page, width, passage)

    try:
        content = await run_unless_disconnected(request, _PAINTERS.run_for(services.tenant, drawn))
    except FileNotFoundError:  # deleted in the meantime
        raise no_document(document_id, "document_id") from None
    return Response(content, media_type="image/png")
