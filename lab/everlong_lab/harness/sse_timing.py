"""What is measured of an answer that comes as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class StreamTimer:
    """Fed with the lines of a message's stream, in the moment that each of them comes. `stamps`: seconds
    (`time.perf_counter`) of the pieces of text. `tokens`: of the whole answer, and `over`: when it ended, once it has."""

    stamps: list[float] = field(default_factory=list)
    tokens: int = 0
    over: float = 0.0
    _event: str = ""

    def feed(self, line: str) -> None:
        """The next line."""
        if line.startswith("event: "):
            self._event = line.removeprefix("event: ")
        elif line.startswith("data: ") and self._event == "response.output_text.delta":
            self.stamps.append(time.perf_counter())
        elif line.startswith("data: ") and self._event == "response.completed":
            self.over = time.perf_counter()
            self.tokens = json.loads(line.removeprefix("data: "))["message"]["usage"]["completion_tokens"]

    @property
    def each(self) -> float:
        """Seconds for each token after the first, until the end: a piece may be of several tokens, and the last ones of none.
        Raises `RuntimeError` if all came as one piece."""
        if len(self.stamps) < 2:
            raise RuntimeError(
                f"an answer of {self.tokens} tokens came as one piece: it says nothing about the time of a token"
            )
        return (self.over - self.stamps[0]) / (self.tokens - 1)


def longest(stamps: Sequence[float]) -> float:
    """The most seconds between one of at least two `stamps` and the next."""
    return max(after - before for before, after in pairwise(stamps))
