"""Every error that a caller of the server can meet. Each knows its HTTP status and its place in the error body.

ServerError
├── InvalidRequest 422        a value that cannot be used: `param` names the field
│   ├── TooLarge 413
│   └── UnsupportedMedia 415
├── Unauthenticated 401       no API key, or none that is good
├── PermissionDenied 403      the key does not allow this
├── NotFound 404              also what belongs to another tenant
├── SessionBusy 409
├── DocumentNotReady 409
├── DocumentFailed 409        the document behind a session could not be read
├── StateUnusable 409         a session's state belongs to another model, or is damaged
├── Conflict 409              somebody else wrote first
├── Overloaded 429            too much for the server
├── RateLimited 429           too much for one tenant
├── Unavailable 503           loading, draining, or Redis is away
│   └── KeyMissing 503        it is encrypted with a key that this server has not
├── Damaged 500               what is stored was changed or cut off
└── Internal 500
"""

from __future__ import annotations

from typing import Any


class ServerError(Exception):
    """Base. `status`: HTTP. `type` and `code`: for programs. `param`: the field at fault, if any."""

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
        """The JSON that every surface of the server answers with."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequest(ServerError):
    """The request cannot be understood or allowed."""

    status = 422
    type = "invalid_request_error"
    code = "invalid_value"


class TooLarge(InvalidRequest):
    """More bytes, documents or characters than the server takes."""

    status = 413
    code = "too_large"


class UnsupportedMedia(InvalidRequest):
    """A body that is no text."""

    status = 415
    code = "unsupported_media_type"


class Unauthenticated(ServerError):
    """Nobody knows who asks."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(ServerError):
    """It is known who asks, and they may not."""

    status = 403
    type = "permission_error"
    code = "missing_scope"


class NotFound(ServerError):
    """No such object."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class SessionBusy(ServerError):
    """The session is generating: one writer at a time."""

    status = 409
    type = "conflict_error"
    code = "session_busy"


class DocumentNotReady(ServerError):
    """The document is still being read."""

    status = 409
    type = "conflict_error"
    code = "document_not_ready"


class DocumentFailed(ServerError):
    """The document could not be read, or is gone."""

    status = 409
    type = "conflict_error"
    code = "document_failed"


class StateUnusable(ServerError):
    """The session's state was made by another model than this server serves, or is damaged."""

    status = 409
    type = "conflict_error"
    code = "state_unusable"


class Conflict(ServerError):
    """Another writer was quicker."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class Overloaded(ServerError):
    """Too much work is queued."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"


class RateLimited(ServerError):
    """The tenant has had what it may have. `headers`: the limit, and when it is lifted."""

    status = 429
    type = "rate_limit_error"
    code = "requests_limit"

    def __init__(self, message: str, *, code: str, retry_after: int | None, headers: dict[str, str]) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.headers = headers


class Unavailable(ServerError):
    """Not now: the server is loading or draining, or its store is away."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"


class KeyMissing(Unavailable):
    """What is stored is encrypted with a key that this server does not have."""

    code = "encryption_key_missing"


class Damaged(ServerError):
    """What is stored is not what was stored."""

    code = "stored_data_damaged"


class Internal(ServerError):
    """A defect of the server."""
