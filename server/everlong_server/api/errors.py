"""Turns exceptions into error responses, all with the same body."""

from __future__ import annotations

import errno
import logging
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Mount
from starlette.types import Receive, Scope, Send

from everlong_models import EverlongModelError
from everlong_server.api.error_forms import error_form
from everlong_server.api.schemas import ErrorBody
from everlong_server.errors import Internal, InvalidRequest, NotFound, RateLimited, ServerError, Unavailable

_CLIENT_CLOSED = 499
"""nginx's status for a client that disconnected. Only the metrics show it."""

READ_ONLY = "store_read_only"

log = logging.getLogger(__name__)

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        401: "The API key is missing, unknown, expired or revoked",
        403: "The API key does not allow the request",
        404: "The object does not exist",
        409: "The object is busy, not ready, or was changed by another writer",
        413: "The request exceeds a size limit",
        415: "The body is not text",
        422: "A value is invalid",
        429: "The server is overloaded, or the tenant reached a quota; `Retry-After` says when to retry, if a retry can help",
        503: "The server is loading or draining, or its store cannot be reached; `Retry-After` says when to retry",
    }.items()
}
"""Descriptions of the error responses in the OpenAPI document."""


def as_server_error(error: BaseException, allowed: str | None = None) -> ServerError:
    """Convert any exception to the error that the caller gets. The only place that logs unexpected errors.

    `allowed`: the methods that the request's path allows.
    """
    if isinstance(error, ServerError):
        return error
    if isinstance(error, RequestValidationError | ValidationError):
        return _invalid(error)
    # When a Lua script fails, Redis returns an ordinary error whose text quotes the command's error.
    quoted = str(error) if isinstance(error, ResponseError) else ""
    if isinstance(error, OutOfMemoryError) or "-OOM" in quoted:
        return Unavailable("the server's store is full", code="store_full", retry_after=30)
    if "NOREPLICAS" in quoted:
        return Unavailable(
            "the server's store accepts no writes: its disk is full, or its replicas are away",
            code=READ_ONLY,
            retry_after=30,
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("the blob store is full: %s", error)
        return Unavailable("the server's store is full", code="store_full", retry_after=30)
    if isinstance(error, RedisError):
        log.warning("a request failed because of a Redis error: %s: %s", type(error).__name__, error)
        return Unavailable("the server cannot reach its store", code="store_unavailable", retry_after=2)
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound("no such path", code="path_not_found")
        if error.status_code == 400:  # FastAPI's answer to a body that is not UTF-8
            return InvalidRequest("the body is not valid JSON in UTF-8", code="invalid_json")
        allowed = allowed or (error.headers or {}).get("Allow")
        said = f"this path allows only {allowed}" if error.status_code == 405 and allowed else str(error.detail)
        known = InvalidRequest(said, code=_HTTP_CODES.get(error.status_code, "invalid_request"))
        known.status = error.status_code
        return known
    if isinstance(error, EverlongModelError):
        log.error("a request failed with a model error: %s", error)
        return Internal(f"the model failed: {type(error).__name__}")
    log.error("unexpected error", exc_info=error)
    return Internal("internal server error; the server's log has the details")


def _invalid(error: RequestValidationError | ValidationError) -> InvalidRequest:
    """Report the first invalid field: its name, its value, what is allowed."""
    first = error.errors()[0]
    # The first part is the place in the request. For a union, such as `recall`, pydantic adds the tried alternative.
    places = {"body", "query", "path", "header"} if isinstance(error, RequestValidationError) else set()
    location = first["loc"][1:] if first["loc"] and first["loc"][0] in places else first["loc"]
    alternative = re.compile(r"[A-Z]\w*|literal\[.*\]")
    path = [_cut(part) for part in map(str, location) if not alternative.fullmatch(part)]
    if first["type"] == "json_invalid":
        return InvalidRequest(
            f"the body is not valid JSON: {first.get('ctx', {}).get('error', '')}", code="invalid_json"
        )
    param = ".".join(path) or None
    value = first.get("input")
    is_empty = first["type"] in _LENGTH_ERRORS and (value == [] or (isinstance(value, str) and not value.strip()))
    unshown = first["type"] in ("missing", "extra_forbidden") or isinstance(value, dict | list) or is_empty
    shown = "" if unshown else f", got {_cut(repr(value))}"
    said = f": {first['msg'].removeprefix('Value error, ')}"  # pydantic's prefix to the messages of our validators
    if first["type"] in _OBJECT_ERRORS:
        said = " must be a JSON object"
    elif first["type"] == "extra_forbidden":
        said = ": unknown field"
    elif first["type"] == "missing" and param is None:
        said = " is missing"
    elif is_empty:
        said = " is empty"
    return InvalidRequest(f"{param or 'the body'}{said}{shown}", param=param, code=_CODES.get(first["type"]))


_OBJECT_ERRORS = {"dict_type", "dict_attributes_type", "model_type", "model_attributes_type"}
_LENGTH_ERRORS = {"string_too_short", "string_pattern_mismatch", "too_short"}
_HTTP_CODES = {405: "method_not_allowed", 408: "request_timeout", 413: "too_large", 415: "unsupported_media_type"}
_CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_parameter"}


def _cut(text: str) -> str:
    """Shorten a text that the request chose, so that an error does not repeat a megabyte of it."""
    return text if len(text) <= 60 else text[:59] + "…"


def error_response(error: BaseException, scope: Scope, allowed: str | None = None) -> tuple[JSONResponse, ServerError]:
    """Return the HTTP response to `error` of the request `scope`, and the server error that it reports.

    `allowed`: the methods that the path allows.
    """
    known = as_server_error(error, allowed)
    headers = error_headers(known)
    if isinstance(known, Internal):
        # The web server closes the connection anyway. A client that does not know would send its next request into it.
        headers["Connection"] = "close"
    if isinstance(error, HTTPException) and error.headers:
        headers |= dict(error.headers)
    if allowed:
        headers["Allow"] = allowed
    status, body = error_form(known, scope)
    return JSONResponse(body, status, headers), known


def error_headers(known: ServerError) -> dict[str, str]:
    """Return the response headers of an error: `Retry-After`, quota limits, `WWW-Authenticate`."""
    headers = {"Retry-After": str(known.retry_after)} if known.retry_after is not None else {}
    if isinstance(known, RateLimited):
        headers |= known.headers
    if known.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def _allowed(request: Request) -> str:
    """Return the methods that the request's path allows. An exception names only those of its first route."""

    def allows(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(
            route.matches(scope)[0] is Match.FULL for route in request.app.routes if not isinstance(route, Mount)
        )

    return ", ".join(filter(allows, ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")))


def install_handlers(app: FastAPI) -> None:
    """Make `app` answer every exception, and every unknown path, with `error_response`."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        refused = isinstance(error, HTTPException) and error.status_code == 405
        response, known = error_response(error, request.scope, _allowed(request) if refused else None)
        request.app.state.metrics.rejections.labels(known.code).inc()
        return response

    async def disconnected(request: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED)

    default = app.router.default

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404. Starlette would refuse the handshake of a WebSocket with 403 and no body."""
        if scope["type"] != "websocket":
            await default(scope, receive, send)
            return
        response, known = error_response(NotFound("no WebSocket endpoint has this path", code="path_not_found"), scope)
        app.state.metrics.rejections.labels(known.code).inc()
        await response(scope, receive, send)

    app.router.default = no_route

    app.add_exception_handler(ClientDisconnect, disconnected)
    for kind in (ServerError, RequestValidationError, HTTPException, RedisError, Exception):
        app.add_exception_handler(kind, handle)
