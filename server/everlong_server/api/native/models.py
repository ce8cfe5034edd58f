"""`/v1/models` and `/v1/formats`: what the server serves and accepts."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from everlong_server.api import model_schemas, schemas
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.error_forms import vary_by_api
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.views import embedding_model_view, formats_view, model_views

router = APIRouter()


@router.get("/v1/models", tags=["models"], responses={503: ERROR_RESPONSES[503]}, dependencies=[Depends(vary_by_api)])
async def models(services: CallerServices) -> model_schemas.ModelList:
    """Lists the models that answer questions, loaded or not, the default one first; then the embedding model if the server has one."""
    embedding = embedding_model_view(services)
    return model_schemas.ModelList(data=[*model_views(services), *([] if embedding is None else [embedding])])


@router.get(
    "/v1/models/{model_id:path}",
    tags=["models"],
    responses={404: ERROR_RESPONSES[404], 503: ERROR_RESPONSES[503]},
    dependencies=[Depends(vary_by_api)],
)
async def model(
    model_id: str, services: CallerServices
) -> model_schemas.ServedModel | model_schemas.UnloadedModel | model_schemas.EmbeddingModel:
    """Returns a model. Does not load it."""
    embedding = embedding_model_view(services)
    if embedding is not None and model_id == embedding.id:
        return embedding
    services.shared.models.named(model_id, "model_id")  # raises an error if there is none
    return next(view for view in model_views(services) if view.id == model_id)


@router.get("/v1/formats", tags=["documents"], responses={503: ERROR_RESPONSES[503]})
async def formats(services: CallerServices) -> schemas.FormatList:
    """Lists the file formats that the server accepts, and the size limit."""
    return formats_view(services)
