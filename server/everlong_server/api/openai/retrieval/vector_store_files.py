"""`/v1/vector_stores/{id}/files`: the files of a vector store."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of, run_once
from everlong_server.api.openai.retrieval import vector_store_schemas as schemas
from everlong_server.api.openai.retrieval.vector_store_view import view_store_file
from everlong_server.api.openai.retrieval.vector_stores import Newest, NoBefore, attach_all
from everlong_server.api.schemas import AfterId, PageLimit
from everlong_server.api.translation.files import require_file
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.vector_stores.records import StoredFile

router = APIRouter(
    prefix="/v1/vector_stores/{vector_store_id}/files",
    tags=["openai"],
    responses=ERROR_RESPONSES,
    route_class=JsonRoute,
)


@router.post("")
async def create(
    vector_store_id: str, body: schemas.AddFile, services: CallerServices, key: IdempotencyKey = None
) -> schemas.VectorStoreFile:
    """Adds a file to a vector store. A file that is in it already gets the new attributes."""

    async def make(record: IdempotencyRecord) -> schemas.VectorStoreFile:
        await services.vector_stores.get(vector_store_id)
        document = await require_file(services, body.file_id, "file_id")
        (file,) = await attach_all(services, vector_store_id, [document], [body.attributes])
        return view_store_file(file)

    asked = ("vector_store_file", vector_store_id, content_of(body))
    return await run_once(services, key, asked, schemas.VectorStoreFile, make)


@router.get("")
async def index(
    vector_store_id: str,
    services: CallerServices,
    limit: PageLimit = 20,
    order: Newest = "desc",
    after: AfterId = None,
    before: NoBefore = None,
    filter: Annotated[
        Literal["in_progress", "completed", "failed", "cancelled"] | None,
        Query(description="only files of this status"),
    ] = None,
) -> schemas.VectorStoreFileList:
    """Lists the files of a vector store, newest first."""
    files, more = await services.vector_stores.files(vector_store_id, limit, after)
    if filter not in (None, "completed"):
        files, more = [], False
    return schemas.VectorStoreFileList.of([view_store_file(file) for file in files], more=more)


@router.get("/{file_id}")
async def get(vector_store_id: str, file_id: str, services: CallerServices) -> schemas.VectorStoreFile:
    """Returns a file of a vector store."""
    return view_store_file(await services.vector_stores.file(vector_store_id, file_id))


@router.post("/{file_id}")
async def update(
    vector_store_id: str, file_id: str, body: schemas.UpdateFile, services: CallerServices
) -> schemas.VectorStoreFile:
    """Replaces the attributes of a file."""
    file = await services.vector_stores.file(vector_store_id, file_id)
    changed = StoredFile(file.document, file.store, file.created_at, file.bytes, body.attributes)
    return view_store_file(await services.vector_stores.set_attributes(changed))


@router.delete("/{file_id}")
async def delete(vector_store_id: str, file_id: str, services: CallerServices) -> schemas.VectorStoreFileDeleted:
    """Removes a file from a vector store. It stays a file."""
    await services.vector_stores.detach(vector_store_id, file_id)
    return schemas.VectorStoreFileDeleted(id=file_id)
