"""An incremental decoder of server-sent events. No I/O: the caller feeds the received bytes.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its name ("" if it has none) and its data lines, joined."""

    event: str
    data: str


class SSEDecoder:
    """Splits a stream of bytes into events, wherever the chunks end.

    It decodes whole lines, so a character is decoded only when all its bytes have arrived. An event that is incomplete
    at the end of the stream is never returned.
    """

    def __init__(self) -> None:
        self._line = b""  # the line that is not complete yet
        self._after_cr = False  # a line feed at the start of the next chunk belongs to this "\r"
        self._first = True
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes."""
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        lines = (self._line + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._line = lines.pop()
        return [event for line in lines if (event := self._take(line)) is not None]

    def _take(self, line: bytes) -> ServerSentEvent | None:
        if self._first:
            line, self._first = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        # An empty name is a comment. `id` and `retry` are for reconnecting, which this client does not do.
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        return ServerSentEvent(event, "\n".join(data)) if data else None
