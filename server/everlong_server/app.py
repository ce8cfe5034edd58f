"""The FastAPI application: its routes, middleware, startup and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import Depends, FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong_models import Model
from everlong_server.api import access, confirmed, errors, health, page, request_context
from everlong_server.api.anthropic import messages
from everlong_server.api.anthropic import models as anthropic_models
from everlong_server.api.native import (
    conversion,
    document_text,
    documents,
    fetch,
    keys,
    models,
    pages,
    search,
    sessions,
    stream,
    tickets,
)
from everlong_server.api.native.known_query import require_known_query
from everlong_server.api.ollama import answers as ollama_answers
from everlong_server.api.ollama import models as ollama_models
from everlong_server.api.openai import chat, responses_http, responses_socket
from everlong_server.api.openai.batches import http as batches
from everlong_server.api.openai.batches.running import running_batches
from everlong_server.api.openai.completions import http as completions
from everlong_server.api.openai.files import http as files
from everlong_server.api.openai.files import uploads
from everlong_server.api.openai.retrieval import embeddings, file_batches, vector_store_files, vector_stores
from everlong_server.errors import Draining
from everlong_server.observability import tracing
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.services import ModelSource, Shared, require_keys, require_schema, require_vault, run_services
from everlong_server.settings import Settings, traces_wanted

log = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    redis_url: str,
    load: Callable[[], Awaitable[Model]],
    others: ModelSource | None = None,
    *,
    on_ready: Callable[[Shared], None] = lambda shared: None,
    on_failure: Callable[[BaseException], None] = lambda error: None,
) -> FastAPI:
    """Build the application. It answers at once; `/readyz` returns 503 until `load` has returned the model.

    `others`: the models that requests can name besides this one; None: there are none.
    Calls `on_ready` or `on_failure` on the event loop once loading ends. Raises `TracingError`.
    """
    metrics, traces = Metrics(), tracing.start_tracing(traces_wanted())
    app = FastAPI(
        title="everlong",
        summary="Long-context inference with a memory of fixed size",
        version="0.2.0.dev0",
        license_info={"name": "Apache-2.0"},
        docs_url=None,  # `page` serves it: FastAPI's pages load scripts from a CDN
        redoc_url=None,
        lifespan=_lifespan(settings, redis_url, load, others, metrics, traces, on_ready, on_failure),
        separate_input_output_schemas=False,
    )
    app.state.shared = None
    app.state.metrics = metrics
    errors.install_handlers(app)
    for own in (documents, conversion, fetch, document_text, pages, search, sessions, tickets, keys):
        app.include_router(own.router, dependencies=[Depends(require_known_query)])
    for module in (
        stream, files, uploads, chat, completions, responses_http, responses_socket, embeddings, vector_stores, vector_store_files,
        file_batches, batches, messages, anthropic_models, ollama_answers, ollama_models, health, models, page,
    ):  # fmt: skip
        app.include_router(module.router)
    app.mount("/assets", page.Assets())
    app.add_middleware(access.Access, settings=settings, metrics=metrics)
    app.add_middleware(confirmed.Confirmed)
    app.add_middleware(
        _RequestGuard,
        limit=settings.max_body_bytes,
        seconds=_BODY_KEEPALIVES * settings.keepalive_seconds,
        metrics=metrics,
    )
    # Wraps Starlette's whole stack, error handling included. `add_middleware` would place it inside that.
    stack = app.build_middleware_stack
    app.build_middleware_stack = lambda: request_context.RequestContext(stack(), traces)  # type: ignore[method-assign]
    plain = app.openapi
    app.openapi = lambda: app.openapi_schema or access.add_security(plain())  # type: ignore[method-assign]
    return app


def _lifespan(
    settings: Settings,
    redis_url: str,
    load: Callable[[], Awaitable[Model]],
    others: ModelSource | None,
    metrics: Metrics,
    traces: Tracing,
    on_ready: Callable[[Shared], None],
    on_failure: Callable[[BaseException], None],
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return the application's lifespan, which starts the services in the background and stops them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ending = asyncio.Event()

        async def serve() -> None:
            try:
                await require_schema(settings, redis_url)
                await require_keys(settings, redis_url)
                await require_vault(settings, redis_url)
                model = await load()
                async with run_services(settings, model, redis_url, metrics, traces, others) as shared:
                    app.state.shared = shared
                    on_ready(shared)
                    async with running_batches(app, shared):
                        await ending.wait()
            except Exception as error:
                on_failure(error)
                raise
            finally:
                app.state.shared = None

        task = asyncio.create_task(serve())
        try:
            yield
        finally:
            ending.set()
            if app.state.shared is None:
                task.cancel()  # the model is still loading
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(traces.shutdown)

    return lifespan


_BODY_KEEPALIVES = 4
"""A request body may make no progress for this many keep-alive intervals."""
_MIN_RATE = 500
"""Minimum number of bytes per second of a request body, once those intervals are over. Apache's mod_reqtimeout has the same."""
UPLOAD_PATHS = re.compile("/v1/(documents(/archive)?|files|uploads/[^/]+/parts)/?")
"""Their bodies may be larger than a JSON body: they are written to a file while they arrive."""


class _RequestGuard:
    """Counts requests and limits request bodies. Uploads check their size themselves while they stream.

    Ends a request whose body makes no progress for `seconds`, or for which the server has waited longer than that in all and
    that has not brought `_MIN_RATE` bytes for each further second. A lost connection sends no signal, and the request would
    hold its idempotency key or its share of a multipart upload for ever.

    Rejects compressed bodies, so the length of a body is the length that was sent. Answers 503 to requests that the shutdown
    of the server cancels.
    """

    def __init__(self, app: ASGIApp, limit: int, seconds: float, metrics: Metrics) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received, waited, complete, response_started = 0, 0.0, False, False
        upload = scope["method"] == "POST" and UPLOAD_PATHS.fullmatch(scope["path"]) is not None

        async def bounded() -> Message:
            nonlocal received, waited, complete
            if (coding := Headers(scope=scope).get("content-encoding", "identity")) != "identity":
                raise HTTPException(
                    415, f"Content-Encoding {coding[:60]!r} is not supported: send the body uncompressed"
                )
            started = time.monotonic()
            patience = min(self._seconds, self._seconds + received / _MIN_RATE - waited)
            try:
                async with asyncio.timeout(None if complete else patience):
                    message = await receive()
            except TimeoutError:
                if response_started:
                    return {"type": "http.disconnect"}
                raise HTTPException(
                    408,
                    f"the request body was too slow: nothing arrived for {self._seconds:g} s, or {received} bytes in "
                    f"{waited + patience:.0f} s; send at least {_MIN_RATE} bytes per second",
                    {"Connection": "close"},
                ) from None
            waited += time.monotonic() - started
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._limit and not upload:
                raise HTTPException(
                    413, f"the body is larger than the limit of {self._limit} bytes (EVERLONG_MAX_BODY_BYTES)"
                )
            return message

        async def counted(message: Message) -> None:
            nonlocal response_started
            if message["type"] == "http.response.start":
                response_started = True
                route = getattr(scope.get("route"), "path_format", "other")
                self._metrics.requests.labels(scope["method"], route, str(message["status"])).inc()
            await send(message)

        try:
            await self._app(scope, bounded, counted)
        except asyncio.CancelledError:
            if response_started:
                raise
            # Uvicorn would answer with 500.
            response, _ = errors.error_response(Draining(), scope)
            await response(scope, receive, counted)
