"""`POST /v1/documents/fetch`: downloads a document from a host in EVERLONG_FETCH_HOSTS."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from everlong_server.api import schemas
from everlong_server.api.bodies.fetched import open_url, parse_allowed_url
from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.bodies.request_file import RequestFile
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of, run_once
from everlong_server.api.views import document_view
from everlong_server.store.idempotency import IdempotencyRecord

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES, route_class=JsonRoute)


class Fetch(schemas.Wire):
    """The address of a document."""

    url: str = Field(max_length=2048, description="http:// or https:// URL on a host in EVERLONG_FETCH_HOSTS")
    filename: str | None = Field(
        None, max_length=255, description="name to show for the document; default: last part of the URL's path"
    )
    ocr_language: str | None = Field(None, max_length=60, description=schemas.OCR_LANGUAGE)


@router.post("/fetch", status_code=202)
async def fetch(body: Fetch, services: CallerServices, key: IdempotencyKey = None) -> schemas.Document:
    """Downloads a file from a URL and stores it as `POST /v1/documents` does. The server reads it in the background.

    A retry with the same Idempotency-Key returns the first document and does not download the file again.
    """
    url = parse_allowed_url(body.url, services.shared.settings.fetch_hosts)

    async def make(record: IdempotencyRecord) -> schemas.Document:
        id = f"doc_{record.id}"
        # If it exists, the first server died before it recorded the result.
        if not record.first and await services.documents.exists(id):
            document = await services.documents.get(id)
        else:
            async with open_url(url, body.filename) as page:
                source = RequestFile(page, limit=services.ingest.max_bytes)
                document = await services.ingest.add(source, record, None, body.ocr_language)
        return await document_view(services, document)

    return await run_once(services, key, ("fetch", content_of(body)), schemas.Document, make)
