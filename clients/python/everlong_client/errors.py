"""Every error that the client raises.

EverlongError
├── APIConnectionError            no response: connection refused or reset, or unknown host
├── APITimeoutError               no response in time, or a `wait` that exceeded its timeout
├── APIStatusError                an error response; a subclass if its status has one
│   ├── AuthenticationError       401
│   ├── NotFoundError             404
│   ├── ConflictError             409
│   │   ├── SessionBusyError      409 session_busy: the session is generating another answer
│   │   └── DocumentNotReadyError 409 document_not_ready: the document is still being read
│   ├── PayloadTooLargeError      413
│   ├── UnsupportedMediaTypeError 415
│   ├── UnprocessableEntityError  422
│   ├── RateLimitError            429
│   ├── ServiceUnavailableError   503
│   └── InternalServerError       every other 5xx
├── NotSentError                  the input cannot be sent: invalid Unicode, or a file that was truncated
├── UnexpectedAnswerError         a success response with a body that no everlong server sends
├── ReadingFailedError            the server could not read a document
└── StreamError                   an `error` event, or a stream that ended without `response.completed`
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import responses


class EverlongError(Exception):
    """Base of all errors raised by `everlong_client`."""


class APIConnectionError(EverlongError):
    """The server could not be reached, or the connection broke before the response."""


class APITimeoutError(EverlongError):
    """The server did not respond in time, or `wait` exceeded its timeout.

    `connecting` is true if the connection was not established, so that no request was sent.
    """

    def __init__(self, message: str, *, connecting: bool = False) -> None:
        super().__init__(message)
        self.connecting = connecting


class APIStatusError(EverlongError):
    """The server responded with an error.

    `status` is the HTTP status. `message`, `code`, `type` and `param` are the fields of the response's error; all but
    the message may be None. `retry_after` is the delay in seconds that the server asks for, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        type: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.type = type
        self.param = param
        self.retry_after = retry_after


class AuthenticationError(APIStatusError):
    """401: the API key is missing or wrong."""


class NotFoundError(APIStatusError):
    """404: there is no such document, session or model."""


class ConflictError(APIStatusError):
    """409: the resource's current state does not allow the request."""


class SessionBusyError(ConflictError):
    """409 `session_busy`: the session is generating another answer."""


class DocumentNotReadyError(ConflictError):
    """409 `document_not_ready`: the document is still being read."""


class PayloadTooLargeError(APIStatusError):
    """413: the document or the message is larger than the server accepts."""


class UnsupportedMediaTypeError(APIStatusError):
    """415: the server cannot convert files of this type to text."""


class UnprocessableEntityError(APIStatusError):
    """422: a field is invalid; `param` names it."""


class RateLimitError(APIStatusError):
    """429: too many requests. Retry after `retry_after` seconds."""


class ServiceUnavailableError(APIStatusError):
    """503: the server is loading, draining or overloaded. Retry after `retry_after` seconds."""


class InternalServerError(APIStatusError):
    """5xx: the server, or a proxy in front of it, failed."""


class NotSentError(EverlongError):
    """The input cannot be sent: the text has an unpaired surrogate, or the file was truncated during the upload."""


class UnexpectedAnswerError(EverlongError):
    """The response reports success, but its body is not one of an everlong server. Check the address."""


class ReadingFailedError(EverlongError):
    """The server could not read a document, or a session's documents.

    `id` is the document or session; `code` is the server's error code, or None.
    """

    def __init__(self, message: str, *, id: str, code: str | None = None) -> None:
        super().__init__(message)
        self.id = id
        self.code = code


class StreamError(EverlongError):
    """A streamed answer failed: the server sent an `error` event, or the stream ended without `response.completed`.

    `code`, `type`, `param` and `retry_after` (seconds) come from the event. `close_code` is the code with which the
    WebSocket was closed, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        type: str | None = None,
        param: str | None = None,
        close_code: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.type = type
        self.param = param
        self.close_code = close_code
        self.retry_after = retry_after


_BY_CODE: dict[str | None, type[APIStatusError]] = {
    "session_busy": SessionBusyError,
    "document_not_ready": DocumentNotReadyError,
}
_BY_STATUS: dict[int, type[APIStatusError]] = {
    401: AuthenticationError,
    404: NotFoundError,
    409: ConflictError,
    413: PayloadTooLargeError,
    415: UnsupportedMediaTypeError,
    422: UnprocessableEntityError,
    429: RateLimitError,
    503: ServiceUnavailableError,
}


def status_error(status: int, headers: Mapping[str, str], body: bytes) -> APIStatusError:
    """Return the error for an unsuccessful response. The lookup in `headers` must ignore case."""
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    retry_after = parse_retry_after(headers.get("retry-after"))
    try:
        error = json.loads(body)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, TypeError, KeyError, AttributeError):
        # Most likely a proxy's error page. Its status is all that fits into one line.
        message = f"HTTP {status} {responses.get(status, '')}".rstrip() + ", but not from an everlong server"
        return kind(message, status=status, retry_after=retry_after)
    if kind is ConflictError:
        kind = _BY_CODE.get(code, kind)
    return kind(
        message, status=status, code=code, type=error.get("type"), param=error.get("param"), retry_after=retry_after
    )


def parse_retry_after(value: str | None) -> float | None:
    """Return the delay in seconds from a `Retry-After` header (seconds or a date); None if it is missing or invalid."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None
