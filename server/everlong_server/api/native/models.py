"""`/v1/models` and `/v1/formats`: what the server serves and accepts."""

from __future__ import annotations

from fastapi import APIRouter

from everlong_server.api import schemas
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.views import CallerServices, embedding_model_view, formats_view, model_view
from everlong_server.errors import NotFound

router = APIRouter()


@router.get("/v1/models", tags=["models"], responses={503: ERROR_RESPONSES[503]})
async def models(services: CallerServices) -> schemas.ModelList:
    """Lists the served model first, then the embedding model if the server has one."""
    embedding = embedding_model_view(services)
    return schemas.ModelList(data=[model_view(services), *([] if embedding is None else [embedding])])


@router.get("/v1/models/{model_id}", tags=["models"], responses={404: ERROR_RESPONSES[404], 503: ERROR_RESPONSES[503]})
async def model(model_id: str, services: CallerServices) -> schemas.ServedModel | schemas.EmbeddingModel:
    """Returns the served model or the embedding model."""
    embedding = embedding_model_view(services)
    if embedding is not None and model_id == embedding.id:
        return embedding
    if model_id != services.shared.model.name:
        raise NotFound(
            f"no model {model_id[:64]!r}; this server serves {services.shared.model.name!r}",
            param="model_id",
            code="model_not_found",
        )
    return model_view(services)


@router.get("/v1/formats", tags=["documents"], responses={503: ERROR_RESPONSES[503]})
async def formats(services: CallerServices) -> schemas.FormatList:
    """Lists the file formats that the server accepts, and the size limit."""
    return formats_view(services)
