"""Documents and files of batches in the format of OpenAI's files."""

from __future__ import annotations

from everlong_server.api import schemas
from everlong_server.api.openai.files.schemas import File
from everlong_server.api.views import document_view
from everlong_server.errors import NotFound
from everlong_server.services import Services
from everlong_server.store.batches.files import BatchFile
from everlong_server.store.records import Document

_STATUS = {"queued": "uploaded", "reading": "uploaded", "ready": "processed", "failed": "error"}


def is_batch_file(file_id: str) -> bool:
    """Whether the id is one of a batch's files; else it is one of a document."""
    return file_id.startswith("file_")


async def find_file(services: Services, file_id: str) -> Document | BatchFile:
    """Return the document, or the file of batches, with that id. Raises `NotFound`."""
    if is_batch_file(file_id):
        return await services.batches.files.get(file_id)
    try:
        return await services.documents.get(file_id)
    except NotFound:
        raise no_file(file_id) from None


async def view_file(services: Services, document: Document | BatchFile) -> File:
    """Return a document, or a file of batches, in the format of OpenAI's files."""
    if isinstance(document, BatchFile):
        return File(
            id=document.id,
            bytes=document.bytes,
            created_at=int(document.created_at),
            expires_at=int(document.expires_at),
            filename=document.filename,
            purpose=document.purpose,
            status="processed",
            status_details=None,
        )
    view: schemas.Document = await document_view(services, document)
    return File(
        id=view.id,
        bytes=document.text_offset + document.bytes,
        created_at=int(view.created_at),
        filename=view.filename or view.id,
        status=_STATUS[view.status],
        status_details=view.error.message if view.error else None,
    )


def no_file(file_id: str) -> NotFound:
    """Return the error for a file that does not exist."""
    return NotFound(f"no file {file_id[:64]!r}", param="file_id", code="file_not_found")
