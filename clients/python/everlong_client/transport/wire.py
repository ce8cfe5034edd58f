"""Shared by both clients' transports: turns calls into HTTP requests, and responses into results or errors."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from everlong_client.errors import (
    APIConnectionError,
    APITimeoutError,
    EverlongError,
    NotSentError,
    StreamError,
    UnexpectedAnswerError,
    status_error,
)
from everlong_client.transport.call import Call
from everlong_client.transport.retrying import RETRIES, Retrying

T = TypeVar("T")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)

VERSION = "0.2.0.dev0"
DEFAULT_URL = "http://127.0.0.1:8080"
# Without streaming, the server sends no byte until the answer is complete.
DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0)

Timeout = float | httpx.Timeout | None

_KEY = re.compile(r"[\x21-\x7e]+")

_CLOSE_REASONS = {
    1001: "the server is shutting down",
    1008: "the server refused the request",
    1012: "the server is restarting",
    1013: "the server is overloaded",
}


class Wire:
    """The server's address, the headers, the timeout, and the number of retries of a call.

    Raises `ValueError` if `base_url` is not an http or https address, or if `api_key` cannot be sent in a header.
    """

    def __init__(self, base_url: str, api_key: str | None, timeout: Timeout, retries: int = RETRIES) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"the server's address must start with http:// or https://, got {base_url!r}")
        self.base_url = base_url.rstrip("/")
        self._timeout = httpx.Timeout(timeout)
        self._retries = retries
        self.headers = {"User-Agent": f"everlong-client/{VERSION}"}
        if api_key and (key := api_key.strip()):  # a key read from a file may end in a newline
            if not _KEY.fullmatch(key):  # checked here, because the error for an invalid header would print the key
                raise ValueError("the API key may contain only ASCII letters, digits and punctuation, no spaces")
            self.headers["Authorization"] = f"Bearer {key}"

    def request(
        self,
        http: httpx.Client | httpx.AsyncClient,
        call: Call[T],
        body: Iterator[bytes] | AsyncIterator[bytes] | None,
        read_timeout: float | None,
        headers: Mapping[str, str],
    ) -> httpx.Request:
        """Return the HTTP request of a call. `read_timeout`, in seconds, replaces the client's timeout."""
        return http.build_request(
            call.method,
            self.base_url + call.path,
            params=call.params,
            headers={**self.headers, **call.headers, **headers},
            content=body,
            json=call.json,
            files=None if call.part is None else {"data": ("part", call.part, "application/octet-stream")},
            timeout=self._timeout if read_timeout is None else read_timeout,
        )

    def retrying(self, call: Call[T], read_timeout: float | None) -> Retrying:
        """Return the retries of a call: none if it has a `read_timeout`, because its caller repeats it."""
        return Retrying(call, self._retries if read_timeout is None else 0)

    def result(self, call: Call[T], response: httpx.Response) -> T:
        """Parse a fully read response. Raises its error, or `UnexpectedAnswerError`."""
        self.check(response)
        try:
            data = response.json()
        except ValueError as error:
            raise UnexpectedAnswerError(
                f"the response of {self.base_url} is not JSON; check that it is an everlong server"
            ) from error
        return call.parse(data)

    def check(self, response: httpx.Response) -> None:
        """Raise the error of a fully read response that is not a success."""
        if not response.is_success:
            raise status_error(response.status_code, response.headers, response.content)

    def check_stream(self, response: httpx.Response) -> None:
        """Raise `UnexpectedAnswerError` for a successful response that is not an event stream."""
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise UnexpectedAnswerError(
                f"{self.base_url} responded with {kind or 'no content type'} instead of an event stream"
            )

    def socket(self, call: Call[None]) -> dict[str, Any]:
        """Return the arguments of websockets' `connect` for a call that opens a WebSocket."""
        return {
            "uri": "ws" + self.base_url.removeprefix("http") + call.path,
            "additional_headers": {k: v for k, v in self.headers.items() if k != "User-Agent"},
            "user_agent_header": self.headers["User-Agent"],
            "open_timeout": self._timeout.connect,
            "close_timeout": 3,
            "compression": None,  # frames have a few bytes: nothing to gain
            "max_size": 64 * 1024 * 1024,  # an answer with log probabilities exceeds websockets' default of 1 MiB
        }

    @contextmanager
    def http_errors(self, *, streaming: bool = False) -> Iterator[None]:
        """Turn httpx's errors into those of this package. `streaming`: the response has already begun."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise APITimeoutError(
                f"{self.base_url} did not respond in time ({type(error).__name__})",
                connecting=isinstance(error, httpx.ConnectTimeout),
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if streaming:
                raise StreamError(f"the stream was cut off: {error}") from error
            raise APIConnectionError(f"no response from {self.base_url}: {error}") from error
        except UnicodeEncodeError as error:
            raise NotSentError(f"the text is not valid Unicode and cannot be sent: {error}") from error

    @contextmanager
    def socket_errors(self) -> Iterator[None]:
        """Turn websockets' errors into those of this package."""
        try:
            yield
        except ConnectionClosed as error:
            raise _closed(error) from error
        except InvalidStatus as error:
            response = error.response
            raise status_error(response.status_code, response.headers, bytes(response.body or b"")) from error
        except TimeoutError as error:  # before OSError, its base class; only connecting has a time limit
            raise APITimeoutError(f"{self.base_url} did not respond in time", connecting=True) from error
        except UnicodeEncodeError as error:
            raise NotSentError(f"the text is not valid Unicode and cannot be sent: {error}") from error
        except (OSError, WebSocketException) as error:
            raise APIConnectionError(f"no response from {self.base_url}: {error}") from error


def new_http_client(kind: type[H]) -> H:
    """Return an HTTP client that uses the environment's proxies. Raises `ValueError` if a proxy cannot be used."""
    try:
        return kind()
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # ImportError: the package for SOCKS is missing
        raise ValueError(f"the proxy in ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: {error}") from error


def _closed(error: ConnectionClosed) -> EverlongError:
    if error.rcvd is None:
        return StreamError("the connection was cut off", close_code=1006)
    code, reason = error.rcvd.code, error.rcvd.reason
    text = _CLOSE_REASONS.get(code, f"the server closed the connection ({code})")
    return StreamError(f"{text}: {reason}" if reason else text, close_code=code)


def encode(message: dict[str, Any]) -> str:
    """Return the text of a WebSocket frame. Raises `UnicodeEncodeError` if it is not valid Unicode."""
    text = json.dumps(message, ensure_ascii=False)
    text.encode()  # checked here, because websockets would close the connection
    return text
