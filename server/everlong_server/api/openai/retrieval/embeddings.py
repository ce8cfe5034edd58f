"""`/v1/embeddings`, `/v1/rerank` and `/v2/rerank`: vectors of texts, and their relevance for a query, by the models that the search uses."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.openai.retrieval.embedding_schemas import (
    CreateEmbeddings,
    CreateRerank,
    EmbeddingList,
    Reranking,
    RerankResult,
    RerankText,
    RerankUsage,
)
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.api.translation.embeddings import embed_input, encoded
from everlong_server.engine.embeddings import Floats
from everlong_server.services import Services
from everlong_server.store.records import new_id

router = APIRouter(tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post("/v1/embeddings", response_model=EmbeddingList)
async def embeddings(body: CreateEmbeddings, request: Request, services: CallerServices) -> Response:
    """Returns a vector for each text. Texts that mean the same have vectors with a high dot product."""
    content = await run_unless_disconnected(request, _embeddings(services, body))
    return Response(content, media_type="application/json")


async def _embeddings(services: Services, body: CreateEmbeddings) -> bytes:
    def items(vectors: Floats, start: int) -> list[dict[str, Any]]:
        return [
            {"object": "embedding", "index": start + number, "embedding": _embedding(vector, body.encoding_format)}
            for number, vector in enumerate(vectors)
        ]

    vectors, tokens = await embed_input(services, body.model, body.input, body.dimensions)
    head = json.dumps(
        {"object": "list", "model": body.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    )
    return b'%s, "data": %s}' % (head[:-1].encode(), await encoded(vectors, items))


def _embedding(vector: Floats, encoding: str) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


@router.post("/v1/rerank", response_model=Reranking)
@router.post("/v2/rerank", response_model=Reranking)
async def rerank(body: CreateRerank, request: Request, services: CallerServices) -> Response:
    """Orders texts by their relevance for a query, the best first. Both paths do the same: clients of Cohere use `/v2/rerank`."""
    reranking = await run_unless_disconnected(request, _rerank(services, body))
    return JSONResponse(reranking.model_dump(exclude_none=True))


async def _rerank(services: Services, body: CreateRerank) -> Reranking:
    embedder = services.embeddings.require_model(body.model)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    named = [(f"documents.{number}", text) for number, text in enumerate(texts)]
    scores, tokens = await services.embeddings.relevance(embedder, body.query, named)
    order = np.argsort(-scores, kind="stable")[: body.top_n]
    results = [
        RerankResult(
            index=int(n),
            relevance_score=float(scores[n]),
            document=RerankText(text=texts[n]) if body.return_documents else None,
        )
        for n in order
    ]
    usage = RerankUsage(prompt_tokens=tokens, total_tokens=tokens)
    return Reranking(id=new_id("rerank"), model=embedder.name, results=results, usage=usage)
