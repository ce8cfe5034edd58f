"""`/v1/vector_stores/{id}/file_batches`: several files added at once. They are added before the request ends."""

from __future__ import annotations

from fastapi import APIRouter

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of, run_once
from everlong_server.api.openai.retrieval import vector_store_schemas as schemas
from everlong_server.api.openai.retrieval.vector_store_view import view_batch
from everlong_server.api.openai.retrieval.vector_stores import attach_all
from everlong_server.api.translation.files import require_file
from everlong_server.errors import InvalidRequest
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import now
from everlong_server.store.vector_stores.records import FileBatch

router = APIRouter(
    prefix="/v1/vector_stores/{vector_store_id}/file_batches", tags=["openai"], responses=ERROR_RESPONSES,
    route_class=JsonRoute,
)  # fmt: skip


@router.post("")
async def create(
    vector_store_id: str, body: schemas.AddFiles, services: CallerServices, key: IdempotencyKey = None
) -> schemas.FileBatch:
    """Adds several files to a vector store. The batch is kept for a day."""

    async def make(record: IdempotencyRecord) -> schemas.FileBatch:
        await services.vector_stores.get(vector_store_id)
        if (body.files is None) == (body.file_ids is None):
            raise InvalidRequest("send either `file_ids` or `files`", param="file_ids")
        if body.files is not None:
            wanted = [(file.file_id, file.attributes, f"files.{n}.file_id") for n, file in enumerate(body.files)]
        else:
            wanted = [(file, body.attributes, f"file_ids.{n}") for n, file in enumerate(body.file_ids or ())]
        documents = [await require_file(services, file, param) for file, _, param in wanted]
        await attach_all(services, vector_store_id, documents, [attributes for _, attributes, _ in wanted])
        batch = FileBatch(f"vsfb_{record.id}", vector_store_id, now(), tuple(document.id for document in documents))
        await services.vector_stores.keep_batch(batch)
        return view_batch(batch)

    asked = ("file_batch", vector_store_id, content_of(body))
    return await run_once(services, key, asked, schemas.FileBatch, make)


@router.get("/{file_batch_id}")
async def get(vector_store_id: str, file_batch_id: str, services: CallerServices) -> schemas.FileBatch:
    """Returns a batch."""
    return view_batch(await services.vector_stores.batch(vector_store_id, file_batch_id))
