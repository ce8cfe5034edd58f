"""A `Llama` whose weights exist once, quantised, for decode steps and for prefill.

Products of many rows use bfloat16 where the processor has instructions for it: each matrix is dequantised into the same scratch memory before
its product. Other products use integers and activations of 16 bits, as decode steps do. Norm weights, the attention's scale and low-rank
updates are not folded in, since that would move weights off their grid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from everlong_models.backbone.gguf_blocks import floats_of
from everlong_models.backbone.kv_cursor import additive_mask, causal_mask
from everlong_models.backbone.llama import Llama, causal, rotate
from everlong_models.backbone.quantised_weights import QuantisedWeights
from everlong_models.kernels.cpu import dequantise, thread_pool
from everlong_models.kernels.cpu.decode_layers import CACHED, DecodeLayers
from everlong_models.kernels.cpu.job import Layer, Matrix
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.kernels.linear import has_bfloat16
from everlong_models.kernels.low_rank import detach, stack_updates

MANY = 24
"""From this many rows on, dequantising a matrix costs less than multiplying with integers."""

_ROWS = 4096
"""Rows of the embedding table that are dequantised at once."""


class Products:
    """Multiplies by quantised matrices, and computes attention. One thread at a time may use it.

    `bfloat16`: use bfloat16 if there are `MANY` rows. Without effect if the processor lacks the instructions.
    """

    def __init__(self, *, bfloat16: bool) -> None:
        self.bfloat16 = bfloat16 and has_bfloat16()
        self._scratch = torch.empty(0, dtype=torch.bfloat16, device="cpu")

    def input(self, x: Tensor) -> Tensor:
        """Return `x` (…, K) in the type in which its products should be computed."""
        many = x.numel() // x.shape[-1] >= MANY
        return x.bfloat16() if self.bfloat16 and many else x

    def __call__(self, matrix: QuantisedMatrix, x: Tensor) -> Tensor:
        """Return x Wᵀ + x Aᵀ Bᵀ + b (…, N) for `x` (…, K): float32, or of type bfloat16 if `x` is and there is no bias."""
        if x.dtype == torch.float32:
            return matrix(x)
        numbers = matrix.inputs * int(matrix.table[Matrix.N])
        if len(self._scratch) < numbers:
            self._scratch = torch.empty(numbers, dtype=torch.bfloat16, device="cpu")
        rows, weight = x.flatten(0, -2), matrix.transposed_bfloat16(self._scratch)
        if matrix.update is None:
            y = torch.mm(rows, weight)
        else:  # the larger product is added to the smaller one in float32, and rounded once
            a, b = matrix.update
            y = torch.mm(torch.mm(rows, a.t()), b.t()).addmm_(rows, weight)
        y = y.view(*x.shape[:-1], -1)
        return y if matrix.bias is None else y + matrix.bias  # not rounded: biases of keys are large

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `llama.causal`."""
        n, T = queries.shape[1], keys.shape[2]
        if not self.bfloat16 or n < MANY:
            return causal(queries, keys, values)
        q, k, v = (heads.bfloat16() for heads in (queries.flatten(2, 3).transpose(1, 2), keys, values))
        mask = None
        if n < T:  # three times as fast as in float32, although nothing of the upper triangle is skipped
            mask = additive_mask(causal_mask(torch.arange(T - n, T)[None], T)[0], torch.bfloat16, -torch.inf)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=True
        )
        return mixed.transpose(1, 2).flatten(2)


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """One layer. `before`, `between`: the weights of its norms; `scale`: the attention's; `queries`: the number of query heads."""

    matrices: Mapping[Layer, QuantisedMatrix]
    before: Tensor
    between: Tensor
    scale: float
    queries: int
    eps: float
    multiply: Products

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """See `llama.Layer`."""
        normed = self.multiply.input(F.rms_norm(h, h.shape[-1:], self.before, self.eps))
        parts = [self.multiply(self.matrices[name], normed) for name in (Layer.QKV, Layer.V) if name in self.matrices]
        heads = torch.cat(parts, dim=-1).float().unflatten(-1, (-1, head_dim))
        heads[..., : self.queries, :] *= self.scale
        rotate(heads, turning, cos, sin)
        return heads

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """See `llama.Layer`."""
        h = h + self.multiply(self.matrices[Layer.O], self.multiply.input(mixed))
        normed = self.multiply.input(F.rms_norm(h, h.shape[-1:], self.between, self.eps))
        gate = F.silu(self.multiply(self.matrices[Layer.GATE], normed), inplace=True)
        gate *= self.multiply(self.matrices[Layer.UP], normed)
        return h + self.multiply(self.matrices[Layer.DOWN], self.multiply.input(gate))


class Embedding:
    """The embedding table as blocks of a GGUF file, mapped: only rows that were used take memory.

    `rows`: uint8 (V, bytes of a row) of the given kind.
    """

    def __init__(self, rows: Tensor, kind: Kind) -> None:
        self._rows, self._kind = rows, kind

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (…, D) of `tokens` (…), float32. Raises `IndexError` for a token outside the vocabulary."""
        rows = self._rows[tokens.reshape(-1)]
        return floats_of(rows.numpy(), self._kind).view(*tokens.shape, -1)

    def std(self) -> float:
        """Return the standard deviation of the whole table."""
        count, total, squares = 0, 0.0, 0.0
        for rows in self._rows.split(_ROWS):
            weights = floats_of(rows.numpy(), self._kind).double()
            count, total, squares = (
                count + weights.numel(),
                total + float(weights.sum()),
                squares + float((weights**2).sum()),
            )
        return float((squares / count - (total / count) ** 2) ** 0.5)


@dataclass(frozen=True, slots=True)
class QuantisedLlama:
    """A decoder with one copy of its weights. `weights`: with their low-rank updates."""

    forward: Llama
    embedding: Embedding
    weights: QuantisedWeights


def build(model: PreTrainedModel, weights: QuantisedWeights, *, bfloat16: bool) -> QuantisedLlama:
    """Build the decoder. `model` gives its config and rotary positions, and hands over the low-rank updates that are attached to it.

    `bfloat16`: see `Products`.
    """
    config, base = model.config, model.base_model
    weights = replace(
        weights,
        layers=[
            {name: _updated(matrix, modules[name]) for name, matrix in matrices.items()}
            for matrices, modules in (
                (part, _modules(layer, part)) for part, layer in zip(weights.layers, base.layers, strict=True)
            )
        ],
        head=_updated(weights.head, [model.get_output_embeddings()]),
    )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads, kv_heads, eps, scale = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.rms_norm_eps,
        head_dim**-0.5,
    )
    thread_pool.prepare(dequantise.dequantise)
    products = Products(bfloat16=bfloat16)
    decoding = DecodeLayers(
        weights.layers,
        weights.norms,
        weights.norm,
        scale=scale,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=eps,
    )
    layers = [
        QuantisedLayer(matrices, before, between, scale, heads, eps, products)
        for matrices, (before, between) in zip(weights.layers, weights.norms, strict=True)
    ]
    forward = Llama(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, eps=eps, rotary=base.rotary_emb, norm=weights.norm, layers=layers,
        head=weights.head, cached=CACHED, attend=products.attend, decoding=decoding, decoding_head=weights.head,
    )  # fmt: skip
    return QuantisedLlama(forward, Embedding(weights.embedding, weights.embedding_kind), weights)


def _modules(layer: Any, matrices: Collection[Layer]) -> dict[Layer, list[nn.Module]]:
    """Return, for each of a layer's `matrices`, the transformers' modules that its rows come from."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    stacked = 2 if Layer.V in matrices else 3
    return {
        Layer.QKV: qkv[:stacked], Layer.V: qkv[stacked:], Layer.O: [attention.o_proj],
        Layer.GATE: [mlp.gate_proj], Layer.UP: [mlp.up_proj], Layer.DOWN: [mlp.down_proj],
    }  # fmt: skip


def _updated(matrix: QuantisedMatrix, modules: list[nn.Module]) -> QuantisedMatrix:
    """Return the matrix with the low-rank updates of the modules, and detach these from them."""
    update = stack_updates(modules)
    for module in modules:
        detach(module)
    return matrix if update is None else matrix.with_update(update)
