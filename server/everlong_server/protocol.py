"""`BoundedHeads`: HTTP as uvicorn speaks it, for heads of a bounded size. httptools collects them without end."""

from __future__ import annotations

import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 64 * 1024
"""Bytes that may come without a request, its body or its end having got on. What one read brings may be on top."""

_BODY = json.dumps(
    {
        "error": {
            "message": f"the request's head has more than {MOST} bytes", "type": "invalid_request_error", "param": None,
            "code": "headers_too_large",
        }
    }
).encode()  # fmt: skip
_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class BoundedHeads(HttpToolsProtocol):
    """Ends a connection whose head, trailers or chunk extensions are too long."""

    _idle = 0
    """Bytes since the parser last came to something."""

    def data_received(self, data: bytes) -> None:
        """From the transport."""
        if self._idle > MOST:
            if not self.transport.is_closing():
                self.transport.write(_ANSWER)
                self.transport.close()
            return
        self._idle += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._idle = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._idle = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._idle = 0
        super().on_body(body)
