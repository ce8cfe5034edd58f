"""ARMT, the Associative Recurrent Memory Transformer (Rodkin et al. 2024).

A segment is read as [x_1 … x_S ; m write tokens] under the ordinary causal mask and ordinary positions; the write
tokens' inputs are the same m trained vectors in every segment. Each layer has an associative matrix W (D, K) and a
normaliser z (K), both zero before the first segment. Before the layer every hidden state h reads

    h += W φ(W_q h) / (z·φ(W_q h) + ε)

and after it the hidden states of the write tokens, m_i, write by the delta rule, all against the same old W and z:

    W += Σ_i β_i (v_i − W φ_i / (z·φ_i + ε)) φ_iᵀ,    z += Σ_i γ_i φ_i
    φ_i = φ(W_k m_i),  v_i = W_v m_i,  β_i = σ(w_b·m_i),  γ_i = clip(1 − z·φ_i / ‖φ_i‖², 0, 1), without gradient

φ is DPFP-3 (Schlag et al. 2021) scaled to length one, so K = 6·`memory_width`. W_v starts at zero: an untrained memory
leaves the backbone's answers exactly as they are.

Beyond the paper, `value_width` d_v gives W_v = W_o W_u of rank d_v. W starts at zero and only ever adds multiples of
values, so every W is W_o times a matrix (d_v, K). The state stores that matrix, and W_o is applied to what is read from
it: weights and state are D / d_v times smaller. W_o starts at zero.

The paper skips the read in the first segment. Here that needs no special case: with W = 0 and z = 0 the read is
0 / ε = 0, in each row independently.

Layer l of segment t needs only layer l−1 of segment t and W, z of layer l after segment t−1. All cells (l, t) of one
diagonal l + t can therefore be computed at once: `diagonals` runs them as one batch of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import Cache
from everlong_models.backbone.layers.families import layers_of
from everlong_models.backbone.precision import in_full, under_autocast
from everlong_models.errors import ConfigError
from everlong_models.kernels.yield_point import yield_point
from everlong_models.memories.base import BackboneReader, MemoryConfig, require_positions
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart, effective_rank, relative_change

NU = 3
"""ν of DPFP-ν."""


class ARMTConfig(MemoryConfig):
    """`memory_tokens`: m. `memory_width`: width of keys and queries before φ widens them sixfold. `value_width`: d_v;
    None means D, as in the paper. `epsilon`: ε.

    `diagonals`: read along diagonals, several layers at once, instead of segment after segment. The states are the same
    up to rounding, and so is the work. It helps a GPU that one segment of few rows does not fill. Reading holds a
    second copy of the layers' weights, and on a CPU takes 3 to 15 % longer (135M backbone, one row).
    """

    memory_tokens: int = Field(16, ge=1)
    memory_width: int = Field(64, ge=2, description="below 2, DPFP-3 multiplies features that are never both non-zero")
    value_width: int | None = Field(None, ge=1)
    epsilon: float = Field(1e-5, gt=0)
    diagonals: bool = False


class Projections(NamedTuple):
    """Weights of the memory: `query`, `key` (…, width, D), `value` (…, V, D), `gate` (…, D), `output` (…, D, V).

    V is d_v. Without a `value_width`, V is D and `output` is empty.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor
    output: Tensor


def dpfp(x: Tensor) -> Tensor:
    """Return φ(x) (…, 6d) of `x` (…, d): r = relu([x ; −x]), then r_i · r_{i−j} for j = 1 … ν, scaled to length one.

    All features are non-negative. Only the direction of `x` matters, since every feature is a product of two entries.
    """
    r = torch.cat([x, -x], dim=-1).relu()
    return F.normalize(torch.cat([r * r.roll(shift, dims=-1) for shift in range(1, NU + 1)], dim=-1), dim=-1)


def recall(h: Tensor, W: Tensor, z: Tensor, by: Projections, epsilon: float) -> Tensor:
    """Return what hidden states `h` (B, T, D) read from `W` (B, V, K) and `z` (B, K): W_o W φ / (z·φ + ε), (B, T, D).

    Computed in the dtype of `W`, returned in the dtype of `h`.
    """
    query = F.linear(h, by.query)
    with in_full(W.device):
        phi = dpfp(query.to(W.dtype))  # (B, T, K)
        found = (phi @ W.mT / (phi @ z[..., None] + epsilon)).to(h.dtype)
    return F.linear(found, by.output) if by.output.numel() else found


def memorise(h: Tensor, W: Tensor, z: Tensor, by: Projections, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return `W` (B, V, K) and `z` (B, K) after the write tokens' hidden states `h` (B, m, D) wrote by the delta rule."""
    key, v = F.linear(h, by.key), F.linear(h, by.value).to(W.dtype)
    beta = torch.linalg.vecdot(h, by.gate).to(W.dtype).sigmoid()[..., None]  # (B, m, 1)
    with in_full(W.device):
        phi = dpfp(key.to(W.dtype))  # (B, m, K)
        overlap = phi @ z[..., None]  # (B, m, 1)
        known = phi @ W.mT / (overlap + epsilon)
        # ‖φ‖² is 1, or 0 if all features of a key are zero. Such a token writes nothing, so any finite γ is right.
        gamma = (1 - overlap / phi.square().sum(-1, keepdim=True).clamp_min(epsilon)).clamp(0, 1).detach()
        return W + (beta * (v - known)).mT @ phi, z + (gamma * phi).sum(-2)


class ARMT(BackboneReader):
    """Associative Recurrent Memory Transformer around `backbone`.

    State, for L layers: `W` (rows, L, V, K) and `z` (rows, L, K), at least float32, V = d_v or D. Raises `BackboneError`
    for a backbone whose layers cannot be run one by one (see `Layers`).
    """

    def __init__(self, config: ARMTConfig, backbone: Backbone) -> None:
        super().__init__()
        S, m, d, D = config.segment_length, config.memory_tokens, config.memory_width, backbone.width
        if m >= S:
            raise ConfigError("memory_tokens", m, f"must be smaller than segment_length={S}")
        require_positions(backbone, S + m, "segment_length + memory_tokens", "segment_length", S)
        self.layers = layers_of(backbone)
        self.layers.require_masks()
        if config.diagonals and not self.layers.alike:
            raise ConfigError(
                "diagonals", True, "must be false: the layers of this backbone differ in more than their weights"
            )
        self.config = config
        self.backbone = backbone
        self.segment_length = S
        self.vocab_size = backbone.vocab_size
        L = len(self.layers)
        generator = torch.Generator().manual_seed(0)

        def noise(*shape: int, scale: float) -> nn.Parameter:
            values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
            return nn.Parameter(values.to(backbone.device, backbone.dtype))

        self.memory = noise(m, D, scale=backbone.embedding_std())
        self.query = noise(L, d, D, scale=D**-0.5)
        self.key = noise(L, d, D, scale=D**-0.5)
        self.output: nn.Parameter | None = None
        if config.value_width is None:
            self.value = nn.Parameter(torch.zeros(L, D, D).to(self.memory))
        else:
            self.value = noise(L, config.value_width, D, scale=D**-0.5)
            self.output = nn.Parameter(torch.zeros(L, D, config.value_width).to(self.memory))
        # Zero too: residual streams are large, and a random gate would start saturated.
        self.gate = nn.Parameter(torch.zeros(L, D).to(self.memory))

    def _projections(self) -> Projections:
        output = self.value.new_empty(len(self.layers), 0, 0) if self.output is None else self.output
        return Projections(self.query, self.key, self.value, self.gate, output)

    @property
    def graph_capturable(self) -> bool:
        """See `SegmentReader`."""
        return True

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return an empty memory."""
        L, V, K = len(self.layers), self.config.value_width or self.backbone.width, 2 * NU * self.config.memory_width
        dtype, device = torch.promote_types(self.backbone.dtype, torch.float32), self.backbone.device
        shapes = {"W": (rows, L, V, K), "z": (rows, L, K)}
        return MemoryState({name: torch.zeros(shape, dtype=dtype, device=device) for name, shape in shapes.items()})

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return one part per layer: its W. The associations in use are the effective rank of W."""
        W = state["W"][0]  # (L, V, K)
        change: list[float | None] = [None] * len(W)
        if tokens.shape[1]:
            change = relative_change(W, self.close(self.open(state, tokens)[0])["W"][0])
        used, age = effective_rank(W).tolist(), tokens.shape[1]
        return [
            MemoryPart("associations", 0, read, min(W.shape[1:]), used[layer], age, layer, change[layer])
            for layer in range(len(W))
        ]

    def _with_write_tokens(self, tokens: Tensor) -> Tensor:
        """Return [segment ; write tokens], (B, T + m, D)."""
        return torch.cat([self.backbone.embed(tokens), self._write_tokens(tokens.shape[0])], dim=1)

    def _write_tokens(self, rows: int) -> Tensor:
        return self.memory.expand(rows, -1, -1)

    def _run(
        self, x: Tensor, state: MemoryState, *, write: bool, kv: Tensor | None = None, at: Tensor | None = None
    ) -> tuple[Tensor, MemoryState]:
        """Return the last layer's output (B, T, D) and the memory; with `write`, the memory after the last m positions wrote."""
        epsilon = self.config.epsilon
        h, shared = self.layers.begin(x, kv=kv, at=at)
        written = []
        for layer, by in enumerate(map(Projections, *self._projections())):
            W, z = state["W"][:, layer], state["z"][:, layer]
            h = self.layers(layer, h + recall(h, W, z, by, epsilon), shared)
            if write:
                written.append(memorise(h[:, -self.config.memory_tokens :], W, z, by, epsilon))
        return h, _state(written) if write else state

    def _logits(self, h: Tensor) -> Tensor:
        return self.backbone.logits(self.layers.end(h))

    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        return self._run(self._with_write_tokens(tokens), state, write=True)[1]

    def _read_segments(self, segments: Sequence[Tensor], state: MemoryState) -> MemoryState:
        """Read in order, or along diagonals: on diagonal d, layer l processes segment d − l."""
        single = len(segments) == 1  # its diagonals have one cell each
        if single or not self.config.diagonals or under_autocast(state["W"].device):  # vmap does not support autocast
            return super()._read_segments(segments, state)
        m, epsilon, L = self.config.memory_tokens, self.config.epsilon, len(self.layers)
        stacked, own = self.layers.stacked(), self._projections()

        def cell(weights: dict[str, Tensor], by: Projections, h: Tensor, W: Tensor, z: Tensor) -> tuple[Tensor, ...]:
            h = self.layers.call_with(weights, h + recall(h, W, z, by, epsilon), shared)
            return h, *memorise(h[:, -m:], W, z, by, epsilon)

        memory = list(zip(state["W"].unbind(1), state["z"].unbind(1), strict=True))
        inputs: list[Tensor] = []  # inputs of the diagonal's layers, the lowest layer first
        for diagonal in range(len(segments) + L - 1):
            yield_point()
            low, high = max(0, diagonal - len(segments) + 1), min(L, diagonal + 1)
            if low == 0:
                first, shared = self.layers.begin(
                    self._with_write_tokens(segments[diagonal])
                )  # `shared` is the same every time
                inputs.insert(0, first)
            outputs, W, z = torch.vmap(cell, randomness="different")(
                {name: weight[low:high] for name, weight in stacked.items()},
                Projections(*(weight[low:high] for weight in own)),
                torch.stack(inputs),
                *(torch.stack(tensors) for tensors in zip(*memory[low:high], strict=True)),
            )
            memory[low:high] = zip(W, z, strict=True)
            # The last layer's output is a finished segment; the others move up one layer.
            inputs = list(outputs[: L - 1 - low])
        return _state(memory)

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) of one segment. Leaves out the write tokens: they follow the segment and cannot change it."""
        self.check_segment(tokens, state)
        return self._logits(self._run(self.backbone.embed(tokens), state, write=False)[0])

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """Return logits (B, S, V) and the next memory of one full segment, in one pass."""
        self.check_full(tokens, state)
        h, after = self._run(self._with_write_tokens(tokens), state, write=True)
        return self._logits(h[:, : self.segment_length]), after

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Prefill `tokens`. The cache keeps W and z, which every later token reads."""
        self.check_segment(tokens, state)
        kv = self.backbone.new_kv(state.rows, self.segment_length + self.config.memory_tokens)
        h, _ = self._run(self.backbone.embed(tokens), state, write=False, kv=kv)
        memory = {name: state[name].clone() for name in state}
        lengths = torch.full((state.rows,), tokens.shape[1], device=tokens.device)
        return Cache({"kv": kv, **memory}, lengths), self._logits(h[:, -1])

    def steps(self, cache: Cache, tokens: Tensor) -> Tensor:
        """See `SegmentReader`."""
        x = self.backbone.embed(tokens)
        h, _ = self._run(x, _memory_of(cache), write=False, kv=cache["kv"], at=cache.lengths)
        cache.lengths += tokens.shape[1]
        return self._logits(h.flatten(0, 1)).unflatten(0, tokens.shape)

    def close(self, cache: Cache) -> MemoryState:
        """Run the write tokens after each row's segment and return the memory that they wrote."""
        kv = cache["kv"].clone()  # the caller may continue decoding: only `step` writes into a cache
        return self._run(self._write_tokens(cache.rows), _memory_of(cache), write=True, kv=kv, at=cache.lengths)[1]


def _state(layers: Sequence[tuple[Tensor, Tensor]]) -> MemoryState:
    """Stack the (W, z) of all layers, in order, into a state."""
    W, z = zip(*layers, strict=True)
    return MemoryState({"W": torch.stack(W, dim=1), "z": torch.stack(z, dim=1)})


def _memory_of(cache: Cache) -> MemoryState:
    """Return the memory that the open segments in `cache` read."""
    return MemoryState({"W": cache["W"], "z": cache["z"]})
