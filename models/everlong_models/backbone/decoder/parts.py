"""What a decoder consists of: the parts of `Description`, which `backbone.description.describe` returns.

    a = n(h), or h without `before`            m = n(h + ρ A(a)), or n(h) with `parallel`; without `between` no n
    h ← h + ρ A(a),  or h + n(A(a)) with `after_attention`
    h ← h + ρ M(m),  or h + n(M(m)) with `after_mlp`
    A(x) = O attention(rope(Q x), rope(K x), V x),   M(x) = D (act(G x) · U x), or D act(U x) without a gate

n is an RMS norm, or a layer norm with `centred`. M may also be a mixture of experts (`kernels.cpu.experts`), each of the first form. Queries and
keys may pass norms before their rotation. Layers may have a sliding window, rotary tables of their own, or no rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlong_models.kernels.experts import Router
from everlong_models.kernels.linear import Activation
from everlong_models.kernels.low_rank import Update, split_update
from everlong_models.kernels.norms import Norms


@dataclass(frozen=True, slots=True)
class Part:
    """A matrix (N, K): some `rows` of a module's weight, because some families store several matrices in one module. None: all."""

    module: nn.Linear | Conv1D
    rows: slice | Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The rows, with the module's low-rank update."""
        return self._chosen(self._outputs_first(self.module.weight))

    @property
    def bias(self) -> Tensor | None:
        """The bias of these rows."""
        return None if self.module.bias is None else self._chosen(self.module.bias)

    @property
    def split(self) -> tuple[Tensor, Update | None]:
        """The rows without the module's low-rank update, and their update."""
        weight, update = split_update(self.module)
        whole = self._chosen(self._outputs_first(weight))
        return whole, None if update is None else (update[0], self._chosen(update[1]))

    def _chosen(self, tensor: Tensor) -> Tensor:
        return tensor if self.rows is None else tensor[self.rows]

    def _outputs_first(self, weight: Tensor) -> Tensor:
        return weight.t() if isinstance(self.module, Conv1D) else weight  # GPT-2 stores weights as (in, out)


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """The matrices of a gated MLP."""

    gate: Part
    up: Part
    down: Part


@dataclass(frozen=True, slots=True)
class UngatedMLP:
    """The matrices of an MLP without a gate."""

    up: Part
    down: Part


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of experts. `gate`: transformers' router, weight (E, D). `experts`: `gate_up_proj` (E, 2 F, D) and `down_proj` (E, D, F)."""

    gate: Any
    experts: Any

    @property
    def router(self) -> Router:
        """What chooses the experts."""
        return Router(self.gate.weight.detach(), self.gate.top_k, self.gate.norm_topk_prob)

    @property
    def matrices(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Gate (F, D), up (F, D) and down (D, F) of each expert."""
        pairs = zip(self.experts.gate_up_proj.detach(), self.experts.down_proj.detach(), strict=True)
        return [(*both.chunk(2), down) for both, down in pairs]

    def drop_weights(self) -> None:
        """Leave the modules without weights, on `meta`."""
        for module in (self.gate, self.experts):
            module.to("meta")


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One layer. `window`: how many positions a query sees, its own included; None: all. `rotation`: index in `Description.rotations`.

    `norm_biases`: of the layer norms `before` and `between`; None if these are RMS norms.
    """

    q: Part
    k: Part
    v: Part
    o: Part
    mlp: GatedMLP | UngatedMLP | Mixture
    norms: Norms
    window: int | None
    rotation: int
    norm_biases: tuple[Tensor, Tensor] | None = None

    @property
    def matrices(self) -> list[Part]:
        """All of them, in the order of the fields, without those of experts."""
        attention = [self.q, self.k, self.v, self.o]
        if isinstance(self.mlp, Mixture):
            return attention
        gate = [self.mlp.gate] if isinstance(self.mlp, GatedMLP) else []
        return [*attention, *gate, self.mlp.up, self.mlp.down]


class Rotations:
    """The rotary tables of a model's layers.

    `kinds`: names of transformers' tables, if it has several; "" for the only one; None for layers that rotate nothing. `short`: texts of
    up to this many positions have other frequencies than longer ones (Phi 3's `longrope`); None if all have the same.
    """

    def __init__(self, module: nn.Module, kinds: Sequence[str | None], short: int | None = None) -> None:
        self._module, self.kinds, self._short = module, tuple(kinds), short

    def __call__(self, x: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return cosines and sines (1 or B, T, r) of each kind, in the type of `x`, for `positions` (1 or B, T); r is 0 without rotation."""
        return [self._table(kind, x, positions) for kind in self.kinds]

    def _table(self, kind: str | None, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if kind is None:
            nothing = x.new_empty(*positions.shape, 0)
            return nothing, nothing
        if self._short is not None and len(positions) > 1:  # transformers would choose by the longest row for all
            cos, sin = (
                torch.cat(rows) for rows in zip(*(self._module(x, row[None]) for row in positions), strict=True)
            )
        else:
            cos, sin = self._module(x, positions, kind) if kind else self._module(x, positions)
        return cos.to(x.dtype), sin.to(x.dtype)

    def of_steps(self, x: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return the tables of decode steps at the positions 0 … `count` - 1, each as if it were the last of its text."""
        positions = torch.arange(count, device=x.device)[None]
        if self._short is None or count <= self._short:
            return self(x, positions)
        parts = zip(self(x, positions[:, : self._short]), self(x, positions[:, self._short :]), strict=True)
        return [(torch.cat([a[0], b[0]], dim=1), torch.cat([a[1], b[1]], dim=1)) for a, b in parts]

    def frequencies(self) -> list[Tensor | None]:
        """Return the frequencies (r/2,) of each kind, in radians per position."""
        return [
            None if kind is None else getattr(self._module, f"{kind}_inv_freq" if kind else "inv_freq")
            for kind in self.kinds
        ]


@dataclass(frozen=True, slots=True)
class Description:
    """A decoder. `scale`: of the attention; `residual`: ρ; `cap`: of attention scores (see `kernels.attention`); `embedding`: factor of the
    first layer's input (Gemma's is in its embedding module); `head`: factor of the logits, which are then capped by `head_cap`.

    `parallel`: attention and MLP of a layer have the same input. `positions`: learned positions, which are added to the embeddings.
    `centred`: norms are layer norms, so the mean of a row of h has no effect. Then h is kept with mean 0, where a layer norm is an RMS norm:
    the mean is taken from the embeddings, and from what `o` and `down` compute. `norm_bias`: of the last norm, `norm`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: Activation
    scale: float
    layers: list[LayerDescription]
    rotations: Rotations
    norm: Tensor
    residual: float = 1.0
    cap: float | None = None
    embedding: float = 1.0
    head: float = 1.0
    head_cap: float | None = None
    parallel: bool = False
    positions: nn.Embedding | None = None
    centred: bool = False
    norm_bias: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether every layer is one of Llama's, up to its rotation and window: norms before, none after, none of heads, SiLU, no experts."""
        return (
            self.activation == Activation.SILU
            and self.cap is None
            and all(isinstance(layer.mlp, GatedMLP) for layer in self.layers)
            and all(layer.norms.tensors().keys() == {"before", "between"} for layer in self.layers)
        )

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return `x` (B, T, D) with its learned positions, at `positions` (1 or B, T), and centred, where the decoder is so."""
        if self.positions is not None:
            x = x + self.positions(positions)
        return x - x.mean(-1, keepdim=True) if self.centred else x
