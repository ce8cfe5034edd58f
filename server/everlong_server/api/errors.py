"""Any exception as an answer: one body, one place."""

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

from everlong_models import EverlongModelError
from everlong_server.api.schemas import ErrorBody
from everlong_server.errors import Internal, InvalidRequest, NotFound, RateLimited, ServerError, Unavailable

CLIENT_CLOSED = 499
"""nginx's word for a client that has disconnected: nobody reads it but the metrics."""

log = logging.getLogger(__name__)

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        401: "No API key, or none that is good",
        403: "The key does not allow this",
        404: "No such object",
        409: "Busy, not ready, or changed by another writer",
        413: "Too large",
        415: "Not text",
        422: "A value that cannot be used",
        429: "Overloaded, or a limit of the tenant; `Retry-After` says when to try again, if that helps",
        503: "Loading, draining, or the store is away; `Retry-After` says when",
    }.items()
}
"""For the OpenAPI document."""


def as_server_error(error: BaseException) -> ServerError:
    """`error` as the caller is to see it. What nobody foresaw is logged here, and only here."""
    if isinstance(error, ServerError):
        return error
    if isinstance(error, RequestValidationError | ValidationError):
        return _invalid(error)
    # A script that runs out of memory answers with an ordinary error that quotes Redis' own.
    if isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "-OOM" in str(error)):
        return Unavailable("the store is full", code="store_full", retry_after=30)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("the blob store is full: %s", error)
        return Unavailable("the store is full", code="store_full", retry_after=30)
    if isinstance(error, RedisError):
        log.warning("redis: %s: %s", type(error).__name__, error)
        return Unavailable("the store is away", code="store_unavailable", retry_after=2)
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound("no such path", code="path_not_found")
        if error.status_code == 400:  # of a body that is not UTF-8, FastAPI says no more than that
            return InvalidRequest("the body is not valid JSON in UTF-8", code="invalid_json")
        known = InvalidRequest(str(error.detail), code=_HTTP_CODES.get(error.status_code, "invalid_request"))
        known.status = error.status_code
        return known
    if isinstance(error, EverlongModelError):
        log.error("model: %s", error)
        return Internal(f"the model could not go on: {type(error).__name__}")
    log.error("unexpected error", exc_info=error)
    return Internal("the server failed; its log says more")


def _invalid(error: RequestValidationError | ValidationError) -> InvalidRequest:
    """The first complaint: which field, which value, what is allowed."""
    first = error.errors()[0]
    # Of alternatives (`recall` is an object or false) pydantic puts the one it tried into the path: no field of ours.
    tried = re.compile(r"body|query|path|[A-Z]\w*|literal\[.*\]")
    path = [part for part in map(str, first["loc"]) if not tried.fullmatch(part)]
    if first["type"] == "json_invalid":
        return InvalidRequest(
            f"the body is not valid JSON: {first.get('ctx', {}).get('error', '')}", code="invalid_json"
        )
    param = ".".join(path) or None
    value = first.get("input")
    shown = (
        ""
        if first["type"] in ("missing", "extra_forbidden") or isinstance(value, dict | list)
        else f", got {_short(value)}"
    )
    return InvalidRequest(f"{param or 'the body'}: {first['msg']}{shown}", param=param, code=_CODES.get(first["type"]))


_HTTP_CODES = {405: "method_not_allowed", 408: "request_timeout", 413: "too_large", 415: "unsupported_media_type"}
_CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_parameter"}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def error_response(error: BaseException) -> tuple[JSONResponse, ServerError]:
    """The HTTP answer to `error`, and what it was taken for."""
    known = as_server_error(error)
    headers = error_headers(known)
    if isinstance(known, Internal):
        # The web server ends it anyway: who does not know sends the next request into it.
        headers["Connection"] = "close"
    if isinstance(error, HTTPException) and error.headers:
        headers |= dict(error.headers)
    return JSONResponse(known.body(), known.status, headers), known


def error_headers(known: ServerError) -> dict[str, str]:
    """What an answer says beside its body."""
    headers = {"Retry-After": str(known.retry_after)} if known.retry_after is not None else {}
    if isinstance(known, RateLimited):
        headers |= known.headers
    if known.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def install_handlers(app: FastAPI) -> None:
    """Every exception of `app` goes through `error_response`."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        response, known = error_response(error)
        request.app.state.metrics.rejections.labels(known.code).inc()
        return response

    async def disconnected(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    app.add_exception_handler(ClientDisconnect, disconnected)
    for kind in (ServerError, RequestValidationError, HTTPException, RedisError, Exception):
        app.add_exception_handler(kind, handle)
