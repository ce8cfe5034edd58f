"""Uvicorn's protocols, corrected.

`BoundedHeadersProtocol`, for HTTP, limits the size of headers, because httptools buffers them without a limit. It answers with errors
in the API's format. `HandshakeProtocol`, for WebSockets, ends refused handshakes.
"""

from __future__ import annotations

import json
import logging

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Maximum number of bytes a connection may send without making progress on a request. One read may exceed it."""


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
_NO_HTTP = _answer(b"400 Bad Request", "invalid_http", "the request is not valid HTTP/1.1")


class BoundedHeadersProtocol(HttpToolsProtocol):
    """Closes a connection whose headers, trailers or chunk extensions are too long."""

    _unparsed_bytes = 0
    """Bytes received since the parser last made progress."""

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the transport, or answer 431 if the limit is exceeded."""
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            if not self.transport.is_closing():
                self.transport.write(_TOO_LONG)
                self.transport.close()
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)

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
        self._unparsed_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count: a part of the request's body arrived."""
        self._unparsed_bytes = 0
        super().on_body(body)


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
