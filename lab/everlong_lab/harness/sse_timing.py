"""Measure the timing of an answer that is streamed as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(slots=True)
class StreamTimer:
    """Records the stream of a message; `feed` it each line as soon as it arrives. `stamps`: times (`time.perf_counter`) of
    the pieces of text. `message`: the whole answer, and `over`: when it ended, both set at its end."""

    stamps: list[float] = field(default_factory=list)
    message: dict[str, Any] | None = None
    over: float = 0.0
    _event: str = ""

    def feed(self, line: str) -> None:
        """Process the next line."""
        if line.startswith("event: "):
            self._event = line.removeprefix("event: ")
        elif line.startswith("data: ") and self._event == "response.output_text.delta":
            self.stamps.append(time.perf_counter())
        elif line.startswith("data: ") and self._event == "response.completed":
            self.over = time.perf_counter()
            self.message = json.loads(line.removeprefix("data: "))["message"]

    @property
    def tokens(self) -> int:
        """The number of tokens of the whole answer; 0 before its end."""
        return 0 if self.message is None else int(self.message["usage"]["completion_tokens"])

    @property
    def each(self) -> float:
        """Seconds per token after the first one, until the end: a piece may have several tokens, and the last tokens none.

        Raises `RuntimeError` if the answer arrived as one piece."""
        if len(self.stamps) < 2:
            raise RuntimeError(
                f"the answer of {self.tokens} tokens arrived as one piece: its time per token cannot be measured"
            )
        return (self.over - self.stamps[0]) / (self.tokens - 1)


def longest(stamps: Sequence[float]) -> float:
    """Return the longest interval between consecutive `stamps`, of which there must be at least two."""
    return max(after - before for before, after in pairwise(stamps))
