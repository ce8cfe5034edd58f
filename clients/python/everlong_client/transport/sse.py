"""Server-sent events, from bytes as they come to whole events. No I/O: feed it what was received.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SSEDecoder", "ServerSentEvent"]

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its name ("" if it has none) and its data lines, joined."""

    event: str
    data: str


class SSEDecoder:
    """Splits bytes into events, wherever the network cut them.

    It works on whole lines of bytes, so a character is decoded only once all its bytes are there. An event that the
    stream's end left unfinished is never returned.
    """

    def __init__(self) -> None:
        self._line = b""  # the line that has no end yet
        self._after_cr = False  # a line feed that comes now belongs to the line end before it
        self._first = True
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes."""
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
        # An empty name is a comment; `id` and `retry` serve reconnecting, which is not done here.
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        return ServerSentEvent(event, "\n".join(data)) if data else None
