"""`BoundedHeadersProtocol`: HTTP as uvicorn speaks it, for heads of a bounded size, and with errors as the API's are.

httptools collects heads without end.
"""

from __future__ import annotations

import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Bytes that may come without a request, its body or its end having got on. What one read brings may be on top."""


def _answer(status: bytes, code: str, message: str) -> bytes:
    """What ends a connection, as errors of the API look."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


_TOO_LONG = _answer(
    b"431 Request Header Fields Too Large",
    "headers_too_large",
    f"the request's head has more than {MAX_HEAD_BYTES} bytes",
)
_NO_HTTP = _answer(b"400 Bad Request", "invalid_http", "what was sent is not HTTP/1.1")


class BoundedHeadersProtocol(HttpToolsProtocol):
    """Ends a connection whose head, trailers or chunk extensions are too long."""

    _unparsed_bytes = 0
    """Bytes since the parser last came to something."""

    def data_received(self, data: bytes) -> None:
        """From the transport."""
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            if not self.transport.is_closing():
                self.transport.write(_TOO_LONG)
                self.transport.close()
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Of what cannot be parsed."""
        self.transport.write(_NO_HTTP)
        self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._unparsed_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._unparsed_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._unparsed_bytes = 0
        super().on_body(body)
