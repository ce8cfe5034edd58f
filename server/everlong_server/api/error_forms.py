"""The bodies of errors in the formats of other APIs, chosen by the request's path and headers."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from everlong_server.errors import ServerError
from everlong_server.observability.logs import REQUEST_ID

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


NO_THREADS = "thread_unsupported_request"
"""The code of Anthropic's API after which the SDK's tool runner goes on without a thread."""


def error_form(known: ServerError, scope: Scope) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error of the request `scope`."""
    if has_anthropic_form(scope):
        return 400 if known.status in (415, 422) else known.status, anthropic_error(known)
    if scope["path"].startswith("/api/"):
        return known.status, ollama_error(known)
    return known.status, known.body()


def has_anthropic_form(scope: Scope) -> bool:
    """Return whether the response to a request has the form of Anthropic's API."""
    path = scope["path"]
    return _within(path, "/v1/messages") or (_within(path, "/v1/models") and is_anthropic(scope))


def is_anthropic(scope: Scope) -> bool:
    """Return whether a request has the header that Anthropic's API requires."""
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def vary_by_api(response: Response) -> None:
    """Tell caches that the form of a response depends on `is_anthropic`."""
    response.headers["vary"] = "anthropic-version"


def _within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


def ollama_error(known: ServerError) -> dict[str, Any]:
    """Return an error in Ollama's form: the message alone."""
    return {"error": known.message}


def anthropic_error(known: ServerError) -> dict[str, Any]:
    """Return an error in Anthropic's form, with our `code` and `param`."""
    invalid = "invalid_request_error" if known.status < 500 else "api_error"
    error: dict[str, Any] = {
        "type": _ANTHROPIC_TYPES.get(known.status, invalid), "message": known.message, "code": known.code,
        "param": known.param,
    }  # fmt: skip
    if known.code == NO_THREADS:
        error["details"] = {"error_code": known.code}
    return {"type": "error", "error": error, "request_id": REQUEST_ID.get() or ""}
