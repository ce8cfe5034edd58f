"""A decoder trained from scratch with a memory of past positions: the base of Transformer-XL, Compressive and LaMemo.

A layer is post-norm, as in all three papers: y = LN(h + FFN(h)), h = LN(x + W_o C), C = softmax(A/√d) V, with the
scores A of `relative.attention`. The embedding, scaled by √D, is tied to the output layer. There is no adaptive
softmax, so a large vocabulary pays for the whole (D, V) product.

Shapes: B rows, T tokens, P past positions in the memory, S segment length, K keys, L layers, H heads, d head dimension,
D width, V vocabulary.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from everlong_models.backbone.cache import Cache
from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.errors import ConfigError
from everlong_models.kernels.attention import causal_mask
from everlong_models.kernels.gpu import layer_kernels
from everlong_models.kernels.gpu.attention_kernel import decode_attention
from everlong_models.kernels.yield_point import yield_point
from everlong_models.memories.base import MemoryConfig, SegmentReader
from everlong_models.memories.relative.attention import INITIAL_STD, PositionForm, RelativeAttention, RelativePositions
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart

_SEGMENT = "segment."  # prefix of the open segment's trace in a cache, next to the tensors of the past


class RelativeDecoderConfig(MemoryConfig):
    """Settings of a decoder trained from scratch. The defaults are the papers' for WikiText-103, except the vocabulary.

    `vocab_size` V, `width` D (even), `layers` L, `heads` H and `feed_forward` (the inner width) are at least 1.
    `head_dim` d defaults to D/H; `dropout` is in [0, 1). `initial_std` > 0: standard deviation of all initial matrices;
    the papers' 0.02 suits their widths, narrow models want about 1/√D. Building a model with a value out of its limits
    raises `ConfigError`.
    """

    segment_length: int = 150
    vocab_size: int
    width: int = 410
    layers: int = 16
    heads: int = 10
    head_dim: int | None = None
    feed_forward: int = 2100
    dropout: float = 0.1
    initial_std: float = INITIAL_STD

    @property
    def dim(self) -> int:
        """d: `head_dim`, or its default D/H."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    def check(self) -> None:
        """Raise `ConfigError` unless a decoder can be built from these settings."""
        self.at_least(segment_length=2, vocab_size=1, width=1, layers=1, heads=1, feed_forward=1)
        if self.width % 2:
            raise ConfigError("width", self.width, "must be even: half of it holds sines, half cosines")
        if self.head_dim is not None:
            self.at_least(head_dim=1)
        elif self.width % self.heads:
            raise ConfigError("heads", self.heads, f"must divide width={self.width}, or head_dim must be given")
        if not 0 <= self.dropout < 1:
            raise ConfigError("dropout", self.dropout, "must be in [0, 1)")
        if not 0 < self.initial_std < math.inf:
            raise ConfigError("initial_std", self.initial_std, "must be positive and finite")


class PostNormLayer(nn.Module):
    """One post-norm layer: its attention, and the feed-forward half after it."""

    def __init__(self, config: RelativeDecoderConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(config.width, config.heads, config.dim)
        self.attention_norm = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, config.feed_forward)
        self.contract = nn.Linear(config.feed_forward, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the layer's output (B, T, D) from its input `x` (B, T, D) and its contexts (B, T, H, d)."""
        h = self.attention_norm(x + self.dropout(self.attention.output(context.flatten(-2))))
        inner = self.dropout(F.relu(self.expand(h)))
        y: Tensor = self.norm(h + self.dropout(self.contract(inner)))
        return y


@dataclass(frozen=True, slots=True)
class SegmentPass:
    """The result of running a segment.

    `hidden` (B, T, D): the output of the last layer that was run. `past`: the state's tensors as this segment saw them.
    `trace`: the segment's contribution to the memory, time first (B, T, …): its `tokens`, and per layer (B, T, L, …)
    the tensors that the memory's `_keep` returns.
    """

    hidden: Tensor
    past: Mapping[str, Tensor]
    trace: Mapping[str, Tensor]


class RelativeDecoder(SegmentReader):
    """A decoder trained from scratch with a memory of P past positions. Memories derive from it.

    States are detached: no gradient flows from a segment into the one before. Keys are laid out as [past ; segment],
    with the past right-aligned, so that distances do not depend on how much of the past is filled.
    """

    def __init__(self, config: RelativeDecoderConfig, past: int, form: PositionForm = "signed") -> None:
        super().__init__()
        config.check()
        self.segment_length = config.segment_length
        self.vocab_size = config.vocab_size
        self.past = past
        self.last = config.layers - 1
        self.kv_shape = (config.layers, 2, config.heads, past + config.segment_length, config.dim)
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = RelativePositions(config.width, config.heads, config.dim, form)
        self.blocks = nn.ModuleList(PostNormLayer(config) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self._fused = False
        """Whether a decode step uses the fused attention kernel `decode_attention`, which has no gradients."""
        for weight in (p for p in self.parameters() if p.dim() == 2):
            nn.init.normal_(weight, std=config.initial_std)

    @property
    def graph_capturable(self) -> bool:
        """See `SegmentReader`."""
        return True

    @torch.no_grad()
    def optimize(self) -> None:
        """See `SegmentReader`. Decode steps on a GPU use the fused kernel `decode_attention` from now on, if Triton compiles it."""

        def run() -> None:
            token = torch.zeros(1, 1, dtype=torch.int64, device=self._weight.device)
            cache, _ = self.open(self.initial_state(), token)
            # A whole step, since the kernel is compiled for sizes, strides and the alignment of each layer's keys.
            self.step(cache, token[0])

        self._fused = True
        self._fused = layer_kernels.compiles(self._weight, run)

    def _filled_past(self, past: Mapping[str, Tensor]) -> Tensor:
        """Return which of the P past positions are filled, (B, P)."""
        return filled(past["seen"], self.past)

    @abstractmethod
    def _run(
        self, tokens: Tensor, past: Mapping[str, Tensor], *, answer: bool = True, kv: Tensor | None = None
    ) -> SegmentPass:
        """Run a segment's first T `tokens` (B, T). Store keys and values in `kv` (B, L, 2, H, P+S, d), if given.

        Without `answer`, leave out what only logits need: no memory uses the last layer's output.
        """

    @abstractmethod
    def _keep(self, x: Tensor, context: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """Select what the memory needs of a layer's input (B, T, D), contexts (B, T, H, d) and scores (B, H, T, K).

        The fused kernel gives the scores' logsumexp (B, H, T, 1) in their place: one key with the mass of all keys.
        """

    @abstractmethod
    def _next(self, past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor) -> MemoryState:
        """Return the state after the first `lengths` (B,) positions of `trace` (B, T ≥ lengths, …)."""

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return the last P positions as one part."""
        stored = min(read, self.past)
        return [MemoryPart("memory", read - stored, read, self.past, stored, tokens.shape[1])] if self.past else []

    @property
    def _weight(self) -> Tensor:
        """A weight, for its device and dtype."""
        return self.embedding.weight

    def _embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embedding(tokens) * self._weight.shape[1] ** 0.5)
        return x

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self.dropout(hidden), self._weight)

    def _layers(self) -> Iterator[tuple[int, PostNormLayer]]:
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, PostNormLayer)
            yield_point()
            yield layer, block

    def _visible(self, past: Mapping[str, Tensor], at: Tensor, slots: int) -> Tensor:
        """Return which keys of [past ; `slots`] the queries at the segment's positions `at` (B or 1, T) see: (B, T, P + slots)."""
        causal = causal_mask(at, slots)
        filled_past = self._filled_past(past)[:, None].expand(-1, at.shape[1], -1)
        return torch.cat([filled_past, causal.expand(filled_past.shape[0], -1, -1)], dim=-1)

    @torch.no_grad()
    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        return self._after(self._run(tokens, detached(state), answer=False))

    @torch.no_grad()
    def _after(self, run: SegmentPass) -> MemoryState:
        """Return the state after the whole pass."""
        B, T = run.trace["tokens"].shape
        return self._next(run.past, run.trace, torch.full((B,), T, device=self._weight.device))

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """Return logits (B, T, V) at every position of one segment of 1 ≤ T ≤ S `tokens` (B, T), and the state after it."""
        self.check_segment(tokens, state)
        run = self._run(tokens, detached(state))
        return self._logits(run.hidden), self._after(run)

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) at every position of one segment of 1 ≤ T ≤ S `tokens` (B, T)."""
        self.check_segment(tokens, state)
        return self._logits(self._run(tokens, detached(state)).hidden)

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Start a segment with its first 1 ≤ T ≤ S `tokens` (B, T). Returns the cache and the last position's logits (B, V).

        The cache holds the past as the segment sees it, every layer's keys and values, and the trace so far.
        """
        self.check_segment(tokens, state)
        B, T = tokens.shape
        kv = self._weight.new_zeros(B, *self.kv_shape)
        run = self._run(tokens, detached(state), kv=kv)
        trace = {}
        for name, value in run.trace.items():
            trace[_SEGMENT + name] = value.new_zeros(B, self.segment_length, *value.shape[2:])
            trace[_SEGMENT + name][:, :T] = value
        cache = Cache({"kv": kv, **run.past, **trace}, torch.full((B,), T, device=tokens.device))
        return cache, self._logits(run.hidden[:, -1])

    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """Append one token per row, `tokens` (B,), to `cache` in place. Returns logits (B, V) for the next token."""
        kv, at, rows = cache["kv"], cache.lengths, torch.arange(cache.rows, device=tokens.device)
        position = self.past + at
        cursor = KVCursor(1, tokens.device, kv, position)
        behind = self.positions.keys_behind_each_row(position, self.past + self.segment_length)
        visible = self._visible(cache.tensors, at[:, None], self.segment_length)
        x, kept = self._embed(tokens[:, None]), []
        for layer, block in self._layers():
            attention = block.attention
            q = attention.queries(x)
            k, v = cursor.store(layer, attention.keys(x), attention.values(x))
            if self._fused:
                distance_scores = attention.distance_scores(q + behind.v, behind.encoding)
                mixed, scores = decode_attention(q, k, v, behind.u, distance_scores, position, visible)
            else:
                scores = attention.scores(q, k, behind, visible)
                mixed = attention.mix(scores, v)
            kept.append(self._keep(x, mixed, scores))
            x = block(x, mixed)
        for name, value in {"tokens": tokens[:, None], **stack_layers(kept)}.items():
            cache[_SEGMENT + name][rows, at] = value[:, 0]
        cache.lengths += 1
        return self._logits(x[:, 0])

    @torch.no_grad()
    def close(self, cache: Cache) -> MemoryState:
        """Return the memory after the open segment of each row, whatever its length."""
        trace = {name.removeprefix(_SEGMENT): cache[name] for name in cache.tensors if name.startswith(_SEGMENT)}
        return self._next(cache.tensors, trace, cache.lengths)


class LayerInputsDecoder(RelativeDecoder):
    """A decoder whose memory holds its layers' inputs, which later segments project to keys and values."""

    @abstractmethod
    def _memory(self, past: Mapping[str, Tensor]) -> Tensor:
        """Return the past inputs (B, P, L, D) that each layer attends to in addition to its segment."""

    def _run(
        self, tokens: Tensor, past: Mapping[str, Tensor], *, answer: bool = True, kv: Tensor | None = None
    ) -> SegmentPass:
        T, memory = tokens.shape[1], self._memory(past)
        cursor = KVCursor(self.past + T, tokens.device, kv)
        behind = self.positions.keys_behind(T, self.past + T)
        visible = self._visible(past, torch.arange(T, device=tokens.device)[None], T)
        x, inputs = self._embed(tokens), []
        for layer, block in self._layers():
            inputs.append(x)
            if not answer and layer == self.last:
                break
            attention = block.attention
            line = torch.cat([memory[:, :, layer], x], dim=1)
            k, v = cursor.store(layer, attention.keys(line), attention.values(line))
            x = block(x, attention.mix(attention.scores(attention.queries(x), k, behind, visible), v))
        return SegmentPass(x, past, {"tokens": tokens, "memory": torch.stack(inputs, dim=2)})

    def _keep(self, x: Tensor, context: Tensor, scores: Tensor) -> dict[str, Tensor]:
        return {"memory": x}


def detached(state: MemoryState) -> dict[str, Tensor]:
    """Return a state's tensors, detached: sg() in the papers."""
    return {name: tensor.detach() for name, tensor in state.tensors.items()}


def filled(count: Tensor, length: int) -> Tensor:
    """Return which of `length` right-aligned positions hold one of the last `count` (B,) positions: (B, length)."""
    return torch.arange(length, device=count.device) >= length - count[:, None]


def newest(past: Tensor, new: Tensor, lengths: Tensor) -> Tensor:
    """Return the last P positions (B, P, …) of [`past` (B, P, …) ; the first `lengths` (B,) positions of `new` (B, T, …)]."""
    rows = torch.arange(lengths.shape[0], device=lengths.device)[:, None]
    index = lengths[:, None] + torch.arange(past.shape[1], device=lengths.device)
    return torch.cat([past, new], dim=1)[rows, index]


def stack_layers(kept: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack one dictionary of (B, T, …) per layer into one dictionary of (B, T, L, …)."""
    return {name: torch.stack([layer[name] for layer in kept], dim=2) for name in kept[0]}
