"""Authentication and authorisation. Every request is checked before its body is read.

Every path needs an API key unless it is listed as public. Paths that do not exist need one, too.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from redis.exceptions import RedisError
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong_server.api.caller_services import get_shared
from everlong_server.api.errors import ERROR_RESPONSES, READ_ONLY, as_server_error, error_response
from everlong_server.errors import NotFound, PermissionDenied, Unauthenticated
from everlong_server.observability.metrics import Metrics
from everlong_server.settings import Settings
from everlong_server.store.records import DEFAULT_TENANT
from everlong_server.store.tenants.credentials import SCOPES, Caller

INTERNAL_CALLER = "everlong.caller"
"""The entry of a scope in which the server itself names the caller of a request that it makes, such as one of a batch."""
PROBE_PATHS = frozenset({"/livez", "/readyz", "/metrics"})
PUBLIC_PATHS = PROBE_PATHS | {"/", "/docs", "/openapi.json", "/favicon.ico"}
"""Paths that need no key: probes, and pages without users' data."""

_STORES_NOTHING = re.compile(
    r"/v1/(search|rerank|embeddings|vector_stores/[^/]+/search)|/v2/rerank|/api/(embed|embeddings|show)"
)
"""Paths whose POST only reads: the question is in the body because it is long."""
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


def scope_of(method: str, path: str) -> str | None:
    """Return the scope that a request needs; None if it needs no key. `method` is WEBSOCKET for a WebSocket."""
    reads = method in ("GET", "HEAD")
    if reads and (path in PUBLIC_PATHS or path.startswith("/assets/")):
        return None
    if path == "/v1/keys" or path.startswith("/v1/keys/"):
        return "admin"
    asks = method == "POST" and _STORES_NOTHING.fullmatch(path) is not None
    return "read" if reads or asks else "write"


class Access:
    """ASGI middleware that authenticates the caller, sets `scope["state"]["caller"]` and counts the request against its quota.

    On a server that requires no keys, every caller is the default tenant.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if INTERNAL_CALLER in scope:
            scope.setdefault("state", {})["caller"] = scope[INTERNAL_CALLER]
            await self._app(scope, receive, send)
            return
        needed = scope_of(scope.get("method", "WEBSOCKET"), scope["path"])
        headers: dict[str, str] = {}
        try:
            self._check_port(scope)
            if needed is not None:
                self._check_origin(HTTPConnection(scope))
                caller = await self._caller(HTTPConnection(scope), needed)
                scope.setdefault("state", {})["caller"] = caller
                headers = await self._count(HTTPConnection(scope), caller, needed)
        except Exception as error:
            response, known = error_response(error, scope)
            self._metrics.rejections.labels(known.code).inc()
            scope.setdefault("state", {})["refused"] = known.code
            # For a WebSocket, Starlette sends it as the response to the handshake.
            await response(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_with_headers if headers else send)

    async def _count(self, connection: HTTPConnection, caller: Caller, needed: str) -> dict[str, str]:
        """Count the request against the tenant's quota, if there is one, and return the response headers of the quota."""
        if self._settings.tenant_requests_per_minute is None:
            return {}
        try:
            return await get_shared(connection).stores.quota.of(caller.tenant).request()
        except RedisError as error:
            if needed == "read" and as_server_error(error).code == READ_ONLY:
                return {}  # reads go on while the store accepts no writes, and so no counts
            raise

    def _check_port(self, scope: Scope) -> None:
        """Raise `NotFound` if the path is not served on the connection's port."""
        if self._settings.metrics_port is None:
            return
        # The port of the connection itself, which the caller cannot choose.
        on_metrics_port = (scope.get("server") or ("", None))[1] == self._settings.metrics_port
        if (on_metrics_port and scope["path"] not in PROBE_PATHS) or (
            not on_metrics_port and scope["path"] == "/metrics"
        ):
            raise NotFound("no such path", code="path_not_found")

    def _check_origin(self, connection: HTTPConnection) -> None:
        """Raise `PermissionDenied` if a web page of another site sent the request. Checked only on a server without keys.

        The site shows in the `Origin` header, or, with DNS rebinding, in the `Host` header.
        """
        if self._settings.asks_for_keys:
            return
        host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
        if origin is not None and ((page := _split(origin)) is None or page.netloc != host):
            raise PermissionDenied(
                f"pages of {origin[:100]!r} may not use this server while it requires no API key (EVERLONG_AUTH)",
                code="origin_not_allowed",
            )
        split_host = _split(f"//{host}")
        name = host if split_host is None else split_host.hostname or ""
        if host and (split_host is None or not self._settings.accepts_host(name)):
            raise PermissionDenied(
                f"{name[:100]!r} is not a host name of this server: add it to EVERLONG_ALLOWED_HOSTS",
                code="host_not_allowed",
            )

    async def _caller(self, connection: HTTPConnection, needed: str) -> Caller:
        if not self._settings.asks_for_keys:
            if needed == "admin":  # anybody could create a key, which would stay valid once keys are required
                raise PermissionDenied(
                    "this server requires no API keys and manages none over HTTP; use `everlong keys create`"
                )
            return Caller(DEFAULT_TENANT, frozenset(SCOPES))
        credentials = get_shared(connection).credentials
        ticket = connection.query_params.get("ticket") if connection.scope["type"] == "websocket" else None
        if ticket is not None and "authorization" not in connection.headers:
            caller = await credentials.redeem(ticket)
        else:
            caller = await credentials.authenticate(_secret(connection))
        if needed not in caller.scopes:
            raise PermissionDenied(
                f"the request needs the scope {needed!r}; this API key has {', '.join(sorted(caller.scopes))}"
            )
        return caller


def _split(address: str) -> SplitResult | None:
    """Split a URL. Returns None if it is invalid, such as one with an unmatched bracket."""
    try:
        return urlsplit(address)
    except ValueError:
        return None


def _secret(connection: HTTPConnection) -> str | None:
    """Return the API key in the request's headers. Raises `Unauthenticated` for a malformed `Authorization` header."""
    given = connection.headers.getlist("authorization")
    if not given:
        return connection.headers.get("x-api-key")  # as Anthropic's SDKs send it
    form = _BEARER.fullmatch(given[0].strip())
    if form is None or len(given) > 1:
        raise Unauthenticated("send exactly one header `Authorization: Bearer evl_…`", code="invalid_api_key")
    return form[1]


def add_security(document: dict[str, Any]) -> dict[str, Any]:
    """Add the scope that each operation needs to an OpenAPI document."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["key"] = {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `evl_…`. By default, a server that listens on a loopback address requires none.",
    }
    refused = {
        str(status): {
            "description": ERROR_RESPONSES[status]["description"],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
        }
        for status in (401, 403)
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if (scope := scope_of(method.upper(), path)) is not None:
                operation["security"] = [{"key": [scope]}]
                for status, described in refused.items():
                    operation["responses"].setdefault(status, described)
    return document
