"""A `Llama` whose weights exist once, quantised, for decode steps and for prefill.

Products of many rows round their activations to 8 bits if the processor has AVX-512 VNNI but no AMX, and the model is at least `LEAST_WIDTH` wide
(`kernels.cpu.products.int8`). Otherwise they round to bfloat16, if the processor has instructions for it: each matrix is first dequantised into
scratch memory, which all matrices share. Other products, and those of experts, which have few rows each, use integers and activations of 16 bits, as
decode steps do. Norm weights, the attention's scale and low-rank updates are not folded in, since that would move weights off their grid. For the same
reason a low-rank update subtracts the mean of what is added to the residual stream, where the norms are layer norms (`folding.quantise_layer`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from everlong_models.backbone.decoder.folding import minus_mean
from everlong_models.backbone.decoder.parts import Description, GatedMLP, LayerDescription, Part, UngatedMLP
from everlong_models.backbone.description import describe
from everlong_models.backbone.gguf.blocks import floats_of
from everlong_models.backbone.llama import Llama, decode_layers
from everlong_models.backbone.quantised_weights import QuantisedWeights
from everlong_models.kernels.attention import additive_mask, causal, causal_mask
from everlong_models.kernels.blocks import BLOCK
from everlong_models.kernels.cpu import dequantise, experts, prefill, thread_pool
from everlong_models.kernels.cpu.decode_layers import CACHED
from everlong_models.kernels.cpu.job import Layer, Matrix
from everlong_models.kernels.cpu.products import int8
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.kernels.experts import QuantisedExperts
from everlong_models.kernels.linear import activate, has_amx, has_bfloat16
from everlong_models.kernels.low_rank import detach, stack
from everlong_models.kernels.norms import HeadNorm, Norms, norm_and_rotate, rms_norm, rotate

MANY = 24
"""From this many rows on, products with activations in 8 bits or bfloat16 are faster than those in 16-bit integers."""
LEAST_WIDTH = 768
"""Least width of a model whose activations are rounded to 8 bits. SmolLM2-135M (576) has about seven times the KL divergence of
bfloat16 then, and models from Qwen2.5-0.5B (896) on lose little (docs/research/lab-notes.md, "Activations in 8 bits with AVX-512 VNNI")."""
_MLP_ROWS = 2 * BLOCK
"""The MLP computes this many rows at a time. Their activations stay in the cache. A multiple of `BLOCK`, so that the block boundaries do not move."""

_ROWS = 4096
"""Rows of the embedding table that are dequantised at once."""


class Products:
    """Multiplies by quantised matrices, and computes attention. One thread at a time may use it.

    `width`: the model's hidden size. `rounded`: round the activations of products with at least `MANY` rows to 8 bits or bfloat16, if the processor
    has the instructions. With bfloat16, attention rounds, too.
    """

    def __init__(self, width: int, *, rounded: bool) -> None:
        self.int8 = rounded and width >= LEAST_WIDTH and int8.has_int8() and not has_amx()
        self.bfloat16 = rounded and has_bfloat16() and not self.int8
        self._scratch = torch.empty(0, dtype=torch.bfloat16, device="cpu")

    def prepare(self) -> None:
        """Compile the kernel for many rows now, so that its first use does not wait."""
        thread_pool.prepare(int8.multiply_int8 if self.int8 else dequantise.dequantise)

    def input(self, x: Tensor) -> Tensor:
        """Return `x` (…, K) in the type in which its products should be computed."""
        return x.bfloat16() if self.bfloat16 and are_many(x) else x

    def __call__(self, matrix: QuantisedMatrix, x: Tensor, *, many: bool | None = None) -> Tensor:
        """Return x Wᵀ + x Aᵀ Bᵀ + b (…, N) for `x` (…, K): float32, or of type bfloat16 if `x` is and there is no bias.

        `many`: whether the whole input has at least `MANY` rows. Pass it if `x` is only a part of that input.
        """
        if x.dtype == torch.bfloat16:
            return self._in_bfloat16(matrix, x)
        return self._in_int8(matrix, x) if self.int8 and (are_many(x) if many is None else many) else matrix(x)

    def _in_int8(self, matrix: QuantisedMatrix, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        y = matrix.multiply_int8(rows)
        if matrix.update is not None:
            kind = torch.bfloat16 if has_bfloat16() else torch.float32
            a, b = (part.to(kind) for part in matrix.update)
            for block, to in zip(rows.to(kind).split(BLOCK), y.split(BLOCK), strict=True):
                to.add_(torch.mm(torch.mm(block, a.t()), b.t()))
        if matrix.bias is not None:
            y += matrix.bias
        return y.view(*x.shape[:-1], -1)

    def _in_bfloat16(self, matrix: QuantisedMatrix, x: Tensor) -> Tensor:
        numbers = matrix.inputs * int(matrix.table[Matrix.N])
        if len(self._scratch) < numbers:
            self._scratch = torch.empty(numbers, dtype=torch.bfloat16, device="cpu")
        rows, weight = x.flatten(0, -2), matrix.transposed_bfloat16(self._scratch)
        y = x.new_empty(len(rows), matrix.outputs)
        for block, to in zip(rows.split(BLOCK), y.split(BLOCK), strict=True):
            if matrix.update is None:
                torch.mm(block, weight, out=to)
            else:  # the larger product is added to the smaller one in float32, and rounded once
                a, b = matrix.update
                torch.mm(torch.mm(block, a.t()), b.t(), out=to).addmm_(block, weight)
        y = y.view(*x.shape[:-1], -1)
        return y if matrix.bias is None else y + matrix.bias  # not rounded: biases of keys are large

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, window: int | None = None, cap: float | None = None
    ) -> Tensor:
        """See `kernels.attention.causal`."""
        n, T = queries.shape[1], keys.shape[2]
        window = None if window is None or window >= T else window
        if not self.bfloat16 or n < MANY or cap is not None:
            return causal(queries, keys, values, window, cap)
        q, k, v = (heads.bfloat16() for heads in (queries.flatten(2, 3).transpose(1, 2), keys, values))
        mixed, end = [], T - n
        for block in q.split(BLOCK, dim=2):
            positions = torch.arange(end, end := end + block.shape[2])[None]
            mask = additive_mask(causal_mask(positions, end, window)[0], torch.bfloat16, -torch.inf)
            seen = k[:, :, :end], v[:, :, :end]
            mixed.append(F.scaled_dot_product_attention(block, *seen, attn_mask=mask, scale=1.0, enable_gqa=True))
        return torch.cat(mixed, dim=2).transpose(1, 2).flatten(2)


def are_many(x: Tensor) -> bool:
    """Return whether `x` (…, K) has at least `MANY` rows."""
    return x.numel() // x.shape[-1] >= MANY


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """One layer, whose MLP has a gate if `matrices` has `UP`. `shape`: the model's description; `head_norm`: of its queries and keys."""

    matrices: Mapping[Layer, QuantisedMatrix]
    norms: Norms
    experts: QuantisedExperts | None
    head_norm: HeadNorm | None
    shape: Description
    multiply: Products

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """See `llama.Layer`."""
        normed = self._normed(h, self.norms.before)
        parts = [self.multiply(self.matrices[name], normed) for name in (Layer.QKV, Layer.V) if name in self.matrices]
        heads = torch.cat(parts, dim=-1).float().unflatten(-1, (-1, head_dim))
        if self.head_norm is None:
            heads[..., : self.shape.heads, :] *= self.shape.scale
            rotate(heads, turning, cos, sin)
        else:
            norm_and_rotate(heads, self.head_norm, cos, sin)
        return heads

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """See `llama.Layer`."""
        before = h
        h = self._add(h, self.multiply(self.matrices[Layer.O], self.multiply.input(mixed)), self.norms.after_attention)
        if self.experts is not None:
            normed = F.rms_norm(h, h.shape[-1:], self.norms.between, self.shape.eps)
            return self._add(h, self.experts(normed, self.shape.activation), self.norms.after_mlp)
        return self._add(h, self._mlp(before if self.shape.parallel else h), self.norms.after_mlp)

    def _mlp(self, h: Tensor) -> Tensor:
        normed, many = self._normed(h, self.norms.between), are_many(h)
        if normed.dtype == torch.bfloat16:  # its matrices are dequantised once, for all rows
            return self._mlp_of(normed, many=True)
        rows = [self._mlp_of(rows, many=many) for rows in normed.flatten(0, -2).split(_MLP_ROWS)]
        return (torch.cat(rows) if len(rows) > 1 else rows[0]).view(*h.shape[:-1], -1)

    def _mlp_of(self, normed: Tensor, *, many: bool) -> Tensor:
        gate = activate(self.multiply(self.matrices[Layer.GATE], normed, many=many), self.shape.activation)
        if Layer.UP in self.matrices:
            gate *= self.multiply(self.matrices[Layer.UP], normed, many=many)
        return self.multiply(self.matrices[Layer.DOWN], self.multiply.input(gate), many=many)

    def _normed(self, h: Tensor, weight: Tensor | None) -> Tensor:
        return self.multiply.input(h if weight is None else F.rms_norm(h, h.shape[-1:], weight, self.shape.eps))

    def _add(self, h: Tensor, more: Tensor, norm: Tensor | None) -> Tensor:
        if norm is not None:
            return rms_norm(more.float(), norm, self.shape.eps, plus=h)
        if self.shape.centred:
            # Rounded products leave a part of the mean: the same error in all numbers of a row.
            more = more.float()
            more = more - more.mean(-1, keepdim=True)
        return h + more if self.shape.residual == 1 else h + more * self.shape.residual


class Embedding:
    """The embedding table as blocks of a GGUF file, mapped: only rows that were used take memory.

    `rows`: uint8 (V, bytes of a row) of the given kind. `scale`: factor of every embedding.
    """

    def __init__(self, rows: Tensor, kind: Kind, scale: float = 1.0) -> None:
        self._rows, self._kind, self._scale = rows, kind, scale

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (…, D) of `tokens` (…), float32. Raises `IndexError` for a token outside the vocabulary."""
        rows = self._rows[tokens.reshape(-1)]
        found = floats_of(rows.numpy(), self._kind).view(*tokens.shape, -1)
        return found if self._scale == 1 else found * self._scale

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

    `bfloat16`: passed to `Products` as `rounded`.
    """
    shape = describe(model)
    weights = replace(
        weights,
        layers=[_updated_layer(weights, index, layer) for index, layer in enumerate(shape.layers)],
        head=_updated(weights.head, [Part(model.get_output_embeddings())]),
    )
    for module in (model.get_output_embeddings(), *(part.module for layer in shape.layers for part in layer.matrices)):
        detach(module)
    shape = _with_tensors(shape, weights)
    products = Products(model.config.get_text_config().hidden_size, rounded=bfloat16)
    products.prepare()
    thread_pool.prepare(*(() if shape.plain else (prefill.norm, prefill.rotate)))
    if any(weights.experts):
        thread_pool.prepare(experts.mixture)
    layers = [
        QuantisedLayer(
            matrices,
            norms,
            mixture,
            HeadNorm.of(norms, shape.heads, shape.kv_heads, shape.eps, shape.scale),
            shape,
            products,
        )
        for matrices, norms, mixture in zip(weights.layers, weights.norms, weights.experts, strict=True)
    ]
    forward = Llama(
        shape=shape, norm=weights.norm, layers=layers, head=weights.head, cached=CACHED, attend=products.attend,
        decoding=decode_layers(shape, weights.norm, weights.layers, weights.experts), decoding_head=weights.head, in_blocks=True,
        in_rows=not (products.int8 and any(matrix.update for layer in weights.layers for matrix in layer.values())),
    )  # fmt: skip
    scale = float(getattr(model.get_input_embeddings(), "scalar_embed_scale", 1.0))
    return QuantisedLlama(forward, Embedding(weights.embedding, weights.embedding_kind, scale), weights)


def _with_tensors(shape: Description, weights: QuantisedWeights) -> Description:
    """Return the description with norms and learned positions from `weights`; those of the model have no data."""
    layers = [replace(layer, norms=norms) for layer, norms in zip(shape.layers, weights.norms, strict=True)]
    positions = None if weights.positions is None else nn.Embedding.from_pretrained(weights.positions)
    return replace(shape, layers=layers, norm=weights.norm, norm_bias=weights.norm_bias, positions=positions)


def _parts(layer: LayerDescription, matrices: Collection[Layer]) -> dict[Layer, list[Part]]:
    """Return, for each of a layer's `matrices`, the parts of transformers' modules that its rows come from."""
    qkv = [layer.q, layer.k, layer.v]
    stacked = 2 if Layer.V in matrices else 3
    found = {Layer.QKV: qkv[:stacked], Layer.V: qkv[stacked:], Layer.O: [layer.o]}
    if isinstance(mlp := layer.mlp, GatedMLP):
        found |= {Layer.GATE: [mlp.gate], Layer.UP: [mlp.up], Layer.DOWN: [mlp.down]}
    elif isinstance(mlp, UngatedMLP):
        found |= {Layer.GATE: [mlp.up], Layer.DOWN: [mlp.down]}
    return found


def _updated_layer(weights: QuantisedWeights, index: int, layer: LayerDescription) -> dict[Layer, QuantisedMatrix]:
    matrices, norm_biases, means = weights.layers[index], weights.norm_biases[index], weights.means[index]
    parts = _parts(layer, matrices)
    return {
        name: _updated(matrix, parts[name], norm_biases.get(name), means.get(name)) for name, matrix in matrices.items()
    }


def _updated(
    matrix: QuantisedMatrix, parts: Sequence[Part], norm_bias: Tensor | None = None, mean: Tensor | None = None
) -> QuantisedMatrix:
    """Return the matrix with the low-rank updates of the parts. Only the first call for a matrix may have updates.

    `norm_bias` (K,): of the norm before the matrix; its product with the updates becomes part of the bias. `mean` (K,): of the matrix's
    rows; then the mean of the outputs is subtracted by another update.
    """
    update, bias = stack(*zip(*(part.split for part in parts), strict=True)), matrix.bias
    if update is None and (mean is None or matrix.update is not None):
        return matrix
    if update is not None:
        update = update[0].float(), update[1].float()
    if update is not None and norm_bias is not None:
        a, b = update
        bias = b @ (a @ norm_bias) if bias is None else bias + b @ (a @ norm_bias)
    if mean is not None:
        mean = mean if update is None else mean + update[1].mean(0) @ update[0]
        update = minus_mean(update, mean, matrix.outputs)
    return matrix if update is None else matrix.with_update(update, bias)
