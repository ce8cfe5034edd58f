"""∞-former (Martins et al. 2022) around a pretrained decoder.

Every layer has a continuous long-term memory of the hidden states that entered it (`long_term`). Within a segment the
layer attends to the segment, causally, and to its memory, and the two contexts are summed (Eq. 12):

    Z = Z_T + Z_LTM

with the same queries for both (Eq. 2, 9). The memory is fixed within a segment; at its end it takes in the segment's
layer inputs, detached (Eq. 13-15, 18). Queries and memory know no positions: a Llama's queries are taken before their
rotation.

The signal of a plain memory is a linear recurrence that needs only the layer's inputs. So a long document is read layer
by layer: the first layer's inputs of all segments are known at once; they give all its memories; these give its outputs
for all segments, which are the second layer's inputs. Sticky memories sample by attention and are read one segment
after the other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import Cache
from everlong_models.backbone.layers.base import LayerContext
from everlong_models.backbone.layers.families import split_layers_of
from everlong_models.errors import ConfigError
from everlong_models.kernels.yield_point import yield_point
from everlong_models.memories.base import SegmentReader, TrainingSegment
from everlong_models.memories.infinite import sticky
from everlong_models.memories.infinite.long_term import GaussianDensity, LongTermConfig, LongTermMemory, ProjectedMemory
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import LayerView, MemoryPart

BINS = 128
"""Bins of the histograms in a view."""
PHRASES, PHRASE = 5, 8
"""A view names at most this many phrases per layer, of this many tokens each."""


class InfiniteConfig(LongTermConfig):
    """`parallel_tokens`: how many tokens of a row a plain memory reads at once, as a batch of segments."""

    parallel_tokens: int = 1024


class LayerTrace(NamedTuple):
    """The result of one pass over a segment."""

    hidden: Tensor  # (B, T, D): final hidden states
    entering: Tensor  # (B, layers, T, D): each layer's input, for its memory
    densities: list[GaussianDensity]  # of each layer


class LongTermReader(SegmentReader):
    """Base class of transformers whose layers have long-term memories (`memory`).

    A model derives from it and implements `_run_layers`, `_update`, `_logits` and `_new_kv`.
    """

    memory: LongTermMemory

    @abstractmethod
    def _run_layers(
        self,
        tokens: Tensor,
        state: Mapping[str, Tensor],
        project: Callable[[int], ProjectedMemory],
        kv: Tensor | None = None,
        at: Tensor | None = None,
    ) -> LayerTrace:
        """Run `tokens` (B, T) through all layers; `project` returns a layer's projected memory.

        Without `at` they start a segment, and their keys and values are stored in `kv`, if one is given. With `at` (B,)
        each row continues its segment at that position.
        """

    @abstractmethod
    def _update(self, state: Mapping[str, Tensor], entering: Tensor, attention: Tensor | None) -> MemoryState:
        """Return the state after a segment with layer inputs `entering` and this `attention` (see `LongTermMemory`)."""

    @abstractmethod
    def _logits(self, hidden: Tensor) -> Tensor:
        """Return logits (…, V) of final hidden states (…, D)."""

    @abstractmethod
    def _new_kv(self, rows: int) -> Tensor:
        """Return an empty key/value tensor (rows, layers, 2, kv heads, C, head dim) for one segment."""

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return empty memories."""
        return MemoryState(self.memory.empty(rows))

    def _signal_tokens(self, state: MemoryState, read: int) -> int:
        """Return how many of the `read` tokens are in the signals of a `state` of one row."""
        return read

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return the signals of all layers as one part; its slots are the basis functions."""
        basis, in_signal = self.memory.config.basis, self._signal_tokens(state, read)
        return [MemoryPart("signal", 0, in_signal, basis, min(basis, in_signal), tokens.shape[1])]

    def _layer_views(self, state: MemoryState, tokens: Tensor, read: int) -> list[LayerView]:
        """Return bins and phrases of every layer, and the attention of the open segment's queries."""
        cells = self.memory.voronoi_cells(state.tensors, self._signal_tokens(state, read))
        masses: list[list[float]] | None = None
        if cells and tokens.shape[1]:
            densities = self._run_segment(tokens, state).densities
            mass = torch.cat([sticky.histogram(p.mean.double(), p.variance.double(), BINS) for p in densities])
            masses = (mass / mass.sum(dim=-1, keepdim=True)).tolist()
        borders = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
        return [
            LayerView(
                layer,
                edges=tuple(of_layer.before(borders).tolist()),
                attention=None if masses is None else tuple(masses[layer]),
                phrases=tuple(of_layer.largest(PHRASES, PHRASE)),
            )
            for layer, of_layer in enumerate(cells)
        ]

    def _run_segment(self, tokens: Tensor, state: MemoryState) -> LayerTrace:
        return self._run_layers(tokens, state.tensors, lambda layer: self.memory.project(state.tensors, layer))

    def _attention(self, trace: LayerTrace, state: Mapping[str, Tensor]) -> Tensor | None:
        return self.memory.histogram(trace.densities, state["segments"]) if self.memory.is_sticky else None

    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        with torch.no_grad():  # layer inputs are detached anyway; only the gate (in `_update`) has gradients
            trace = self._run_segment(tokens, state)
        return self._update(state.tensors, trace.entering, self._attention(trace, state.tensors))

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) of one segment."""
        self.check_segment(tokens, state)
        return self._logits(self._run_segment(tokens, state).hidden)

    def training_segment(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> TrainingSegment:
        """Run `segment` in one pass over 1 ≤ T ≤ S `tokens` (B, T); the auxiliary loss is L_KL of Eq. 21.

        The paper weights it by λ_KL = 1e-6 for GPT-2, 1e-5 from scratch. The state carries the graph of its gates: detach
        it where back-propagation through time must end.
        """
        self.check_segment(tokens, state)
        trace = self._run_segment(tokens, state)
        after = self._update(state.tensors, trace.entering, self._attention(trace, state.tensors))
        T = tokens.shape[1]
        counts = torch.full((state.rows,), T, device=tokens.device) if lengths is None else lengths
        divergence = self.memory.divergence(trace.densities, state["segments"], counts)
        return TrainingSegment(self._logits(trace.hidden), after, divergence)

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Prefill `tokens`. The cache keeps the state, its projection for queries, and the layer inputs for the update."""
        self.check_segment(tokens, state)
        B, T = tokens.shape
        projected = [self.memory.project(state.tensors, layer) for layer in range(len(self.memory))]
        kv = self._new_kv(B)
        trace = self._run_layers(tokens, state.tensors, projected.__getitem__, kv)
        entering = trace.entering.new_zeros(B, len(self.memory), self.segment_length, self.memory.width)
        entering[:, :, :T] = trace.entering
        tensors = {
            **state.tensors,
            "kv": kv,
            "entering": entering,
            "values": torch.stack([layer.values for layer in projected], dim=1),
            "directions": torch.stack([layer.directions for layer in projected], dim=1),
        }
        attention = self._attention(trace, state.tensors)
        if attention is not None:
            tensors["attention"] = attention
        return Cache(tensors, torch.full((B,), T, device=tokens.device)), self._logits(trace.hidden[:, -1])

    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """Decode one token per row."""
        trace = self._run_layers(
            tokens[:, None],
            cache.tensors,
            lambda layer: ProjectedMemory(cache["values"][:, layer], cache["directions"][:, layer]),
            cache["kv"],
            cache.lengths,
        )
        rows = torch.arange(cache.rows, device=tokens.device)
        cache["entering"][rows, :, cache.lengths] = trace.entering[:, :, 0]
        attention = self._attention(trace, cache.tensors)
        if attention is not None:
            cache["attention"].add_(attention)
        cache.lengths += 1
        return self._logits(trace.hidden[:, -1])

    def close(self, cache: Cache) -> MemoryState:
        """Return the state after each row's open segment. A segment that is not full gets as much signal as a full one."""
        rows = []
        for row, length in enumerate(cache.lengths.tolist()):
            one = {name: tensor[row : row + 1] for name, tensor in cache.tensors.items()}
            rows.append(self._update(one, one["entering"][:, :, :length], one.get("attention")))
        return MemoryState.stack(rows)


class InfiniteFormer(LongTermReader):
    """∞-former around `backbone`. State: see `LongTermMemory`; a session's memory has layers · N · D numbers.

    Raises `ConfigError` for invalid settings, and `BackboneError` for a backbone whose layers cannot be run one by one.
    """

    def __init__(self, config: InfiniteConfig, backbone: Backbone) -> None:
        super().__init__()
        S = config.segment_length
        if backbone.max_positions < S:
            raise ConfigError("segment_length", S, f"exceeds the backbone's {backbone.max_positions} positions")
        config.at_least(parallel_tokens=1)
        self.config = config
        self.backbone = backbone
        self.layers = split_layers_of(backbone)
        self.segment_length = S
        self.vocab_size = backbone.vocab_size
        self.memory = LongTermMemory(
            config,
            layers=backbone.layers,
            width=backbone.width,
            heads=backbone.heads,
            head_dim=backbone.head_dim,
            dtype=backbone.dtype,
            device=backbone.device,
        )

    def _run_layers(
        self,
        tokens: Tensor,
        state: Mapping[str, Tensor],
        project: Callable[[int], ProjectedMemory],
        kv: Tensor | None = None,
        at: Tensor | None = None,
    ) -> LayerTrace:
        h, shared = self.layers.begin(self.backbone.embed(tokens), kv=kv, at=at)
        entering, densities = [], []
        for layer in range(len(self.memory)):
            yield_point()
            normed = self.layers.norm(layer, h)
            entering.append(self._entering(h, normed))
            h, density = self._run_layer(layer, h, normed, shared, project(layer))
            densities.append(density)
        return LayerTrace(self.layers.end(h), torch.stack(entering, dim=1), densities)

    def _run_layer(
        self, layer: int, h: Tensor, normed: Tensor, shared: LayerContext, projected: ProjectedMemory
    ) -> tuple[Tensor, GaussianDensity]:
        """Return a layer's output, with Z = Z_T + Z_LTM as its attention, and the densities of the memory's part."""
        queries, context = self.layers.attend(layer, normed, shared)
        recalled, density = self.memory[layer].attend(projected, queries)
        return self.layers.feed_forward(layer, h, context + recalled), density

    def _entering(self, h: Tensor, normed: Tensor) -> Tensor:
        return h if self.config.source == "raw" else normed

    def _update(self, state: Mapping[str, Tensor], entering: Tensor, attention: Tensor | None) -> MemoryState:
        return MemoryState(self.memory.update(state, entering, attention))

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.backbone.logits(hidden)

    def _new_kv(self, rows: int) -> Tensor:
        return self.backbone.new_kv(rows, self.segment_length)

    def _read_segments(self, segments: Sequence[Tensor], state: MemoryState) -> MemoryState:
        if self.memory.is_sticky:
            return super()._read_segments(segments, state)
        at_once = max(1, self.config.parallel_tokens // self.segment_length)
        for start in range(0, len(segments), at_once):
            state = self._read_in_parallel(torch.cat(list(segments[start : start + at_once]), dim=1), state)
        return state

    def _read_in_parallel(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """Return the memory after n segments (B, n·S), computed layer by layer. Skips the last layer's output: nothing uses it."""
        B, S, layers = tokens.shape[0], self.segment_length, len(self.memory)
        n = tokens.shape[1] // S
        counts = state["segments"].tolist()
        after = []
        with torch.no_grad():
            h, shared = self.layers.begin(self.backbone.embed(tokens.reshape(B * n, S)))
        for layer in range(layers):
            yield_point()
            memory = self.memory[layer]
            with torch.no_grad():
                normed = self.layers.norm(layer, h)
            entering = self._entering(h, normed).view(B, n, S, -1)
            before, last = memory.scan(state["coefficients"][:, layer], entering, counts)
            after.append(last)
            if layer + 1 == layers:
                break
            with torch.no_grad():
                h, _ = self._run_layer(layer, h, normed, shared, memory.project(before.flatten(0, 1)))
        return MemoryState({"coefficients": torch.stack(after, dim=1), "segments": state["segments"] + n})
