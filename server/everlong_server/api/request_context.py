"""`RequestContext`: each request has an id, in its answer's `x-request-id` and in what is logged of it, and a span in traces."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong_server.observability.logs import REQUEST_ID
from everlong_server.observability.tracing import Tracing

_GIVEN = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestContext:
    """Takes the id that a proxy or a caller has given it (`x-request-id`), if it is at most 64 of `A-Z a-z 0-9 . _ : -`.

    Its place in a trace is W3C's: a `traceparent` says what it is a part of.
    """

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _GIVEN.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        method = scope.get("method", "WEBSOCKET")
        token = REQUEST_ID.set(name)
        with self._tracing.span(
            method,
            "server",
            parent=headers.get("traceparent", ""),
            http__request__method=method,
            everlong__request_id=name,
        ) as span:

            async def named(message: Message) -> None:
                if message["type"] in ("http.response.start", "websocket.accept"):
                    MutableHeaders(scope=message)["x-request-id"] = name
                    route = getattr(scope.get("route"), "path", "")
                    if route:
                        span.rename(f"{method} {route}")
                        span.set(http__route=route)
                if message["type"] == "http.response.start":
                    span.set(http__response__status_code=message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, named)
            finally:
                REQUEST_ID.reset(token)
