"""`MemoryModel`: what every memory of this package can do. The laws that all of them obey are in tests/models/laws.py."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from everlong_models.cache import Cache
from everlong_models.errors import TokenError
from everlong_models.state import MemoryState


class MemoryConfig(BaseModel):
    """What every memory is told at construction; each memory's own config adds its fields.

    Unknown fields are errors. Limits that involve several fields, or the backbone, are checked by the memory and raise
    `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    segment_length: int = Field(512, ge=2, description="S: tokens read at once")


@runtime_checkable
class MemoryModel(Protocol):
    """A transformer with a memory of fixed size.

    Shapes: B rows, T tokens, S = `segment_length`, V vocabulary. All methods are pure: the state that goes in is not
    changed, and nothing is kept in the module between calls. `read` and `forward` are differentiable.
    """

    @property
    def segment_length(self) -> int:
        """S: tokens in a full segment."""

    @property
    def vocab_size(self) -> int:
        """V: token ids are 0 … V-1."""

    def initial_state(self, rows: int = 1) -> MemoryState:
        """The memory before anything was read."""

    def read(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """The memory after reading `tokens` (B, n·S), n ≥ 0 full segments; no logits are computed."""

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Logits (B, T, V) at every position of one segment of 1 ≤ T ≤ S `tokens` (B, T)."""

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Starts a segment with its first 1 ≤ T ≤ S `tokens` (B, T): the cache, and the last position's logits (B, V)."""

    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """Appends one token a row, `tokens` (B,), to `cache` in place; logits (B, V) for the token after it."""

    def close(self, cache: Cache) -> MemoryState:
        """The memory after the open segment of each row, whatever its length."""


class SegmentReader(nn.Module):
    """The part of `MemoryModel` that is the same for all: cutting into segments and checking what comes in.

    A memory derives from this and writes `_read_segment` and the methods of `MemoryModel` that it does not have here.
    """

    segment_length: int
    vocab_size: int

    def initial_state(self, rows: int = 1) -> MemoryState:
        raise NotImplementedError

    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """The memory after one full segment (B, S)."""
        raise NotImplementedError

    def _read_segments(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """The memory after n full segments (B, n·S), one after the other; a memory that can do better overrides this."""
        for segment in tokens.split(self.segment_length, dim=1):
            if segment.shape[1]:
                state = self._read_segment(segment, state)
        return state

    def read(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """The memory after reading `tokens` (B, n·S).

        Raises `TokenError` unless the length is a multiple of S, `StateShape` or `StateNotFinite` for a state that is
        not this model's.
        """
        self.check(tokens, state)
        if tokens.shape[1] % self.segment_length:
            raise TokenError(f"read takes full segments of {self.segment_length} tokens, got {tokens.shape[1]} tokens")
        return self._read_segments(tokens, state)

    def check(self, tokens: Tensor, state: MemoryState) -> None:
        """Raises `TokenError` or `StateError` unless `tokens` (B, T) and `state` (B rows) fit this model."""
        if tokens.dim() != 2:
            raise TokenError(f"tokens have the shape (rows, tokens), got {tuple(tokens.shape)}")
        if tokens.shape[0] != state.rows:
            raise TokenError(f"{tokens.shape[0]} rows of tokens for a state of {state.rows} rows")
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab_size:
            raise TokenError(
                f"token ids must be in [0, {self.vocab_size}), got {int(tokens.min())}…{int(tokens.max())}"
            )
        with torch.no_grad():
            state.require_like(self.initial_state(1))
        state.require_finite()

    def check_segment(self, tokens: Tensor, state: MemoryState) -> None:
        """As `check`, and there must be 1 ≤ T ≤ S tokens."""
        self.check(tokens, state)
        if not 1 <= tokens.shape[1] <= self.segment_length:
            raise TokenError(f"a segment holds 1 to {self.segment_length} tokens, got {tokens.shape[1]}")
