"""`MemoryModel`: what every memory of this package can do. The laws that all of them obey are in tests/models/memory_contract.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from everlong_models.backbone.cache import Cache
from everlong_models.errors import StateShape, TokenError
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import LayerView, MemoryPart, MemoryView


class MemoryConfig(BaseModel):
    """What every memory is told at construction; each memory's own config adds its fields.

    Unknown fields are errors. Limits that involve several fields, or the backbone, are checked by the memory and raise
    `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    segment_length: int = Field(512, ge=2, description="S: tokens read at once")


class TrainingSegment(NamedTuple):
    """What training needs of a segment: `logits` (B, T, V), the `state` after it, and each row's `auxiliary` loss (B,).

    The auxiliary loss is a memory's own beside that of the language model; a memory without one gives zeros.
    """

    logits: Tensor
    state: MemoryState
    auxiliary: Tensor


@runtime_checkable
class MemoryModel(Protocol):
    """A transformer with a memory of fixed size.

    Shapes: B rows, T tokens, S = `segment_length`, V vocabulary. All methods are pure: the state that goes in is not
    changed, and nothing is kept in the module between calls. `read`, `forward` and `segment` are differentiable.
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

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """`forward` and `read` of one full segment `tokens` (B, S): logits (B, S, V) and the memory after it.

        The logits at the last position are the prediction of the next segment's first token.
        """

    def training_segment(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> TrainingSegment:
        """As `segment`, with the memory's auxiliary loss.

        Of 1 ≤ T < S `tokens` (B, T), of which `lengths` (B,) count in each row, default all, it gives logits and loss
        likewise. A segment that is not full has no state after it: what stands there is not to be gone on from.
        """

    @property
    def learns_without_targets(self) -> bool:
        """Whether segments in which nothing is predicted have an auxiliary loss that is worth a pass with gradients."""

    @property
    def one_pass_tokens(self) -> int:
        """Of so many tokens of a new document, S or more, every one sees all before it: `logits_at` takes them in one pass."""

    def logits_at(self, tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Logits (n, V) at `positions` (n,) of `rows` (n,) in 1 ≤ T ≤ `one_pass_tokens` `tokens` (B, T) of new documents, as their
        segments have them one after the other."""

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Starts a segment with its first 1 ≤ T ≤ S `tokens` (B, T): the cache, and the last position's logits (B, V)."""

    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """Appends one token a row, `tokens` (B,), to `cache` in place; logits (B, V) for the token after it."""

    def close(self, cache: Cache) -> MemoryState:
        """The memory after the open segment of each row, whatever its length."""

    def view(self, state: MemoryState, tokens: Tensor, read: int) -> MemoryView:
        """What there is to say about a `state` of one row that has read `read` tokens, with the open segment `tokens`
        (1, T), 0 ≤ T ≤ S."""


class SegmentReader(nn.Module, ABC):
    """The part of `MemoryModel` that is the same for all: cutting into segments and checking what comes in."""

    segment_length: int
    vocab_size: int
    learns_without_targets: bool = False

    @property
    def graph_capturable(self) -> bool:
        """Whether what `read_unchecked` computes depends on nothing but shapes, so that it can be a CUDA graph."""
        return False

    def optimize(self) -> None:
        """For inference, with weights that are where they stay and will not change again. What there is to do is a memory's own."""

    @abstractmethod
    def initial_state(self, rows: int = 1) -> MemoryState:
        """See `MemoryModel`."""

    @abstractmethod
    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """The memory after one full segment (B, S)."""

    @abstractmethod
    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """See `MemoryModel`."""

    @abstractmethod
    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """See `MemoryModel`."""

    @abstractmethod
    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """See `MemoryModel`."""

    @abstractmethod
    def close(self, cache: Cache) -> MemoryState:
        """See `MemoryModel`."""

    @property
    def visible_tokens(self) -> int:
        """So many of the newest tokens can be seen as they are: a segment, or more in a memory that keeps tokens."""
        return self.segment_length

    def open_recent(
        self, state: MemoryState, tokens: Tensor, newest: int, *, sinks: bool = True
    ) -> tuple[Cache, Tensor]:
        """As `open`, but of what `kept_tokens` gives only the `newest` tokens are to be looked at, and `sinks`, the very first
        that were read, if there are any. The state loses nothing: what `close` returns is as after `open`. A memory that
        keeps no tokens looks at all that it has."""
        return self.open(state, tokens)

    def continue_in_cache(self, cache: Cache, segment: Tensor, state: MemoryState) -> MemoryState | None:
        """At the end of a full `segment` (1, S) behind `state`, which ends in `cache` (one row): the state after it, if the cache
        can go on from here: it is ready for the next segment's first `step` then. None, and a cache that is as it was, if it
        has to be opened."""
        return None

    def kept_tokens(self, state: MemoryState) -> list[int]:
        """The newest tokens before the open segment that a `state` of one row holds as they are, oldest first."""
        return []

    def view(self, state: MemoryState, tokens: Tensor, read: int) -> MemoryView:
        """What there is to say about a `state` of one row that has read `read` tokens in full segments, before the open
        segment `tokens` (1, T), 0 ≤ T ≤ S. What that takes of the open segment is at most one pass over it.

        Raises `TokenError` or `StateError` as `read` does.
        """
        self.check(tokens, state)
        if state.rows != 1:
            raise StateShape(f"a view is of one row, got a state of {state.rows}")
        if tokens.shape[1] > self.segment_length:
            raise TokenError(f"a segment holds at most {self.segment_length} tokens, got {tokens.shape[1]}")
        with torch.no_grad():
            parts, layers = self._parts(state, tokens, read), self._layer_views(state, tokens, read)
        return MemoryView(
            tokens=read, segments=read // self.segment_length, open=tokens.shape[1], bytes=state.nbytes,
            parts=tuple(parts), layers=tuple(layers),
        )  # fmt: skip

    @abstractmethod
    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """What the memory consists of; arguments as of `view`."""

    def _layer_views(self, state: MemoryState, tokens: Tensor, read: int) -> list[LayerView]:
        """Of a memory that is a signal in each layer; arguments as of `view`."""
        return []

    def read(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """The memory after reading `tokens` (B, n·S).

        Raises `TokenError` unless the length is a multiple of S, `StateShape` or `StateNotFinite` for a state that is
        not this model's.
        """
        self.check(tokens, state)
        if tokens.shape[1] % self.segment_length:
            raise TokenError(f"read takes full segments of {self.segment_length} tokens, got {tokens.shape[1]} tokens")
        return self.read_unchecked(tokens, state)

    def read_unchecked(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """As `read`, of what is known to fit. Of a memory that is `graph_capturable` nothing waits for the device."""
        if not tokens.shape[1]:
            return state
        return self._read_segments(torch.split(tokens, self.segment_length, dim=1), state)

    def _read_segments(self, segments: Sequence[Tensor], state: MemoryState) -> MemoryState:
        """The memory after full segments (B, S) each, in order; overridden by a memory that reads several at once."""
        for segment in segments:
            state = self._read_segment(segment, state)
        return state

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """Logits (B, S, V) and the next memory of one full segment, in two passes; a memory that can, overrides this
        with one pass."""
        self.check_full(tokens, state)
        return self.forward(tokens, state), self._read_segment(tokens, state)

    def training_segment(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> TrainingSegment:
        """`segment`, or `forward`, and an auxiliary loss of zero; overridden by a memory that has one."""
        full = tokens.shape[1] == self.segment_length
        logits, after = self.segment(tokens, state) if full else (self.forward(tokens, state), state)
        return TrainingSegment(logits, after, logits.new_zeros(len(logits)))

    @property
    def one_pass_tokens(self) -> int:
        """A segment; overridden by a memory that keeps more as it is."""
        return self.segment_length

    def logits_at(self, tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """See `MemoryModel`."""
        return self.forward(tokens, self.initial_state(len(tokens)))[rows, positions]

    def check(self, tokens: Tensor, state: MemoryState) -> None:
        """Raises `TokenError` or `StateError` unless `tokens` (B, T) and `state` (B rows) fit this model."""
        with torch.no_grad():
            like = self.initial_state(1)
        check_input(tokens, state, like, self.vocab_size)

    def check_segment(self, tokens: Tensor, state: MemoryState) -> None:
        """As `check`, and there must be 1 ≤ T ≤ S tokens."""
        self.check(tokens, state)
        if not 1 <= tokens.shape[1] <= self.segment_length:
            raise TokenError(f"a segment holds 1 to {self.segment_length} tokens, got {tokens.shape[1]}")

    def check_full(self, tokens: Tensor, state: MemoryState) -> None:
        """As `check`, and there must be exactly S tokens."""
        self.check(tokens, state)
        if tokens.shape[1] != self.segment_length:
            raise TokenError(f"a full segment holds {self.segment_length} tokens, got {tokens.shape[1]}")


def check_input(tokens: Tensor, state: MemoryState, like: MemoryState, vocab_size: int) -> None:
    """Raises `TokenError` unless `tokens` (B, T) are ids of the vocabulary and `state` has B rows; `StateShape` or
    `StateNotFinite` unless the tensors of `state` are finite and like those of `like`."""
    if tokens.dim() != 2:
        raise TokenError(f"tokens have the shape (rows, tokens), got {tuple(tokens.shape)}")
    if tokens.shape[0] != state.rows:
        raise TokenError(f"{tokens.shape[0]} rows of tokens for a state of {state.rows} rows")
    if tokens.numel():
        least, most = torch.stack(tokens.aminmax()).tolist()  # at once: a GPU is waited for
        if not 0 <= least <= most < vocab_size:
            raise TokenError(f"token ids must be in [0, {vocab_size}), got {least}…{most}")
    state.require_like(like)
    state.require_finite()
