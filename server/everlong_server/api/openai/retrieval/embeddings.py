"""`/v1/embeddings` and `/v1/rerank`: vectors of texts, and their similarity, by the model that the search uses."""

from __future__ import annotations

import base64
import json

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.disconnect import run_unless_disconnected
from everlong_server.api.errors import CLIENT_CLOSED, ERROR_RESPONSES
from everlong_server.api.openai.retrieval.embedding_schemas import (
    CreateEmbeddings,
    CreateRerank,
    EmbeddingList,
    Reranking,
    RerankResult,
    RerankText,
    RerankUsage,
)
from everlong_server.api.views import CallerServices
from everlong_server.engine.embeddings import Floats, shortened
from everlong_server.errors import InvalidRequest
from everlong_server.pools import Pool
from everlong_server.services import Services
from everlong_server.store.records import new_id

router = APIRouter(prefix="/v1", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)

_ENCODED_AT_ONCE = 64
_POOL = Pool("everlong-encode", 1)
"""Encodes vectors as JSON, 64 at a time: 2,048 of them take a second, which would block the event loop."""


@router.post("/embeddings", response_model=EmbeddingList)
async def embeddings(body: CreateEmbeddings, request: Request, services: CallerServices) -> Response:
    """Returns a vector for each text. Texts that mean the same have vectors with a high dot product."""
    content = await run_unless_disconnected(request, _embeddings(services, body))
    if content is None:
        return Response(status_code=CLIENT_CLOSED)
    return Response(content, media_type="application/json")


async def _embeddings(services: Services, body: CreateEmbeddings) -> bytes:
    embedder = services.embeddings.require_model(body.model)
    dimensions = body.dimensions or embedder.dimension
    if dimensions > embedder.dimension:
        raise InvalidRequest(
            f"dimensions: {dimensions} is more than the model's {embedder.dimension}", param="dimensions"
        )
    named = (
        [("input", body.input)]
        if isinstance(body.input, str)
        else [(f"input.{number}", text) for number, text in enumerate(body.input)]
    )
    embedded = await services.embeddings.embed(embedder, named)
    vectors = shortened(embedded.means(), dimensions)
    encoded = [
        await _POOL.run(_encode, vectors[start : start + _ENCODED_AT_ONCE], start, body.encoding_format)
        for start in range(0, len(vectors), _ENCODED_AT_ONCE)
    ]
    usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
    head = json.dumps({"object": "list", "model": embedder.name, "usage": usage})
    return b'%s, "data": [%s]}' % (head[:-1].encode(), b",".join(encoded))


def _encode(vectors: Floats, start: int, encoding: str) -> bytes:
    """Return the items of `vectors` as JSON, without brackets. `start`: the index of the first."""
    items = [
        {
            "object": "embedding", "index": start + number,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
            if encoding == "base64" else vector.tolist(),
        }
        for number, vector in enumerate(vectors)
    ]  # fmt: skip
    return to_json(items)[1:-1]


@router.post("/rerank", response_model=Reranking)
async def rerank(body: CreateRerank, request: Request, services: CallerServices) -> Response:
    """Orders texts by their similarity with a query, nearest first."""
    reranking = await run_unless_disconnected(request, _rerank(services, body))
    if reranking is None:
        return Response(status_code=CLIENT_CLOSED)
    return JSONResponse(reranking.model_dump(exclude_none=True))


async def _rerank(services: Services, body: CreateRerank) -> Reranking:
    embedder = services.embeddings.require_model(body.model)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    named = [("query", body.query), *((f"documents.{number}", text) for number, text in enumerate(texts))]
    embedded = await services.embeddings.embed(embedder, named)
    query = embedded.means()[0]
    scores = np.array([float((rows @ query).max()) for rows in embedded.rows[1:]])
    order = np.argsort(-scores, kind="stable")[: body.top_n]
    results = [
        RerankResult(
            index=int(n),
            relevance_score=float(scores[n]),
            document=RerankText(text=texts[n]) if body.return_documents else None,
        )
        for n in order
    ]
    usage = RerankUsage(prompt_tokens=embedded.tokens, total_tokens=embedded.tokens)
    return Reranking(id=new_id("rerank"), model=embedder.name, results=results, usage=usage)
