"""A memory that keeps the whole text, and answers with a function of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from everlong_lab.tasks.chat_encoder import ChatEncoder
from everlong_models.backbone.cache import Cache
from everlong_models.memories.state import MemoryState
from everlong_models.text.tokenizer import Tokenizer


class Oracle:
    """`answer` maps the text read so far to the answer, whose tokens then are the likeliest by far, one by one."""

    def __init__(self, tokenizer: Tokenizer, answer: Callable[[str], str], segment_length: int = 16) -> None:
        self.encoder = ChatEncoder(tokenizer)
        self.segment_length = segment_length
        self.vocab_size = tokenizer.vocab_size
        self.read_at_once: list[int] = []
        self._answer = answer

    def initial_state(self, rows: int = 1) -> MemoryState:
        return MemoryState({"tokens": torch.zeros(rows, 0, dtype=torch.int64)})

    def read(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        assert tokens.shape[1] % self.segment_length == 0
        self.read_at_once.append(tokens.shape[1])
        return MemoryState({"tokens": torch.cat([state["tokens"], tokens], dim=1)})

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        assert 1 <= tokens.shape[1] <= self.segment_length
        held = torch.cat([state["tokens"], tokens], dim=1)
        return Cache({"tokens": held}, torch.full((len(held),), tokens.shape[1])), self._scores(held)

    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        cache.tensors["tokens"] = torch.cat([cache["tokens"], tokens[:, None]], dim=1)
        cache.lengths = cache.lengths + 1
        assert int(cache.lengths.max()) <= self.segment_length
        return self._scores(cache["tokens"])

    def close(self, cache: Cache) -> MemoryState:
        return MemoryState({"tokens": cache["tokens"]})

    def _scores(self, tokens: Tensor) -> Tensor:
        """Return the next token of the answer, after those already generated since the last `ask`."""
        scores = torch.zeros(len(tokens), self.vocab_size)
        ask = list(self.encoder.format.ask)
        for row, ids in enumerate(tokens.tolist()):
            at = max((i for i in range(len(ids)) if ids[i : i + len(ask)] == ask), default=None)
            if at is None:
                continue
            begin = at + len(ask)
            planned = self.encoder.answer(self._answer(self.encoder.tokenizer.decode(ids[:begin])))
            given = ids[begin:]
            scores[row, planned[min(len(given), len(planned) - 1)]] = 1.0
        return scores
