"""What both clients' transports share: how a call becomes an HTTP request, and an answer a result or an error."""

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

__all__ = ["DEFAULT_TIMEOUT", "DEFAULT_URL", "VERSION", "Timeout", "Wire", "encode", "new_http_client"]

T = TypeVar("T")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)

VERSION = "0.1.0"
DEFAULT_URL = "http://127.0.0.1:8080"
# A long answer that is not streamed says nothing until it is complete.
DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0)

Timeout = float | httpx.Timeout | None

_KEY = re.compile(r"[\x21-\x7e]+")

_CLOSE_REASONS = {
    1001: "the server is shutting down",
    1008: "the server refused",
    1012: "the server is restarting",
    1013: "the server is overloaded",
}


class Wire:
    """Where the server is and how to speak to it. `retries`: how often a call is tried again.

    Raises `ValueError` if `base_url` is no http or https address, or `api_key` none that a header can hold.
    """

    def __init__(self, base_url: str, api_key: str | None, timeout: Timeout, retries: int = RETRIES) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"{base_url!r} is no server's address: it must begin with http:// or https://")
        self.base_url = base_url.rstrip("/")
        self._timeout = httpx.Timeout(timeout)
        self._retries = retries
        self.headers = {"User-Agent": f"everlong-client/{VERSION}"}
        if api_key and (key := api_key.strip()):  # a file's last line end is none of it
            if not _KEY.fullmatch(key):  # said here, without it: whoever refuses the header repeats all of it
                raise ValueError("the API key may only have letters, digits and signs of ASCII, and no spaces")
            self.headers["Authorization"] = f"Bearer {key}"

    def request(
        self,
        http: httpx.Client | httpx.AsyncClient,
        call: Call[T],
        body: Iterator[bytes] | AsyncIterator[bytes] | None,
        read_timeout: float | None,
        headers: Mapping[str, str],
    ) -> httpx.Request:
        """The request of a call; `read_timeout`, seconds without a byte, replaces the client's timeout."""
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
        """The tries of a call; whoever says how long the server may be silent is patient by other means."""
        return Retrying(call, self._retries if read_timeout is None else 0)

    def result(self, call: Call[T], response: httpx.Response) -> T:
        """What a fully read answer says. Raises the error that it is, or `UnexpectedAnswerError`."""
        self.check(response)
        try:
            data = response.json()
        except ValueError as error:
            raise UnexpectedAnswerError(
                f"{self.base_url} answered with something that is not JSON: is it an everlong server?"
            ) from error
        return call.parse(data)

    def check(self, response: httpx.Response) -> None:
        """Raises the error that a fully read answer is, if it is one."""
        if not response.is_success:
            raise status_error(response.status_code, response.headers, response.content)

    def check_stream(self, response: httpx.Response) -> None:
        """Raises `UnexpectedAnswerError` for a success that is no event stream."""
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise UnexpectedAnswerError(f"{self.base_url} answered with {kind or 'nothing'} instead of an event stream")

    def socket(self, call: Call[None]) -> dict[str, Any]:
        """The arguments of websockets' `connect` for a call that opens one."""
        return {
            "uri": "ws" + self.base_url.removeprefix("http") + call.path,
            "additional_headers": {k: v for k, v in self.headers.items() if k != "User-Agent"},
            "user_agent_header": self.headers["User-Agent"],
            "open_timeout": self._timeout.connect,
            "close_timeout": 3,
            "compression": None,  # a few bytes a frame: nothing to gain
            "max_size": 64 * 1024 * 1024,  # an answer with log probabilities is larger than websockets' 1 MiB
        }

    @contextmanager
    def http_errors(self, *, streaming: bool = False) -> Iterator[None]:
        """Turns httpx's errors into ours; `streaming` once the answer has begun."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise APITimeoutError(
                f"{self.base_url} did not answer in time ({type(error).__name__})",
                connecting=isinstance(error, httpx.ConnectTimeout),
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if streaming:
                raise StreamError(f"the stream was cut off: {error}") from error
            raise APIConnectionError(f"no answer from {self.base_url}: {error}") from error
        except UnicodeEncodeError as error:
            raise NotSentError(f"text that is no Unicode cannot be sent: {error}") from error

    @contextmanager
    def socket_errors(self) -> Iterator[None]:
        """Turns websockets' errors into ours."""
        try:
            yield
        except ConnectionClosed as error:
            raise _closed(error) from error
        except InvalidStatus as error:
            response = error.response
            raise status_error(response.status_code, response.headers, bytes(response.body or b"")) from error
        except TimeoutError as error:  # before OSError, which it is; only connecting has a limit
            raise APITimeoutError(f"{self.base_url} did not answer in time", connecting=True) from error
        except UnicodeEncodeError as error:
            raise NotSentError(f"text that is no Unicode cannot be sent: {error}") from error
        except (OSError, WebSocketException) as error:
            raise APIConnectionError(f"no answer from {self.base_url}: {error}") from error


def new_http_client(kind: type[H]) -> H:
    """A client that goes by the environment's proxies. Raises `ValueError` if what it names is none."""
    try:
        return kind()
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # ImportError: of what only SOCKS needs
        raise ValueError(f"the proxy of ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: {error}") from error


def _closed(error: ConnectionClosed) -> EverlongError:
    if error.rcvd is None:
        return StreamError("the connection was cut off", close_code=1006)
    code, reason = error.rcvd.code, error.rcvd.reason
    text = _CLOSE_REASONS.get(code, f"the server closed the connection ({code})")
    return StreamError(f"{text}: {reason}" if reason else text, close_code=code)


def encode(message: dict[str, Any]) -> str:
    """A WebSocket frame's text. Raises `UnicodeEncodeError` if it is none."""
    text = json.dumps(message, ensure_ascii=False)
    text.encode()  # here: websockets would take it for an end of the connection
    return text
