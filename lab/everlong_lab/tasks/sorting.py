"""Sort symbols by frequency (Martins et al. 2022, section 4.1): find what occurs most often in a long, drifting sequence.

    1 2 1 3 1 0 3 1 3 2 <SEP> 1 3 2 0

A sequence of L symbols is sampled from a mixture that changes from its start to its end,

    p_t = (1 − α_t) p_0 + α_t p_1,    α_t = t/L,  t = 1 … L,

so that a model that remembers only the end sorts by p_1. p_0 and p_1 are sampled anew for every sequence: an integer from
1 to 9 for each symbol, normalised. The answer follows a separator: all V symbols by falling frequency. Of equally frequent
symbols, the one that occurs first comes first; symbols that do not occur come last, in ascending order. (The paper
specifies neither the two distributions nor the order of ties; this follows the authors' published generator.)

L is a whole number of segments, so that separator and answer start a segment of their own: the model knows the sequence
only through its memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import vocabulary
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import ConfigError
from everlong_models.memories.base import SegmentReader

Ints = NDArray[np.int64]


class SortingConfig(TaskConfig):
    """`symbols`: number of different symbols V, 20 in the paper; the separator is one more token."""

    name: Literal["sorting"] = "sorting"
    symbols: int = Field(20, ge=2)


class Sorting(Task):
    """Sorting by frequency. Raises `ConfigError` if separator and answer do not fit into a segment."""

    config: SortingConfig

    def __init__(self, config: SortingConfig, setting: Setting) -> None:
        if setting.segment_length < config.symbols + 1:
            limit = f"must hold the separator and {config.symbols} symbols, {config.symbols + 1} tokens"
            raise ConfigError("segment_length", setting.segment_length, limit)
        super().__init__(config, setting)

    @classmethod
    def make_tokenizer(cls, config: SortingConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return a tokenizer with one token per symbol, written as its number, and the separator last."""
        return vocabulary.symbols([*map(str, range(config.symbols)), "<SEP>"])

    @property
    def vocab_size(self) -> int:
        return self.config.symbols + 1

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        return self._documents(self.random(self._seed, step), rows, segments)

    def held_out(self, samples: int, segments: int, *, rows: int = 32) -> list[Batch]:
        """Return `samples` held-out documents, the same ones at every call, in batches of up to `rows`.

        They do not depend on the seed, so that models of several seeds are measured on the same documents.
        """
        return [
            self._documents(self.random(segments, first, held_out=True), min(rows, samples - first), segments)
            for first in range(0, samples, rows)
        ]

    @torch.no_grad()
    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return `accuracy`: the share of the answer's positions whose most likely token is right, given the right tokens
        before it; and `loss`: nats per position."""
        device = model.initial_state(1).device
        right, loss, count = 0, 0.0, 0
        for batch in self.held_out(samples, segments):
            tokens = batch.tokens.to(device)
            L = segments * self._S
            state = model.read(tokens[:, :L], model.initial_state(len(tokens)))
            scores = model.forward(tokens[:, L:], state)[:, :-1].float()
            answer = tokens[:, L + 1 :]
            right += int((scores.argmax(-1) == answer).sum())
            loss += float(F.cross_entropy(scores.flatten(0, 1), answer.flatten(), reduction="sum"))
            count += answer.numel()
        return {"accuracy": right / count, "loss": loss / count}

    def window_accuracy(self, *, samples: int, segments: int, window: int) -> float:
        """Return the accuracy of counting only the last `window` symbols: what a memory of this many tokens could reach
        without extrapolating the drift. A symbol that the answer already contains is not predicted again."""
        V, L = self.config.symbols, segments * self._S
        right = count = 0
        for batch in self.held_out(samples, segments):
            tokens = batch.tokens.numpy()
            seen = _counts(tokens[:, max(0, L - window) : L], V).astype(float)
            for answer in tokens[:, L + 1 :].T:
                right += int((seen.argmax(1) == answer).sum())
                count += len(answer)
                seen[np.arange(len(seen)), answer] = -1
        return right / count

    def _documents(self, random: np.random.Generator, rows: int, segments: int) -> Batch:
        V, L = self.config.symbols, segments * self._S
        sequence = drifting(random, rows, L, V)
        separator = np.full((rows, 1), V)
        tokens = np.concatenate([sequence, separator, by_frequency(sequence, V)], axis=1)
        targets = torch.zeros(tokens.shape, dtype=torch.bool)
        targets[:, L + 1 :] = True
        return Batch(torch.from_numpy(tokens), torch.full((rows,), tokens.shape[1]), targets)


def drifting(random: np.random.Generator, rows: int, length: int, symbols: int) -> Ints:
    """Sample sequences (rows, length) of symbols 0 … `symbols` − 1 from a mixture that drifts from p_0 to p_1."""
    weights = random.integers(1, 10, (2, rows, symbols)).astype(float)
    upto = (weights / weights.sum(-1, keepdims=True)).cumsum(-1)  # (2, rows, V)
    late = random.random((rows, length)) < np.arange(1, length + 1) / length
    uniform = random.random((rows, length))
    first, second = (
        np.stack([edges.searchsorted(line, side="right") for edges, line in zip(side, uniform, strict=True)])
        for side in upto
    )
    # Rounding may make the last edge slightly less than 1.
    return np.where(late, second, first).clip(max=symbols - 1).astype(np.int64)


def by_frequency(sequence: Ints, symbols: int) -> Ints:
    """Return all symbols (rows, symbols) by falling frequency in each row of `sequence` (rows, length).

    Of equally frequent symbols, the one that occurs first comes first; symbols that do not occur come last, in ascending order.
    """
    rows, length = sequence.shape
    first = np.full((rows, symbols), length)
    # Written from the end, so that each symbol's earliest position overwrites its later ones.
    for row, line in enumerate(sequence):
        first[row, line[::-1]] = np.arange(length - 1, -1, -1)
    return np.lexsort((np.broadcast_to(np.arange(symbols), first.shape), first, -_counts(sequence, symbols)), axis=-1)


def _counts(sequence: Ints, symbols: int) -> Ints:
    """Count each symbol in each row: (rows, symbols)."""
    rows = np.arange(len(sequence))[:, None] * symbols
    counted = np.bincount((sequence + rows).ravel(), minlength=len(sequence) * symbols)
    return counted.reshape(len(sequence), symbols)
