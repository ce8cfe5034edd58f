"""Who may do what: every request is asked for its key before anything of it is read, and every path that is not open
needs one, also one that does not exist or that nobody thought of here."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong_server.api.errors import ERROR_RESPONSES, error_response
from everlong_server.api.views import shared_services
from everlong_server.errors import NotFound, PermissionDenied, Unauthenticated
from everlong_server.observability.metrics import Metrics
from everlong_server.settings import Settings
from everlong_server.store.records import DEFAULT_TENANT
from everlong_server.store.tenants.credentials import SCOPES, Caller

PROBE_PATHS = frozenset({"/livez", "/readyz", "/metrics"})
PUBLIC_PATHS = PROBE_PATHS | {"/", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/favicon.ico"}
"""What needs no key: probes, and pages that hold nothing of anybody's."""

_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


def scope_of(method: str, path: str) -> str | None:
    """The scope that a request needs; None if it needs no key. `method`: WEBSOCKET for one."""
    looks = method in ("GET", "HEAD")
    if looks and (path in PUBLIC_PATHS or path.startswith("/assets/")):
        return None
    if path == "/v1/keys" or path.startswith("/v1/keys/"):
        return "admin"
    return "read" if looks else "write"


class Access:
    """Lets in whoever may, as `scope["state"]["caller"]`. Where no keys are asked for, everybody is one tenant."""

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
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
                if self._settings.tenant_requests_per_minute is not None:
                    headers = await shared_services(HTTPConnection(scope)).quota.of(caller.tenant).request()
        except Exception as error:
            response, known = error_response(error)
            self._metrics.rejections.labels(known.code).inc()
            # For a WebSocket Starlette makes it an answer to the handshake.
            await response(scope, receive, send)
            return

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, tell if headers else send)

    def _check_port(self, scope: Scope) -> None:
        """Raises `NotFound` for what is not on this port."""
        if self._settings.metrics_port is None:
            return
        # The connection's own address: nothing that a caller says.
        here = (scope.get("server") or ("", None))[1] == self._settings.metrics_port
        if (here and scope["path"] not in PROBE_PATHS) or (not here and scope["path"] == "/metrics"):
            raise NotFound("no such path", code="path_not_found")

    def _check_origin(self, connection: HTTPConnection) -> None:
        """Raises `PermissionDenied` for a browser that another site's page sends here, where no key tells its user's own
        requests from these: with the page's name as the origin, or (DNS rebinding) as the host."""
        if self._settings.asks_for_keys:
            return
        host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
        if origin is not None and ((page := _split(origin)) is None or page.netloc != host):
            raise PermissionDenied(f"a page of {origin[:100]!r} may not use this server", code="origin_not_allowed")
        asked = _split(f"//{host}")
        name = host if asked is None else asked.hostname or ""
        if host and (asked is None or not self._settings.is_called(name)):
            raise PermissionDenied(
                f"this server is not {name[:100]!r} (EVERLONG_ALLOWED_HOSTS)", code="host_not_allowed"
            )

    async def _caller(self, connection: HTTPConnection, needed: str) -> Caller:
        if not self._settings.asks_for_keys:
            if needed == "admin":  # a key that is made while anybody may make one would be good for ever
                raise PermissionDenied(
                    "this server asks for no keys; `everlong keys create` makes one for when it does"
                )
            return Caller(DEFAULT_TENANT, frozenset(SCOPES))
        credentials = shared_services(connection).credentials
        ticket = connection.query_params.get("ticket") if connection.scope["type"] == "websocket" else None
        if ticket is not None and "authorization" not in connection.headers:
            caller = await credentials.redeem(ticket)
        else:
            caller = await credentials.authenticate(_secret(connection))
        if needed not in caller.scopes:
            raise PermissionDenied(f"this API key has no scope {needed!r}; it has {', '.join(sorted(caller.scopes))}")
        return caller


def _split(address: str) -> SplitResult | None:
    """None of what is no address: a bracket without the other, say."""
    try:
        return urlsplit(address)
    except ValueError:
        return None


def _secret(connection: HTTPConnection) -> str | None:
    """The key that the request brings. Raises `Unauthenticated` for a header that is none."""
    given = connection.headers.getlist("authorization")
    if not given:
        return None
    form = _BEARER.fullmatch(given[0].strip())
    if form is None or len(given) > 1:
        raise Unauthenticated("the header Authorization is to be `Bearer evl_…`, once", code="invalid_api_key")
    return form[1]


def add_security(document: dict[str, Any]) -> dict[str, Any]:
    """Writes into an OpenAPI document what each operation needs."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["key"] = {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `evl_…`. A server that listens on its own machine only asks for none by default.",
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
                operation["responses"] |= refused
    return document
