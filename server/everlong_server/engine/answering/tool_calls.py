"""`CallParser`: separates the calls in an answer from its text, while it is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from everlong_models import ToolCall, ToolFormat
from everlong_models.generate.sampling import overlap
from everlong_server.engine.answering.events import TextDelta, ToolArgumentsDelta, ToolCallStarted


class CallParser:
    """Takes an answer's text in pieces of any size, and returns its events.

    The grammar of the answer makes sure that every call is complete, unless the answer is cut. Of a cut call, the name and the
    arguments so far are kept if the name is complete. White space between text and a call belongs to neither.
    """

    def __init__(self, format: ToolFormat, response_id: str) -> None:
        """`response_id`: the id of the answer, from which those of the calls are made."""
        self._format = format
        self._response_id = response_id
        self._marker = format.open.split()[0]
        self._state: Literal["text", "open", "arguments", "between"] = "text"
        self._held = ""
        self._content: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []
        self._object = _ObjectEnd()

    @property
    def content(self) -> str:
        """The text of the answer so far."""
        return "".join(self._content)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far."""
        named = zip(self._names, self._arguments, strict=True)
        return tuple(ToolCall(self._id(n), name, "".join(parts)) for n, (name, parts) in enumerate(named))

    def feed(
        self, text: str, logprobs: list[dict[str, Any]]
    ) -> Iterator[TextDelta | ToolCallStarted | ToolArgumentsDelta]:
        """Add `text` and yield what it completes. `logprobs`: of its tokens; they come with a delta of the text, which can be empty."""
        self._held += text
        shown = self._take_text() if self._state == "text" else ""
        if shown or logprobs:
            yield TextDelta(self._response_id, shown, logprobs)
        while self._state != "text" and self._held:
            match self._state:
                case "open":
                    name, found, rest = self._held.removeprefix(self._format.open).partition(self._format.middle)
                    if not found:
                        return
                    self._held, self._state, self._object = rest, "arguments", _ObjectEnd()
                    self._names.append(name)
                    self._arguments.append([])
                    yield ToolCallStarted(self._response_id, len(self._names) - 1, self._id(len(self._names) - 1), name)
                case "arguments":
                    end = self._object.find(self._held)
                    arguments = self._held if end is None else self._held[:end]
                    self._held, self._state = self._held[len(arguments) :], "arguments" if end is None else "between"
                    self._arguments[-1].append(arguments)
                    yield ToolArgumentsDelta(self._response_id, len(self._names) - 1, arguments)
                case "between":
                    start = self._held.find(self._marker)
                    if start < 0:
                        return
                    self._held, self._state = self._held[start:], "open"

    def finish(self) -> str:
        """End the answer, and return the text that was held back because a call could have begun there."""
        rest = self._held if self._state == "text" else ""
        self._held = ""
        self._content.append(rest)
        return rest

    def _take_text(self) -> str:
        """Return the text that cannot belong to a call."""
        start = self._held.find(self._marker)
        end = len(self._held) - overlap(self._held, self._marker) if start < 0 else start
        shown = self._held[:end].rstrip()
        if start < 0:
            self._held = self._held[len(shown) :]
        else:
            self._held, self._state = self._held[start:], "open"
        self._content.append(shown)
        return shown

    def _id(self, index: int) -> str:
        return f"call_{self._response_id.partition('_')[2]}_{index}"


class _ObjectEnd:
    """Finds the end of a JSON object in a text that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def find(self, text: str) -> int | None:
        """Return the index after the object's last character; None if the object goes on."""
        for index, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return index + 1
        return None
