"""`SegmentReader`: the interface of every memory in this package. tests/models/memory_contract.py checks the rules for all memories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import Cache
from everlong_models.backbone.prefix_cache import PrefixCache
from everlong_models.errors import ConfigError, StateShape, TokenError
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import LayerView, MemoryPart, MemoryView


class MemoryConfig(BaseModel):
    """Settings that every memory shares; each memory's own config adds fields.

    Unknown fields are errors. The memory itself checks limits that involve several fields or the backbone, and raises
    `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    segment_length: int = Field(512, ge=2, description="S: tokens of a full segment")

    def at_least(self, **limits: int) -> None:
        """Raise `ConfigError` for the first field that is below its limit."""
        for field, limit in limits.items():
            if (value := getattr(self, field)) < limit:
                raise ConfigError(field, value, f"must be at least {limit}")


class TrainingSegment(NamedTuple):
    """The result of one training segment: `logits` (B, T, V), the `state` after it, and each row's `auxiliary` loss (B,).

    The auxiliary loss is added to the language-model loss. It is zero for a memory that defines none.
    """

    logits: Tensor
    state: MemoryState
    auxiliary: Tensor


class SegmentReader(nn.Module, ABC):
    """A transformer with a memory of fixed size. The base class splits tokens into segments and checks inputs.

    Shapes: B rows, T tokens, S = `segment_length`, V vocabulary. All methods are pure: they do not change the input
    state, and the module keeps nothing between calls. `read`, `forward` and `segment` are differentiable.
    """

    segment_length: int
    """S: tokens in a full segment."""
    vocab_size: int
    """V: token ids are 0 … V-1."""
    learns_without_targets: bool = False
    """Whether a segment without prediction targets still has an auxiliary loss that needs a pass with gradients."""

    @property
    def graph_capturable(self) -> bool:
        """Whether `read_unchecked` can be captured as a CUDA graph: its operations depend on shapes alone."""
        return False

    def optimize(self) -> None:
        """Prepare for inference. Call it when the weights are final and on their device. Does nothing by default."""

    @abstractmethod
    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return the memory before anything was read."""

    @abstractmethod
    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """Return the memory after one full segment (B, S)."""

    @abstractmethod
    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) at every position of one segment of 1 ≤ T ≤ S `tokens` (B, T)."""

    @abstractmethod
    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Start a segment with its first 1 ≤ T ≤ S `tokens` (B, T). Returns the cache and the last position's logits (B, V)."""

    @abstractmethod
    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """Append one token per row, `tokens` (B,), to `cache` in place. Returns logits (B, V) for the next token."""

    @property
    def reuses_prompts(self) -> bool:
        """Whether `open_recent` computes nothing for a prompt that `prefixes` has."""
        return False

    @property
    def can_rewind(self) -> bool:
        """Whether lowering `lengths` in a cache undoes its last steps: what they wrote is never read, and is overwritten later.

        Only then can guessed tokens be verified (`steps`). False for a memory whose cache has a state that each token changes.
        """
        return False

    def steps(self, cache: Cache, tokens: Tensor) -> Tensor:
        """Append `tokens` (B, n) to `cache`, like n calls of `step`; each row's segment must have room. Returns all logits (B, n, V).

        A memory that can rewind overrides this with one pass, which reads the weights once.
        """
        return torch.stack([self.step(cache, column) for column in tokens.unbind(1)], dim=1)

    @abstractmethod
    def close(self, cache: Cache) -> MemoryState:
        """Return the memory after the open segment of each row, whatever its length."""

    @property
    def visible_tokens(self) -> int:
        """How many of the newest tokens the model attends to directly: a segment, or more if the memory keeps tokens."""
        return self.segment_length

    @property
    def in_words(self) -> str:
        """Description for `GET /v1/models`, if the memory depends on the model; empty by default."""
        return ""

    @property
    def remembered_tokens(self) -> int | None:
        """How many tokens before the open segment the memory keeps at most, each by itself. None: it keeps none by itself, but a
        compressed form of all."""
        return None

    def open_recent(
        self,
        state: MemoryState,
        tokens: Tensor,
        newest: int | None,
        *,
        sinks: bool = True,
        prefixes: PrefixCache | None = None,
        owner: str = "",
        kv: Tensor | None = None,
    ) -> tuple[Cache, Tensor]:
        """Like `open`, but attend only to the `newest` of the `kept_tokens` (None: to all), and with `sinks` to the very first tokens.

        The state loses nothing: `close` returns the same as after `open`. A memory that keeps no tokens ignores both
        arguments. `prefixes`: cache of keys and values. Those of the longest prefix that this prompt shares with an earlier one of
        the `owner` are reused, and this prompt's are added. The result is the same. A memory whose model computes otherwise ignores it.
        `kv`: a tensor to store the keys and values in, shaped like that of the cache that `open` returns. It may hold old data. A memory that uses it
        returns it in the cache, and clears what it wrote if it raises an error; others ignore it.
        """
        return self.open(state, tokens)

    def continue_in_cache(self, cache: Cache, segment: Tensor, state: MemoryState) -> MemoryState | None:
        """Close the full `segment` (1, S) in `cache` (one row) and start the next segment in the same cache.

        `state`: the memory before `segment`. Returns the memory after it; the cache is then ready for the first `step`
        of the next segment. Returns None and leaves the cache unchanged if the next segment needs a new `open`.
        """
        return None

    def kept_tokens(self, state: MemoryState) -> list[int]:
        """Return the newest tokens before the open segment that a `state` of one row still holds, oldest first."""
        return []

    def view(self, state: MemoryState, tokens: Tensor, read: int) -> MemoryView:
        """Describe a `state` of one row that has read `read` tokens in full segments, with the open segment `tokens` (1, T).

        0 ≤ T ≤ S. Costs at most one pass over the open segment. Raises `TokenError` or `StateError` as `read` does.
        """
        self.check(tokens, state)
        if state.rows != 1:
            raise StateShape(f"a view describes one row, got a state of {state.rows} rows")
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
        """Return the parts of the memory. Arguments: see `view`."""

    def _layer_views(self, state: MemoryState, tokens: Tensor, read: int) -> list[LayerView]:
        """Return one view per layer, for memories that hold a signal in each layer. Arguments: see `view`."""
        return []

    def read(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """Return the memory after reading `tokens` (B, n·S), n ≥ 0 full segments. Computes no logits.

        Raises `TokenError` unless the length is a multiple of S, and `StateShape` or `StateNotFinite` for a state that
        does not fit this model.
        """
        self.check(tokens, state)
        if tokens.shape[1] % self.segment_length:
            raise TokenError(f"read takes full segments of {self.segment_length} tokens, got {tokens.shape[1]} tokens")
        return self.read_unchecked(tokens, state)

    def read_unchecked(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """Like `read`, without checking the arguments. Never waits for the device if the memory is `graph_capturable`."""
        if not tokens.shape[1]:
            return state
        return self._read_segments(torch.split(tokens, self.segment_length, dim=1), state)

    def _read_segments(self, segments: Sequence[Tensor], state: MemoryState) -> MemoryState:
        """Return the memory after full segments (B, S) each, in order. Overridden by memories that read several at once."""
        for segment in segments:
            state = self._read_segment(segment, state)
        return state

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """Return what `forward` and `read` return for one full segment `tokens` (B, S): logits (B, S, V) and the new memory.

        The logits at the last position predict the next segment's first token. This takes two passes; override it where
        one is enough.
        """
        self.check_full(tokens, state)
        return self.forward(tokens, state), self._read_segment(tokens, state)

    def training_segment(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> TrainingSegment:
        """Like `segment`, and also return the auxiliary loss: zero, unless a memory overrides this.

        Accepts 1 ≤ T ≤ S `tokens` (B, T). `lengths` (B,): how many tokens of each row count towards the loss; default
        all. After a segment that is not full, the returned state is meaningless: do not continue from it.
        """
        full = tokens.shape[1] == self.segment_length
        logits, after = self.segment(tokens, state) if full else (self.forward(tokens, state), state)
        return TrainingSegment(logits, after, logits.new_zeros(len(logits)))

    @property
    def one_pass_tokens(self) -> int:
        """The longest prefix of a new document, at least S tokens, in which every token attends to all before it.

        `logits_at` processes that many tokens in one pass. Overridden by memories that keep more tokens than a segment.
        """
        return self.segment_length

    def logits_at(self, tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Return logits (n, V) at `positions` (n,) of `rows` (n,) for the first `tokens` (B, T) of new documents.

        1 ≤ T ≤ `one_pass_tokens`. The logits are those of reading the documents segment by segment.
        """
        return self.forward(tokens, self.initial_state(len(tokens)))[rows, positions]

    def check(self, tokens: Tensor, state: MemoryState) -> None:
        """Raise `TokenError` or `StateError` unless `tokens` (B, T) and `state` (B rows) fit this model."""
        with torch.no_grad():
            like = self.initial_state(1)
        check_input(tokens, state, like, self.vocab_size)

    def check_segment(self, tokens: Tensor, state: MemoryState) -> None:
        """Like `check`, and require 1 ≤ T ≤ S tokens."""
        self.check(tokens, state)
        if not 1 <= tokens.shape[1] <= self.segment_length:
            raise TokenError(f"a segment holds 1 to {self.segment_length} tokens, got {tokens.shape[1]}")

    def check_full(self, tokens: Tensor, state: MemoryState) -> None:
        """Like `check`, and require exactly S tokens."""
        self.check(tokens, state)
        if tokens.shape[1] != self.segment_length:
            raise TokenError(f"a full segment holds {self.segment_length} tokens, got {tokens.shape[1]}")


class BackboneReader(SegmentReader):
    """A memory around a whole `backbone`. Its cache has the backbone's keys and values, `kv`.

    For `steps`, the cache also has `before`, the number of positions before the segment, and, if `close` needs them, the segment's
    `tokens`.
    """

    backbone: Backbone

    @property
    def can_rewind(self) -> bool:
        """See `SegmentReader`."""
        return self.backbone.can_verify_guesses

    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """See `SegmentReader`."""
        return self.steps(cache, tokens[:, None])[:, 0]

    def steps(self, cache: Cache, tokens: Tensor) -> Tensor:
        """See `SegmentReader`."""
        hidden = self.backbone.steps(self.backbone.embed(tokens), cache["kv"], cache["before"] + cache.lengths)
        if "tokens" in cache.tensors:
            cache["tokens"].scatter_(1, cache.next_positions(tokens.shape[1]), tokens)
        cache.lengths += tokens.shape[1]
        return self.backbone.logits(hidden.flatten(0, 1)).unflatten(0, tokens.shape)


def require_positions(backbone: Backbone, needed: int, what: str, field: str, value: int) -> None:
    """Raise `ConfigError`, which names the `field` and its `value`, if the `needed` positions, the sum `what`, exceed the backbone's."""
    if needed > backbone.max_positions:
        limit = f"{what} = {needed} exceeds the backbone's {backbone.max_positions} positions"
        raise ConfigError(field, value, limit)


def check_input(tokens: Tensor, state: MemoryState, like: MemoryState, vocab_size: int) -> None:
    """Raise `TokenError` unless `tokens` (B, T) are ids of the vocabulary and `state` has B rows.

    Raise `StateShape` or `StateNotFinite` unless the tensors of `state` are finite and shaped like those of `like`.
    """
    if tokens.dim() != 2:
        raise TokenError(f"tokens must have the shape (rows, tokens), got {tuple(tokens.shape)}")
    if tokens.shape[0] != state.rows:
        raise TokenError(f"{tokens.shape[0]} rows of tokens for a state of {state.rows} rows")
    if tokens.numel():
        least, most = torch.stack(tokens.aminmax()).tolist()  # one transfer: each one waits for the GPU
        if not 0 <= least <= most < vocab_size:
            raise TokenError(f"token ids must be in [0, {vocab_size}), got {least}…{most}")
    state.require_like(like)
    state.require_finite()
