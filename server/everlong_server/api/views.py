"""Records as the API shows them, and the request's way to the services."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from everlong_server.api import schemas
from everlong_server.errors import Unavailable
from everlong_server.services import Services
from everlong_server.store.records import Document, Reading, Session, reading_id


def get_services(connection: HTTPConnection) -> Services:
    """Raises `Unavailable` while the model is being loaded."""
    services: Services | None = connection.app.state.services
    if services is None:
        raise Unavailable("the model is being loaded", code="loading", retry_after=2)
    return services


Served = Annotated[Services, Depends(get_services)]


async def document_view(services: Services, document: Document) -> schemas.Document:
    """A document with its reading by the served model, which is queued if there is none yet."""
    model = services.model
    id = reading_id(model.fingerprint, [document.id])
    reading = await services.documents.reading(id)
    if reading is None:  # uploaded when another model was served
        await services.documents.ensure_reading(model.fingerprint, [document.id])
        reading = await services.documents.reading(id)
    return _document(document, reading, model.name)


def _document(document: Document, reading: Reading | None, model: str) -> schemas.Document:
    cursor = reading.cursor if reading else None
    status = reading.status if reading else "queued"
    began = cursor is not None and cursor.position > 0
    read = max(0, cursor.bytes - document.text_offset) if cursor else 0
    return schemas.Document(
        id=document.id,
        filename=document.filename,
        status=status,
        bytes=document.bytes,
        tokens=cursor.tokens if cursor else 0,
        segments=cursor.segments if cursor else 0,
        progress=1.0 if status == "ready" else read / document.bytes if began else None,
        tokens_per_second=cursor.tokens / cursor.seconds if cursor and cursor.seconds > 0 else None,
        model=model,
        state_digest=reading.state_digest if reading else None,
        error=schemas.DocumentError(**reading.error) if reading and reading.error else None,
        created_at=document.created_at,
    )


async def session_view(services: Services, session: Session) -> schemas.Session:
    """A session."""
    return schemas.Session(
        id=session.id,
        documents=list(session.documents),
        model=session.model_name,
        status=await services.conversations.state_of(session),
        position=session.position,
        messages=session.messages,
        state_bytes=session.state_bytes or services.model.state_bytes,
        state_digest=session.state_digest,
        created_at=session.created_at,
    )


def model_view(services: Services) -> schemas.ServedModel:
    """The served model."""
    model = services.model
    return schemas.ServedModel(
        id=model.name,
        backbone=model.backbone_name,
        memory=model.memory_name,
        memory_trained=model.trained,
        segment_length=model.segment_length,
        state_bytes=model.state_bytes,
        fingerprint=model.fingerprint,
        description=model.description,
    )
