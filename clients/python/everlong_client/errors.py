"""Every error that the client raises.

EverlongError
├── APIConnectionError            no answer: refused, reset, no such host
├── APITimeoutError               no answer in time, or a `wait` that used up its timeout
├── APIStatusError                an answer that is an error; one of the following where there is one for its status
│   ├── AuthenticationError       401
│   ├── NotFoundError             404
│   ├── ConflictError             409
│   │   ├── SessionBusyError      409 session_busy: another answer is being written
│   │   └── DocumentNotReadyError 409 document_not_ready: it is still being read
│   ├── PayloadTooLargeError      413
│   ├── UnsupportedMediaTypeError 415
│   ├── UnprocessableEntityError  422
│   ├── RateLimitError            429
│   ├── ServiceUnavailableError   503
│   └── InternalServerError       every other 5xx
├── NotSentError                  what was given cannot be sent: text that is no Unicode, a file that became shorter
├── UnexpectedAnswerError         a success whose body no everlong server would send
├── ReadingFailedError            the server could not read a document
└── StreamError                   an `error` event, or a stream that ended without `response.completed`
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import responses

__all__ = [
    "APIConnectionError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "ConflictError",
    "DocumentNotReadyError",
    "EverlongError",
    "InternalServerError",
    "NotFoundError",
    "NotSentError",
    "PayloadTooLargeError",
    "RateLimitError",
    "ReadingFailedError",
    "ServiceUnavailableError",
    "SessionBusyError",
    "StreamError",
    "UnexpectedAnswerError",
    "UnprocessableEntityError",
    "UnsupportedMediaTypeError",
]


class EverlongError(Exception):
    """Base of all errors raised by `everlong_client`."""


class APIConnectionError(EverlongError):
    """The server could not be reached, or the connection broke before it answered."""


class APITimeoutError(EverlongError):
    """The server did not answer in time, or `wait` used up its timeout.

    `connecting`: there was not even a connection, so that nothing has been asked.
    """

    def __init__(self, message: str, *, connecting: bool = False) -> None:
        super().__init__(message)
        self.connecting = connecting


class APIStatusError(EverlongError):
    """The server answered with an error.

    `status` is the HTTP status; `message`, `code`, `type` and `param` are what the server says about it (all but the
    message may be None); `retry_after` is the wait that it asks for, in seconds, or None.
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
    """409: not now, in the state that this is in."""


class SessionBusyError(ConflictError):
    """409 `session_busy`: the session is writing another answer."""


class DocumentNotReadyError(ConflictError):
    """409 `document_not_ready`: the document is still being read."""


class PayloadTooLargeError(APIStatusError):
    """413: the document or the question is larger than the server takes."""


class UnsupportedMediaTypeError(APIStatusError):
    """415: the document is no text."""


class UnprocessableEntityError(APIStatusError):
    """422: a field is wrong; `param` names it."""


class RateLimitError(APIStatusError):
    """429: too many requests; `retry_after` says when to come back."""


class ServiceUnavailableError(APIStatusError):
    """503: loading, draining or overloaded; `retry_after` says when to come back."""


class InternalServerError(APIStatusError):
    """5xx: the server, or a proxy before it, failed."""


class NotSentError(EverlongError):
    """What was given cannot be sent: text that is no Unicode (half of a surrogate pair), or a file that became shorter."""


class UnexpectedAnswerError(EverlongError):
    """The answer says success, yet it is not what an everlong server sends: is something else at this address?"""


class ReadingFailedError(EverlongError):
    """The server gave up reading a document, or a session's documents.

    `id` is the document or session, `code` the server's code for the reason, or None.
    """

    def __init__(self, message: str, *, id: str, code: str | None = None) -> None:
        super().__init__(message)
        self.id = id
        self.code = code


class StreamError(EverlongError):
    """A streamed answer failed: the server sent an `error` event, or the stream ended without `response.completed`.

    `code`, `type`, `param` and `retry_after` (seconds) come from the event; `close_code` is the WebSocket's, where it was
    closed.
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
    """The error for an answer that is no success. `headers` must find names whatever their case."""
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    retry_after = parse_retry_after(headers.get("retry-after"))
    try:
        error = json.loads(body)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, TypeError, KeyError, AttributeError):
        # Not ours: a proxy's page, most likely, of which the status says all that is worth a line.
        message = f"HTTP {status} {responses.get(status, '')}".rstrip() + ", in words that no everlong server uses"
        return kind(message, status=status, retry_after=retry_after)
    if kind is ConflictError:
        kind = _BY_CODE.get(code, kind)
    return kind(
        message, status=status, code=code, type=error.get("type"), param=error.get("param"), retry_after=retry_after
    )


def parse_retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a `Retry-After` header in either of its forms (seconds or a date); None if it has none."""
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
