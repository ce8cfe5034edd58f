"""Probes: `/livez`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from everlong_server.api.caller_services import get_shared
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.errors import Unavailable
from everlong_server.observability.metrics import CONTENT_TYPE_LATEST
from everlong_server.store.redis import keys

router = APIRouter()


@router.get("/livez", tags=["health"], response_class=PlainTextResponse)
async def livez() -> str:
    """Returns 200 while the process runs."""
    return "ok"


@router.get("/readyz", tags=["health"], response_class=PlainTextResponse, responses={503: ERROR_RESPONSES[503]})
async def readyz(request: Request) -> str:
    """Returns 200 when the server can answer requests; 503 while it is loading or draining, if Redis cannot be reached or is
    failing over, or if the engine failed."""
    shared = get_shared(request)
    shared.engine.require_running()
    if not shared.models.alive:
        raise Unavailable("the engine failed: restart the server", code="engine_failed", retry_after=30)
    try:
        async with asyncio.timeout(2.0):
            # Unlike a ping, reaches the cluster node that holds the server's keys.
            await shared.redis.exists(keys.FENCE)
            # During a failover, Redis answers, but no response that rests on it can be sent yet.
            await shared.confirmation.confirm()
    except TimeoutError:
        raise Unavailable("the server's store does not answer", code="store_unavailable", retry_after=2) from None
    return "ok"


@router.get("/metrics", tags=["health"], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Returns the metrics in Prometheus' text format."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)
