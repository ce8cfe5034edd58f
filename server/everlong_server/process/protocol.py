"""Uvicorn's protocols, corrected.

`BoundedHeadersProtocol`, for HTTP, limits the size of headers and the time in which they arrive: httptools buffers them without a
limit, and uvicorn waits for ever. It answers with errors in the API's format, and keeps the body of a request that asks for HTTP/2.
`HandshakeProtocol`, for WebSockets, ends refused handshakes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Maximum number of bytes a connection may send without making progress on a request. One read may exceed it."""

HEAD_SECONDS = 20.0
"""A request's headers must be complete this long after their first byte."""
SILENT_SECONDS = 75.0
"""A new connection must send its first byte within this time."""

UNREAD_BYTES_PER_SECOND = 500
"""Minimum rate of the rest of a body whose request was answered already, such as one that was refused."""


def _answer(status: bytes, code: str, message: str) -> bytes:
    """Return the bytes of an error response in the API's format that closes the connection."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


_TOO_LONG = _answer(
    b"431 Request Header Fields Too Large",
    "headers_too_large",
    f"the request's headers are larger than the limit of {MAX_HEAD_BYTES} bytes",
)
_TOO_SLOW = _answer(
    b"408 Request Timeout", "request_timeout", f"the request's headers were not complete after {HEAD_SECONDS:g} s"
)
_NO_HTTP = _answer(b"400 Bad Request", "invalid_http", "the request is not valid HTTP/1.1")


class BoundedHeadersProtocol(HttpToolsProtocol):
    """Closes a connection whose headers, trailers or chunk extensions are too long, or whose headers are too slow.

    Also one that sends the rest of a body too slowly after its request was answered, which the application no longer reads.
    """

    _unparsed_bytes = 0
    """Bytes received since the parser last made progress."""
    _in_head = False
    """Whether a part of a request's headers has arrived."""
    _between_requests = True
    _unread_bytes = 0
    """Bytes of an answered request's body since they were last counted."""
    _timer: asyncio.TimerHandle | None = None
    _received = b""
    """The bytes that the parser is given now."""
    _again = b""
    """The bytes that the parser gets next."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._start_timer(SILENT_SECONDS, self._end_slow_connection)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self, seconds: float, ended: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, ended)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_slow_connection(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # the answer to an earlier request goes first
            self._start_timer(HEAD_SECONDS, self._end_slow_connection)
        elif not self.transport.is_closing():
            if self._in_head:
                self.transport.write(_TOO_SLOW)
            self.transport.close()

    def on_response_complete(self) -> None:
        """Limit the time for the rest of the request."""
        super().on_response_complete()
        if not self._between_requests:
            self._unread_bytes = 0
            self._start_timer(HEAD_SECONDS, self._end_unread_body)

    def _end_unread_body(self) -> None:
        if self._unread_bytes >= UNREAD_BYTES_PER_SECOND * HEAD_SECONDS:
            self._unread_bytes = 0
            self._start_timer(HEAD_SECONDS, self._end_unread_body)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the transport, or answer 431 if the limit is exceeded."""
        if self._between_requests and not self._in_head:
            self._in_head = True
            self._start_timer(HEAD_SECONDS, self._end_slow_connection)
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            if not self.transport.is_closing():
                self.transport.write(_TOO_LONG)
                self.transport.close()
            return
        self._unparsed_bytes += len(data)
        self._again = data
        while self._again:
            self._received, self._again = self._again, b""
            super().data_received(self._received)
        self._received = b""

    def _ignores_upgrade(self) -> bool:
        """Return whether the request asks for a protocol that the server does not have, such as HTTP/2 (`Upgrade: h2c`)."""
        return self.parser.should_upgrade() and not self._should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Have the request parsed once more, without its header `Upgrade`. Uvicorn calls this while it handles `HttpParserUpgrade`.

        httptools takes the request's body for bytes of the other protocol. Java's HTTP client sends such requests by default.
        """
        upgrade = sys.exception()
        if not isinstance(upgrade, httptools.HttpParserUpgrade) or not self._ignores_upgrade():
            return
        rest = self._received[upgrade.args[0] :]
        version = self.parser.get_http_version().encode()
        head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        head += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._again = b"\r\n".join([*head, b"", rest])

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that the parser rejects."""
        self.transport.write(_NO_HTTP)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Reset the count: a request begins."""
        self._unparsed_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Reset the count: the request's headers are complete."""
        if self._ignores_upgrade():
            return  # it is parsed once more
        self._unparsed_bytes = 0
        self._in_head = self._between_requests = False
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count: a part of the request's body arrived."""
        self._unparsed_bytes = 0
        self._unread_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next request."""
        if self._ignores_upgrade():
            return  # it is parsed once more
        self._between_requests = True
        super().on_message_complete()
        if self.parser.should_upgrade() and self._should_upgrade():
            return  # a WebSocket, which has timers of its own
        if self.cycle.response_complete:  # uvicorn ended its own timer when the rest of the request arrived
            self._start_timer(SILENT_SECONDS, self._end_slow_connection)


class HandshakeProtocol(WebSocketsSansIOProtocol):
    """Answers every handshake that is refused, closes its connection, and logs no error for it."""

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the transport.

        The library refuses a handshake with a line longer than 8 KiB or more than 128 headers. Uvicorn would not send its
        answer, and leave the connection open for ever.
        """
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            log.info("WebSocket handshake refused: %s", type(self.conn.handshake_exc).__name__)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    async def send(self, message: ASGISendEvent) -> None:
        """Send an event of the application. A complete refusal completes the handshake; uvicorn would log it as an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
