"""Probes and server information: `/livez`, `/readyz`, `/metrics`, `/v1/models`, `/v1/formats`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from everlong_server.api import schemas
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.views import CallerServices, formats_view, model_view, shared_services
from everlong_server.errors import NotFound, Unavailable
from everlong_server.observability.metrics import CONTENT_TYPE_LATEST
from everlong_server.store.redis import keys

router = APIRouter()


@router.get("/livez", tags=["health"], response_class=PlainTextResponse)
async def livez() -> str:
    """Returns 200 while the process runs."""
    return "ok"


@router.get("/readyz", tags=["health"], response_class=PlainTextResponse, responses={503: ERROR_RESPONSES[503]})
async def readyz(request: Request) -> str:
    """Returns 200 when the server can answer requests; 503 while it is loading or draining, if Redis cannot be reached, or if
    the engine failed."""
    services = shared_services(request)
    if services.engine.draining:
        raise Unavailable("the server is shutting down", code="draining", retry_after=5)
    if not services.engine.alive:
        raise Unavailable("the engine failed: restart the server", code="engine_failed", retry_after=30)
    try:
        async with asyncio.timeout(2.0):
            await services.redis.exists(
                keys.FENCE
            )  # unlike a ping, reaches the cluster node that holds the server's keys
    except TimeoutError:
        raise Unavailable("the server's store does not answer", code="store_unavailable", retry_after=2) from None
    return "ok"


@router.get("/metrics", tags=["health"], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Returns the metrics in Prometheus' text format."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models", tags=["models"], responses={503: ERROR_RESPONSES[503]})
async def models(services: CallerServices) -> schemas.ModelList:
    """Lists the served model."""
    return schemas.ModelList(data=[model_view(services)])


@router.get("/v1/models/{model_id}", tags=["models"], responses={404: ERROR_RESPONSES[404], 503: ERROR_RESPONSES[503]})
async def model(model_id: str, services: CallerServices) -> schemas.ServedModel:
    """Returns the served model."""
    if model_id != services.model.name:
        raise NotFound(
            f"no model {model_id[:64]!r}; this server serves {services.model.name!r}",
            param="model_id",
            code="model_not_found",
        )
    return model_view(services)


@router.get("/v1/formats", tags=["documents"], responses={503: ERROR_RESPONSES[503]})
async def formats(services: CallerServices) -> schemas.FormatList:
    """Lists the file formats that the server accepts, and the size limit."""
    return formats_view(services)
