"""`CallParser`: separates the calls in an answer from its text, while it is generated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from everlong_models import Tool, ToolCall, ToolFormat
from everlong_models.generate.sampling import overlap
from everlong_server.engine.answering.events import TextDelta, ToolArgumentsDelta, ToolCallStarted

_FENCES = ("", "```", "```json")
_BARE = re.compile(r'(?:```(?:json)?\s*)?\{?\s*\{\s*"name"\s*:\s*"([\w-]+)"')
"""The beginning of a call without a marker, up to the end of its name. A second brace counts, too: Qwen2.5-Coder's template has
one by mistake, and the model copies it."""


class CallParser:
    """Takes an answer's text in pieces of any size, and returns its events.

    The grammar of the answer makes sure that every call is complete, unless the answer is cut. Of a cut call, the name and the
    arguments so far are kept if the name is complete. White space between text and a call belongs to neither.
    """

    def __init__(self, format: ToolFormat, tools: Sequence[Tool], response_id: str) -> None:
        """`tools`: those that the answer may call. `response_id`: the id of the answer, from which those of the calls are made."""
        self._format = format
        self._response_id = response_id
        self._marker = format.open.split()[0]
        names = [tool.name for tool in tools] if format.writes_json else []
        self._bare = [f'{fence}{brace}{{"name":"{name}"' for name in names for fence in _FENCES for brace in ("", "{")]
        """The beginnings of calls without a marker, without white space."""
        self._state: Literal["text", "between", "open", "named", "arguments"] = "text"
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

    def call_start(self, text: str) -> tuple[int, bool]:
        """Return where the first call begins in `text`, or the first text that may become one, and whether it is certain.

        `text`: the answer's text, or its end. Does not depend on what was fed, so any thread may call it.
        """
        start = self._call_start(text)
        return start, self._begins_call(text[start:])

    def feed(
        self, text: str, logprobs: list[dict[str, Any]]
    ) -> Iterator[TextDelta | ToolCallStarted | ToolArgumentsDelta]:
        """Add `text` and yield what it completes. `logprobs`: of its tokens; they come with a delta of the text, which can be empty."""
        self._held += text
        shown = self._take_text() if self._state == "text" else ""
        if shown or logprobs:
            yield TextDelta(self._response_id, shown, logprobs)
        while self._state != "text" and self._held:
            before = self._state, self._held
            yield from self._advance()
            if (self._state, self._held) == before:
                return

    def _advance(self) -> Iterator[ToolCallStarted | ToolArgumentsDelta]:
        """Parse the next part of the calls in the held text; does nothing if it is not complete."""
        match self._state:
            case "between":
                self._held = self._held[self._call_start(self._held) :]
                if self._begins_call(self._held):
                    self._state = "open"
            case "open":
                bare = _BARE.match(self._held)
                name, found, rest = self._held.removeprefix(self._format.open).partition(self._format.middle)
                if bare is not None:
                    name, rest, self._state = bare[1], self._held[bare.end() :], "named"
                elif found:
                    self._state = "arguments"
                else:
                    return
                self._held, self._object = rest, _ObjectEnd()
                self._names.append(name)
                self._arguments.append([])
                yield ToolCallStarted(self._response_id, len(self._names) - 1, self._id(len(self._names) - 1), name)
            case "named":
                start = self._held.find("{")
                if start >= 0:
                    self._held, self._state = self._held[start:], "arguments"
            case "arguments":
                end = self._object.find(self._held)
                arguments = self._held if end is None else self._held[:end]
                self._held, self._state = self._held[len(arguments) :], "arguments" if end is None else "between"
                self._arguments[-1].append(arguments)
                yield ToolArgumentsDelta(self._response_id, len(self._names) - 1, arguments)

    def finish(self) -> str:
        """End the answer, and return the text that was held back because a call could have begun there."""
        rest = self._held if self._state == "text" else ""
        self._held = ""
        self._content.append(rest)
        return rest

    def _take_text(self) -> str:
        """Return the text that cannot belong to a call."""
        start, begins = self.call_start(self._held)
        shown = self._held[:start].rstrip()
        if begins:
            self._held, self._state = self._held[start:], "open"
        else:
            self._held = self._held[len(shown) :]
        self._content.append(shown)
        return shown

    def _call_start(self, held: str) -> int:
        """Return where the first call begins, or the first text that may become one; the end of `held` if there is none."""
        marked = held.find(self._marker)
        end = marked if marked >= 0 else len(held) - overlap(held, self._marker)
        bare = (n for n in range(end) if held[n] in "`{" and self._may_be_bare(held[n:]))
        return next(bare, end)

    def _may_be_bare(self, text: str) -> bool:
        """Whether `text` begins with a call without a marker, or is the beginning of one."""
        compact = "".join(text[: 4 * max(map(len, self._bare), default=0)].split())
        return any(compact.startswith(bare) or bare.startswith(compact) for bare in self._bare)

    def _begins_call(self, text: str) -> bool:
        """Whether `text` begins with a marker, or with a call without one and its whole name."""
        return text.startswith(self._marker) or (_BARE.match(text) is not None and self._may_be_bare(text))

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
