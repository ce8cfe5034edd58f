"""What an answer is based on: nothing, a memory, or a text in the backbone's own context; and how likely answers are then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from everlong_models.backbone.backbone import Backbone
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState


class Context(Protocol):
    """What precedes a question."""

    def logits(self, tokens: Tensor) -> Tensor:
        """Return logits (T, V) of `tokens` (T,) after this context."""

    def write(self, prompt: Sequence[int], ends: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens that greedy decoding adds to `prompt`."""


def likelihood(context: Context, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Return the mean log-likelihood (natural logarithm) of a token of `answer` after `prompt`."""
    tokens = torch.tensor([*prompt, *answer])
    logits = context.logits(tokens[:-1])[len(prompt) - 1 :].float()
    return -float(torch.nn.functional.cross_entropy(logits, tokens[len(prompt) :].to(logits.device)))


@dataclass(slots=True)
class InMemory:
    """A memory that has read something. `seconds`: processor time that reading took; `tokens`: how many were read."""

    memory: SegmentReader
    state: MemoryState
    tokens: int = 0
    seconds: float = 0.0

    @staticmethod
    def reading(memory: SegmentReader, tokens: Sequence[int]) -> InMemory:
        """Read `tokens` into an empty memory, also those of the last segment that do not fill it."""
        state, S = memory.initial_state(), memory.segment_length
        text = torch.tensor([tokens], dtype=torch.int64, device=state.device)
        full = len(tokens) // S * S
        began = time.process_time()
        for start in range(0, full, S):
            state = memory.read(text[:, start : start + S], state)
        if full < len(tokens):
            state = memory.close(memory.open(state, text[:, full:])[0])
        return InMemory(memory, state, len(tokens), time.process_time() - began)

    def logits(self, tokens: Tensor) -> Tensor:
        """See `Context`. Text beyond the segment is read into the memory first."""
        state, S, found = self.state, self.memory.segment_length, []
        for part in tokens[None].to(state.device).split(S, dim=1):
            found.append(self.memory.forward(part, state)[0])
            if part.shape[1] == S < len(tokens):
                state = self.memory.read(part, state)
        return torch.cat(found)

    def write(self, prompt: Sequence[int], ends: Sequence[int], most: int) -> list[int]:
        """See `Context`."""
        state, S = self.state, self.memory.segment_length
        text = torch.tensor([list(prompt)], device=state.device)
        full = (text.shape[1] - 1) // S * S
        cache, logits = self.memory.open(self.memory.read(text[:, :full], state), text[:, full:])
        written: list[int] = []
        while len(written) < most:
            token = logits.argmax(-1)
            if int(token) in ends:
                break
            written.append(int(token))
            if int(cache.lengths) == S:
                cache, logits = self.memory.open(self.memory.close(cache), token[:, None])
            else:
                logits = self.memory.step(cache, token)
        return written


@dataclass(slots=True)
class InContext:
    """A text in the backbone's own context. Its keys and values are computed once for all questions."""

    backbone: Backbone
    text: Sequence[int]
    room: int
    seconds: float = 0.0
    _kv: Tensor = field(init=False)

    def __post_init__(self) -> None:
        began = time.process_time()
        self._kv = self.backbone.new_kv(1, len(self.text) + self.room)
        self.backbone.hidden(self._embedded(torch.tensor(self.text)), kv=self._kv, keep=1)
        self.seconds = time.process_time() - began

    def logits(self, tokens: Tensor) -> Tensor:
        """See `Context`."""
        return self.backbone.logits(self._hidden(tokens, len(self.text)))[0]

    def write(self, prompt: Sequence[int], ends: Sequence[int], most: int) -> list[int]:
        """See `Context`."""
        at, tokens, written = len(self.text), torch.tensor(list(prompt)), list[int]()
        while len(written) < most:
            token = int(self.backbone.logits(self._hidden(tokens, at, keep=1)[:, -1]).argmax())
            if token in ends:
                break
            written.append(token)
            at, tokens = at + len(tokens), torch.tensor([token])
        return written

    def _hidden(self, tokens: Tensor, at: int, keep: int | None = None) -> Tensor:
        start = torch.tensor([at], device=self.backbone.device)
        return self.backbone.hidden(self._embedded(tokens), kv=self._kv, at=start, keep=keep)

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.backbone.embed(tokens[None].to(self.backbone.device))
