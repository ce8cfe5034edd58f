"""`/v1/conversion`: the progress of the conversion of a file, while its upload waits for the answer."""

from __future__ import annotations

from fastapi import APIRouter

from everlong_server.api import schemas
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import RequiredKey

router = APIRouter(tags=["documents"], responses=ERROR_RESPONSES)


@router.get("/v1/conversion")
async def conversion(services: CallerServices, key: RequiredKey) -> schemas.Conversion:
    """Returns the page that the server is at in the file of an upload, or of a `complete` of parts, that it has not answered yet.
    Send the `Idempotency-Key` of that request."""
    page, pages = await services.idempotency.page(key) or (None, None)
    return schemas.Conversion(page=page, pages=pages)
