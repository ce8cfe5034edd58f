"""All errors that the server returns to a caller. Each class has its HTTP status, `type` and `code`.

ServerError
├── InvalidRequest 422        invalid value; `param` names the field
│   ├── TooLarge 413
│   └── UnsupportedMedia 415
├── Unauthenticated 401       API key missing, unknown, expired or revoked
├── PermissionDenied 403      the API key lacks the scope
├── NotFound 404              no such object, or it belongs to another tenant
├── SessionBusy 409
├── DocumentNotReady 409
├── DocumentFailed 409        a document of the session could not be read
├── StateUnusable 409         the session's state was made by another model, or is damaged
├── Conflict 409              another writer changed the object first
├── Overloaded 429            the server's queue is full
├── RateLimited 429           the tenant reached a quota
├── Unavailable 503           the server is loading, or Redis cannot be reached
│   ├── Draining 503          the server is shutting down
│   └── KeyMissing 503        stored data is encrypted with a key that this server does not have
├── Damaged 500               stored data was changed or truncated
└── Internal 500              a defect of the server
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ServerError(Exception):
    """Base of all errors. `status` is the HTTP status. Programs read `type` and `code`. `param` is the invalid field.

    `retry_after`: seconds to wait before a retry; None if a retry does not help.
    """

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init_subclass__(cls, *, status: int | None = None, type: str | None = None, code: str | None = None) -> None:
        """Set what differs from the base class."""
        cls.status = cls.status if status is None else status
        cls.type = cls.type if type is None else type
        cls.code = cls.code if code is None else code

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ):
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """Return the JSON body, the same over HTTP, SSE and WebSocket."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequest(ServerError, status=422, type="invalid_request_error", code="invalid_value"):
    """The request has an invalid value."""


class TooLarge(InvalidRequest, status=413, code="too_large"):
    """The request has more bytes, documents or characters than the limit."""


class UnsupportedMedia(InvalidRequest, status=415, code="unsupported_media_type"):
    """The body is not text, nor a file that the server can convert to text."""


class Unauthenticated(ServerError, status=401, type="authentication_error", code="invalid_api_key"):
    """The request has no valid API key."""


class PermissionDenied(ServerError, status=403, type="permission_error", code="missing_scope"):
    """The caller's API key does not allow the request."""


class NotFound(ServerError, status=404, type="invalid_request_error", code="not_found"):
    """The object does not exist, or belongs to another tenant."""


@contextmanager
def missing_in(param: str) -> Iterator[None]:
    """Set `param`, the request's field, on any `NotFound` that the block raises."""
    try:
        yield
    except NotFound as error:
        error.param = param
        raise


class SessionBusy(ServerError, status=409, type="conflict_error", code="session_busy"):
    """The session is generating an answer. A session has one writer at a time."""


class DocumentNotReady(ServerError, status=409, type="conflict_error", code="document_not_ready"):
    """The document is still being read."""


class DocumentFailed(ServerError, status=409, type="conflict_error", code="document_failed"):
    """The document could not be read, or was deleted."""


class StateUnusable(ServerError, status=409, type="conflict_error", code="state_unusable"):
    """The session's state was made by a model other than the served one, or is damaged."""


class Conflict(ServerError, status=409, type="conflict_error", code="conflict"):
    """Another writer changed the object first."""


class Overloaded(ServerError, status=429, type="rate_limit_error", code="overloaded"):
    """The server's queue is full."""


class RateLimited(ServerError, status=429, type="rate_limit_error", code="requests_limit"):
    """The tenant reached a quota. `headers` give the limit and the time of its reset."""

    def __init__(self, message: str, *, code: str, retry_after: int | None, headers: dict[str, str]) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.headers = headers


class Unavailable(ServerError, status=503, type="service_unavailable_error", code="unavailable"):
    """The server is loading, or its store cannot be reached."""


class Draining(Unavailable, code="draining"):
    """The server is shutting down."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down", retry_after=5)


class KeyMissing(Unavailable, code="encryption_key_missing"):
    """Stored data is encrypted with a key that this server does not have."""


class Damaged(ServerError, code="stored_data_damaged"):
    """Stored data was changed or truncated."""


class Internal(ServerError):
    """A defect of the server."""
