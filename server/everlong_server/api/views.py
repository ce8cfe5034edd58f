"""Records as the API shows them, and the request's way to the services."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from everlong_models.memories.view import LayerView
from everlong_server.api import schemas
from everlong_server.engine.answering.memory_view import SessionMemory
from everlong_server.engine.documents import formats
from everlong_server.errors import RateLimited, Unavailable
from everlong_server.services import Services
from everlong_server.store.records import Document, Reading, Session, reading_id


def whole(connection: HTTPConnection) -> Services:
    """The services, nobody's in particular. Raises `Unavailable` while the model is being loaded."""
    services: Services | None = connection.app.state.services
    if services is None:
        raise Unavailable("the model is being loaded", code="loading", retry_after=2)
    return services


def get_services(connection: HTTPConnection) -> Services:
    """The caller's services: what other tenants have is not there. Raises `Unavailable` as `whole` does."""
    return whole(connection).of(connection.state.caller.tenant)


Served = Annotated[Services, Depends(get_services)]


async def document_view(services: Services, document: Document) -> schemas.Document:
    """A document with its reading by the served model, which is queued if there is none yet."""
    model = services.model
    id = reading_id(model.fingerprint, [document.id])
    reading = await services.documents.reading(id)
    if reading is None:  # uploaded when another model was served
        with contextlib.suppress(RateLimited):  # then it is queued when somebody looks again
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
        format=document.format,
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
        title=session.title,
        documents=list(session.documents),
        model=session.model_name,
        status=await services.session_turns.state_of(session),
        position=session.position,
        messages=session.messages,
        recall=schemas.Recall(**session.recall) if session.recall else session.recall,
        state_bytes=session.state_bytes or services.model.state_bytes,
        state_digest=session.state_digest,
        created_at=session.created_at,
    )


def memory_view(services: Services, look: SessionMemory) -> schemas.SessionMemory:
    """A session's memory. Positions to a thousandth of a token and shares to a millionth: nobody sees more."""
    view, model = look.view, services.model
    return schemas.SessionMemory(
        session=look.session.id,
        memory=model.memory_name,
        tokens=view.tokens,
        segments=view.segments,
        segment_length=model.segment_length,
        open=view.open,
        bytes=view.bytes,
        documents=[schemas.MemoryDocument(**asdict(extent)) for extent in look.documents],
        parts=[schemas.MemoryPart(**asdict(part) | {"used": round(part.used, 3)}) for part in view.parts],
        layers=[_layer(layer, look) for layer in view.layers],
    )


def _layer(layer: LayerView, look: SessionMemory) -> schemas.MemoryLayer:
    phrases = []
    for phrase in layer.phrases:
        passage = look.passages.get((phrase.start, phrase.end))
        quote = (
            None if passage is None else schemas.Quote(**{f: getattr(passage, f) for f in schemas.Quote.model_fields})
        )
        space = round(phrase.space, 6)
        phrases.append(schemas.MemoryPhrase(start=phrase.start, end=phrase.end, space=space, quote=quote))
    return schemas.MemoryLayer(
        layer=layer.layer,
        edges=[round(edge, 3) for edge in layer.edges],
        attention=None if layer.attention is None else [round(share, 6) for share in layer.attention],
        phrases=phrases,
    )


def formats_view(services: Services) -> schemas.FormatList:
    """What can be uploaded here."""
    data = [
        schemas.Format(id=id, name=name, extensions=list(extensions), media_types=list(media_types))
        for id, name, extensions, media_types in formats.accepted()
    ]
    return schemas.FormatList(data=data, max_bytes=services.settings.max_document_bytes)


def model_view(services: Services) -> schemas.ServedModel:
    """The served model."""
    model = services.model
    return schemas.ServedModel(
        id=model.name,
        created=int(services.began),
        backbone=model.backbone_name,
        memory=model.memory_name,
        memory_trained=model.trained,
        segment_length=model.segment_length,
        state_bytes=model.state_bytes,
        fingerprint=model.fingerprint,
        description=model.description,
    )
