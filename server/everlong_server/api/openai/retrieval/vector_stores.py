"""`/v1/vector_stores`: sets of files that are searched together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of, run_once
from everlong_server.api.openai.retrieval import vector_store_schemas as schemas
from everlong_server.api.openai.retrieval.vector_store_view import view_hit, view_store
from everlong_server.api.schemas import AfterId, PageLimit
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.api.translation.files import require_file
from everlong_server.errors import TooLarge
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import Document, now
from everlong_server.store.vector_stores.records import StoredFile, VectorStore

router = APIRouter(prefix="/v1/vector_stores", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


def _refuse_before(value: str | None) -> str | None:
    if value is not None:
        raise PydanticCustomError("before", "lists go forward only: use `after`")
    return value


NoBefore = Annotated[str | None, Query(description="not supported"), AfterValidator(_refuse_before)]
Newest = Annotated[Literal["desc"], Query(description="newest first")]


@router.post("")
async def create(
    body: schemas.CreateVectorStore, services: CallerServices, key: IdempotencyKey = None
) -> schemas.VectorStore:
    """Creates a vector store. Its files can be searched at once; the search by meaning follows in the background."""

    async def make(record: IdempotencyRecord) -> schemas.VectorStore:
        documents = [await require_file(services, file, f"file_ids.{n}") for n, file in enumerate(body.file_ids)]
        store = VectorStore(f"vs_{record.id}", now(), body.name, body.description, body.metadata)
        await services.vector_stores.create(store)
        try:
            await attach_all(services, store.id, documents, [{}] * len(documents))
        except BaseException:  # the client does not learn the id of a refused store
            await services.vector_stores.delete(store.id)
            raise
        return view_store(await services.vector_stores.get(store.id))

    return await run_once(services, key, ("vector_store", content_of(body)), schemas.VectorStore, make)


@router.get("")
async def index(
    services: CallerServices,
    limit: PageLimit = 20,
    order: Newest = "desc",
    after: AfterId = None,
    before: NoBefore = None,
) -> schemas.VectorStoreList:
    """Lists all vector stores, newest first."""
    stores, more = await services.vector_stores.newest(limit, after)
    return schemas.VectorStoreList.of([view_store(store) for store in stores], more=more)


@router.get("/{vector_store_id}")
async def get(vector_store_id: str, services: CallerServices) -> schemas.VectorStore:
    """Returns a vector store."""
    return view_store(await services.vector_stores.get(vector_store_id))


@router.post("/{vector_store_id}")
async def update(
    vector_store_id: str, body: schemas.UpdateVectorStore, services: CallerServices
) -> schemas.VectorStore:
    """Changes the name, the description or the metadata of a vector store."""
    changes = body.model_dump(include=body.model_fields_set - {"expires_after"})
    if "metadata" in changes:
        changes["metadata"] = changes["metadata"] or {}
    return view_store(await services.vector_stores.update(vector_store_id, changes))


@router.delete("/{vector_store_id}")
async def delete(vector_store_id: str, services: CallerServices) -> schemas.VectorStoreDeleted:
    """Deletes a vector store. Its files stay."""
    await services.vector_stores.delete(vector_store_id)
    return schemas.VectorStoreDeleted(id=vector_store_id)


@router.post("/{vector_store_id}/search", response_model=schemas.SearchResultPage)
async def search(
    vector_store_id: str, body: schemas.SearchVectorStore, request: Request, services: CallerServices
) -> Response:
    """Returns the passages of a vector store's files that fit a query best."""
    result = await run_unless_disconnected(request, _search(services, vector_store_id, body))
    return JSONResponse(result.model_dump(mode="json"))


async def _search(services: Services, store_id: str, body: schemas.SearchVectorStore) -> schemas.SearchResultPage:
    queries = [body.query] if isinstance(body.query, str) else body.query
    limit = services.shared.settings.max_message_chars
    if (length := sum(map(len, queries))) > limit:
        raise TooLarge(f"query has {length} characters, the limit is {limit}", param="query")
    filter = None if body.filters is None else body.filters.model_dump()
    files = await services.store_search.files([store_id], filter, "vector_store_id")
    ranking = body.ranking_options
    hits = await services.store_search.search(
        files, queries, body.max_num_results, ranking.score_threshold, rerank=ranking.ranker != "none"
    )
    names = await services.passages.filenames({hit.file.document for hit in hits})
    return schemas.SearchResultPage(search_query=queries, data=[view_hit(hit, names) for hit in hits])


async def attach_all(
    services: Services,
    store_id: str,
    documents: Sequence[Document],
    attributes: Sequence[dict[str, str | float | bool]],
) -> list[StoredFile]:
    """Add documents to a vector store, with the attributes of each."""
    files = []
    for document, own in zip(documents, attributes, strict=True):
        files.append(await services.vector_stores.attach(StoredFile(document.id, store_id, now(), document.bytes, own)))
    return files
