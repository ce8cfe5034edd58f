"""`/v1/search`: passages of documents for a text, without an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.schemas import Evidence, Wire
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.engine.answering.search.text_search import MAX_DOCUMENTS
from everlong_server.errors import InvalidRequest, TooLarge, missing_in
from everlong_server.services import Services
from everlong_server.store.messages import evidence_json
from everlong_server.store.search.query import PassageFilter

router = APIRouter(prefix="/v1", tags=["documents"], responses=ERROR_RESPONSES, route_class=JsonRoute)

MAX_PASSAGES = 100
_Page = Annotated[int | None, Field(ge=1)]


class SearchFilters(Wire):
    """Restricts a search to some passages. A filter for pages or sections excludes documents that have none."""

    first_page: _Page = Field(None, description="passages that begin on this page or slide, or a later one")
    last_page: _Page = Field(None, description="passages that begin on this page or slide, or an earlier one")
    section: str | None = Field(
        None, min_length=1, max_length=1000, description="passages whose nearest heading contains this, ignoring case"
    )


class SearchDocuments(Wire):
    """A search in documents: in `documents`, or in those of `session`."""

    query: str = Field(min_length=1, description="a question, or words")
    documents: list[str] | None = Field(None, min_length=1, max_length=MAX_DOCUMENTS, description="ids of documents")
    session: str | None = Field(None, description="id of a session")
    limit: int = Field(10, ge=1, le=MAX_PASSAGES, description="maximum number of passages")
    filters: SearchFilters | None = None
    rerank: bool = Field(
        True,
        description="let the reranker order the best 32 passages, for English: better, and takes a few tenths of a second",
    )


class FoundPassage(Evidence):
    """A passage that a search found, with the same offsets as `Evidence`."""

    filename: str | None
    score: float = Field(
        description="1 for a passage that is first in the order of the search, by words and meaning, and in the reranker's; less for "
        "later places; 0 to 1"
    )
    similarity: float | None = Field(
        description="cosine of the vectors of passage and query; null: the document has no vectors (yet)"
    )
    words: float = Field(
        description="share of the query's words that the passage has, weighted by their rarity, 0 to 1"
    )


class SearchResult(Wire):
    """The passages, best first."""

    object: Literal["list"] = "list"
    data: list[FoundPassage]


@router.post("/search", response_model=SearchResult)
async def search(body: SearchDocuments, request: Request, services: CallerServices) -> Response:
    """Returns the passages of documents that fit a query best, without an answer. Deleted documents of a session are skipped."""
    result = await run_unless_disconnected(request, _search(services, body))
    return JSONResponse(result.model_dump(mode="json"))


async def _search(services: Services, body: SearchDocuments) -> SearchResult:
    limit = services.shared.settings.max_message_chars
    if len(body.query) > limit:
        raise TooLarge(f"query has {len(body.query)} characters, the limit is {limit}", param="query")
    given = body.filters or SearchFilters()
    if given.first_page is not None and given.last_page is not None and given.first_page > given.last_page:
        raise InvalidRequest(
            f"filters.first_page must be at most filters.last_page, {given.last_page}, got {given.first_page}",
            param="filters.first_page",
        )
    only = PassageFilter(given.first_page, given.last_page, given.section)
    documents = await _documents(services, body)
    found = await services.search.search(
        documents, body.query, body.limit, None if only == PassageFilter() else only, rerank=body.rerank
    )
    names = await services.passages.filenames({passage.document for passage in found})
    return SearchResult(
        data=[
            FoundPassage(
                **evidence_json(passage),
                filename=names.get(passage.document),
                similarity=passage.similarity,
                words=passage.share,
            )
            for passage in found
        ]
    )


async def _documents(services: Services, body: SearchDocuments) -> list[str]:
    """Return the ids of the documents to search. Raises `InvalidRequest` and `NotFound`."""
    if (body.documents is None) == (body.session is None):
        raise InvalidRequest("send either `documents` or `session`", param="documents")
    if body.session is not None:
        with missing_in("session"):
            return list((await services.sessions.get(body.session)).documents)
    documents = list(dict.fromkeys(body.documents or ()))
    for number, document in enumerate(documents):
        with missing_in(f"documents.{number}"):
            await services.documents.get(document)
    return documents
