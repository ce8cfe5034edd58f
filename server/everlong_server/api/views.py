"""Converts stored records, models and file formats to the objects that the API returns."""

from __future__ import annotations

import contextlib
from dataclasses import asdict

from everlong_models.catalogue.entry import entries
from everlong_models.memories.view import LayerView
from everlong_models.text.embedder import MAX_TOKENS
from everlong_server.api import memory_schemas, model_schemas, schemas
from everlong_server.engine.answering.memory_view import SessionMemory
from everlong_server.engine.documents.formats.catalogue import accepted_formats
from everlong_server.errors import RateLimited
from everlong_server.services import NamedModel, Services, tenant_services
from everlong_server.store.records import Document, Reading, Session, reading_id


async def document_view(services: Services, document: Document) -> schemas.Document:
    """Return a document and the progress of its reading by the served model. Queues the reading if there is none and the tenant's quota allows it."""
    model = services.shared.model
    id = reading_id(model.fingerprint, [document.id])
    reading = await services.documents.readings.get(id)
    if reading is None:  # it was uploaded while another model was served
        with contextlib.suppress(RateLimited):  # the next request for the document queues it
            await services.documents.readings.ensure(model.fingerprint, [document.id])
        reading = await services.documents.readings.get(id)
    share = await services.passages.vectors_progress(document.id)
    return _document(document, reading, model.name, share)


def _document(document: Document, reading: Reading | None, model: str, vectors: float | None) -> schemas.Document:
    cursor = reading.cursor if reading else None
    status = reading.status if reading else "queued"
    started = reading is not None and reading.snapshot.position > 0
    read = max(0, cursor.bytes - document.text_offset) if cursor else 0
    return schemas.Document(
        id=document.id,
        filename=document.filename,
        status=status,
        format=document.format,
        notes=[schemas.DocumentNote(**asdict(note)) for note in document.notes],
        pages=document.original_bytes > 0,
        bytes=document.bytes,
        tokens=cursor.tokens if cursor else 0,
        segments=cursor.segments if cursor else 0,
        progress=1.0 if status == "ready" else read / document.bytes if started else None,
        tokens_per_second=cursor.tokens / cursor.seconds if cursor and cursor.seconds > 0 else None,
        model=model,
        state_digest=reading.snapshot.digest if reading else None,
        error=schemas.DocumentError(**reading.error) if reading and reading.error else None,
        vectors=None if vectors is None else schemas.DocumentVectors(progress=vectors),
        created_at=document.created_at,
    )


async def session_view(services: Services, session: Session) -> schemas.Session:
    """Return a session."""
    return schemas.Session(
        id=session.id,
        title=session.title,
        documents=list(session.documents),
        model=session.model_name,
        status=await services.session_turns.state_of(session),
        position=session.snapshot.position,
        messages=session.messages,
        recall=schemas.Recall(**session.recall) if session.recall else session.recall,
        state_bytes=session.snapshot.size or services.shared.models.state_bytes(session.model_name),
        state_digest=session.snapshot.digest,
        created_at=session.created_at,
        parent=session.parent,
        client=session.client,
        answering=await services.sessions.is_answering(session.id),
    )


def memory_view(services: Services, inspected: SessionMemory) -> memory_schemas.SessionMemory:
    """Return a session's memory, with positions rounded to 1/1,000 of a token and shares to 1/1,000,000."""
    view, model = inspected.view, services.shared.model
    return memory_schemas.SessionMemory(
        session=inspected.session.id,
        memory=model.memory_name,
        tokens=view.tokens,
        segments=view.segments,
        segment_length=model.segment_length,
        open=view.open,
        bytes=view.bytes,
        documents=[memory_schemas.MemoryDocument(**asdict(extent)) for extent in inspected.documents],
        parts=[memory_schemas.MemoryPart(**asdict(part) | {"used": round(part.used, 3)}) for part in view.parts],
        layers=[_layer(layer, inspected) for layer in view.layers],
    )


def _layer(layer: LayerView, inspected: SessionMemory) -> memory_schemas.MemoryLayer:
    phrases = []
    for phrase in layer.phrases:
        passage = inspected.passages.get((phrase.start, phrase.end))
        quote = (
            None
            if passage is None
            else memory_schemas.Quote(**{f: getattr(passage, f) for f in memory_schemas.Quote.model_fields})
        )
        space = round(phrase.space, 6)
        phrases.append(memory_schemas.MemoryPhrase(start=phrase.start, end=phrase.end, space=space, quote=quote))
    return memory_schemas.MemoryLayer(
        layer=layer.layer,
        edges=[round(edge, 3) for edge in layer.edges],
        attention=None if layer.attention is None else [round(share, 6) for share in layer.attention],
        phrases=phrases,
    )


def formats_view(services: Services) -> schemas.FormatList:
    """Return the accepted file formats and the size limit."""
    data = [
        schemas.Format(id=id, name=name, extensions=list(extensions), media_types=list(media_types))
        for id, name, extensions, media_types in accepted_formats()
    ]
    return schemas.FormatList(data=data, max_bytes=services.shared.settings.max_document_bytes)


def model_views(services: Services) -> list[model_schemas.ServedModel | model_schemas.UnloadedModel]:
    """Return the models that answer questions, the first one first."""
    return [_model_view(services, each) for each in services.shared.models.all]


def _model_view(services: Services, named: NamedModel) -> model_schemas.ServedModel | model_schemas.UnloadedModel:
    created = int(services.shared.started_at)
    if named.shared is None:
        return model_schemas.UnloadedModel(id=named.name, created=created, memory_bytes=named.bytes)
    model, services = named.shared.model, tenant_services(named.shared, services.tenant)
    known = entries().get(model.backbone_name or "")
    return model_schemas.ServedModel(
        id=model.name,
        created=created,
        memory_bytes=named.bytes,
        backbone=model.backbone_name,
        memory=model.memory_name,
        memory_trained=model.trained,
        remembered_tokens=model.memory.remembered_tokens,
        parameters=known.parameters if known else None,
        recall_passages=services.recall.passages,
        recall_tokens=services.recall.tokens,
        max_recall_tokens=model.memory.visible_tokens,
        segment_length=model.segment_length,
        state_bytes=model.state_bytes,
        fingerprint=model.fingerprint,
        description=model.description,
    )


def embedding_model_view(services: Services) -> model_schemas.EmbeddingModel | None:
    """Return the embedding model; None if the server has none."""
    embedder = services.shared.embedder
    if embedder is None:
        return None
    return model_schemas.EmbeddingModel(
        id=embedder.name,
        created=int(services.shared.started_at),
        dimensions=embedder.dimension,
        max_tokens=MAX_TOKENS,
        languages=None if embedder.languages is None else sorted(embedder.languages),
        fingerprint=embedder.digest,
        description="turns texts into vectors, for the search by meaning",
    )
