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
├── Unavailable 503           the server is loading or draining, or Redis cannot be reached
│   └── KeyMissing 503        stored data is encrypted with a key that this server does not have
├── Damaged 500               stored data was changed or truncated
└── Internal 500              a defect of the server
"""

from __future__ import annotations

from typing import Any


class ServerError(Exception):
    """Base of all errors. `status` is the HTTP status. Programs read `type` and `code`. `param` is the invalid field.

    `retry_after`: seconds to wait before a retry; None if a retry does not help.
    """

    status = 500
    type = "server_error"
    code = "internal_error"

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


class InvalidRequest(ServerError):
    """The request has an invalid value."""

    status = 422
    type = "invalid_request_error"
    code = "invalid_value"


class TooLarge(InvalidRequest):
    """The request has more bytes, documents or characters than the limit."""

    status = 413
    code = "too_large"


class UnsupportedMedia(InvalidRequest):
    """The body is not text, nor a file that the server can convert to text."""

    status = 415
    code = "unsupported_media_type"


class Unauthenticated(ServerError):
    """The request has no valid API key."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(ServerError):
    """The caller's API key does not allow the request."""

    status = 403
    type = "permission_error"
    code = "missing_scope"


class NotFound(ServerError):
    """The object does not exist, or belongs to another tenant."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class SessionBusy(ServerError):
    """The session is generating an answer. A session has one writer at a time."""

    status = 409
    type = "conflict_error"
    code = "session_busy"


class DocumentNotReady(ServerError):
    """The document is still being read."""

    status = 409
    type = "conflict_error"
    code = "document_not_ready"


class DocumentFailed(ServerError):
    """The document could not be read, or was deleted."""

    status = 409
    type = "conflict_error"
    code = "document_failed"


class StateUnusable(ServerError):
    """The session's state was made by a model other than the served one, or is damaged."""

    status = 409
    type = "conflict_error"
    code = "state_unusable"


class Conflict(ServerError):
    """Another writer changed the object first."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class Overloaded(ServerError):
    """The server's queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"


class RateLimited(ServerError):
    """The tenant reached a quota. `headers` give the limit and the time of its reset."""

    status = 429
    type = "rate_limit_error"
    code = "requests_limit"

    def __init__(self, message: str, *, code: str, retry_after: int | None, headers: dict[str, str]) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.headers = headers


class Unavailable(ServerError):
    """The server is loading or draining, or its store cannot be reached."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"


class KeyMissing(Unavailable):
    """Stored data is encrypted with a key that this server does not have."""

    code = "encryption_key_missing"


class Damaged(ServerError):
    """Stored data was changed or truncated."""

    code = "stored_data_damaged"


class Internal(ServerError):
    """A defect of the server."""
