"""`RequestContext`: gives each request an id, for its response header `x-request-id` (in Anthropic's API also `request-id`) and its log lines, and a trace span."""

from __future__ import annotations

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong_server.api.error_forms import has_anthropic_form
from everlong_server.observability.logs import REQUEST_ID
from everlong_server.observability.tracing import Tracing

log = logging.getLogger(__name__)

_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestContext:
    """Uses the request's own `x-request-id` if it has at most 64 characters of `A-Z a-z 0-9 . _ : -`; else creates an id.

    Logs one line for each refused WebSocket handshake. The parent of its span is the request's `traceparent` (W3C Trace Context).
    """

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope)
        given = sent.get("x-request-id", "")
        request_id = given if _VALID_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        method = scope.get("method", "WEBSOCKET")
        token = REQUEST_ID.set(request_id)
        with self._tracing.span(
            method,
            "server",
            parent=sent.get("traceparent", ""),
            http__request__method=method,
            everlong__request_id=request_id,
        ) as span:
            in_handshake = scope["type"] == "websocket"

            async def send_with_id(message: Message) -> None:
                nonlocal in_handshake
                if in_handshake and message["type"] != "websocket.accept":
                    reason = scope.get("state", {}).get("refused", "path_not_found")
                    log.info("WebSocket handshake refused: %s, request %s", reason, request_id)
                in_handshake = False
                if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                    headers = MutableHeaders(scope=message)
                    headers["x-request-id"] = request_id
                    if has_anthropic_form(scope):
                        headers["request-id"] = request_id
                    route = getattr(scope.get("route"), "path_format", "")
                    if route:
                        span.rename(f"{method} {route}")
                        span.set(http__route=route)
                if message["type"] == "http.response.start":
                    span.set(http__response__status_code=message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, send_with_id)
            finally:
                REQUEST_ID.reset(token)
