"""Fold norms, biases of norms, scales and means into the matrices of a layer next to them; quantise the matrices without folding.

With r = 1 / √(mean h² + ε) of a row h with mean 0, a layer norm and the matrix after it are r h (W ∘ w)ᵀ + (W β + b).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlong_models.backbone.decoder.parts import Description, GatedMLP, LayerDescription, Mixture, Part
from everlong_models.kernels.cpu.job import Layer as Name
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.kernels.low_rank import Update, detach, stack
from everlong_models.kernels.norms import HeadNorm

T = TypeVar("T", Tensor, Tensor | None)
Matrix = tuple[Tensor, Tensor | None]
"""A weight (N, K), and a bias (N,) or None."""


def entering(
    parts: Sequence[Part], norm: Tensor | None, norm_bias: Tensor | None = None, *, first: float = 1.0
) -> Matrix:
    """Return the matrix with the rows of `parts`, those of the first times `first`, after the norm before it, which is folded in."""
    weights = [part.weight for part in parts]
    weight = torch.cat([weights[0] * first if first != 1 else weights[0], *weights[1:]])
    return folded(weight, norm), _plus_product(bias_of(*parts, first=first), weight, norm_bias)


def fold_attention(layer: LayerDescription, shape: Description) -> tuple[Matrix, Matrix, HeadNorm | None]:
    """Return the matrix of queries, keys and values, that of the outputs, and the norm of queries and keys, or None.

    The attention's scale is folded into this norm; without one, into the queries.
    """
    head_norm = HeadNorm.of(layer.norms, shape.heads, shape.kv_heads, shape.eps, shape.scale)
    scale = shape.scale if head_norm is None else 1.0  # the norm would undo a scale of the queries before it
    norm_bias, _ = layer.norm_biases or (None, None)
    qkv = entering((layer.q, layer.k, layer.v), layer.norms.before, norm_bias, first=scale)
    return qkv, leaving(layer.o, shape), head_norm


def leaving(part: Part, shape: Description) -> Matrix:
    """Return the matrix whose outputs are added to the residual stream, with the factor of the sum, and without their mean if `centred`."""
    weight, bias = scaled(part.weight, shape.residual), scaled(part.bias, shape.residual)
    return (_centred(weight), _centred(bias)) if shape.centred else (weight, bias)


def quantise_layer(layer: LayerDescription, shape: Description) -> dict[Name, QuantisedMatrix]:
    """Quantise a layer's matrices; `can_quantise` must hold for each of their weights.

    Norm weights and the attention's scale are not folded in: that would move weights off their quantisation grid. Biases of norms become
    part of the matrices' biases. The mean of the outputs is subtracted as a low-rank update of rank 1.
    """
    mlp, (before, between) = layer.mlp, layer.norm_biases or (None, None)
    found = {
        Name.QKV: _quantised(layer.q, layer.k, layer.v, norm_bias=before),
        Name.O: _quantised(layer.o, centred=shape.centred),
    }
    if isinstance(mlp, Mixture):
        return found
    if isinstance(mlp, GatedMLP):
        found |= {Name.GATE: _quantised(mlp.gate), Name.UP: _quantised(mlp.up)}
    else:
        found[Name.GATE] = _quantised(mlp.up, norm_bias=between)
    return found | {Name.DOWN: _quantised(mlp.down, centred=shape.centred)}


def _quantised(*parts: Part, norm_bias: Tensor | None = None, centred: bool = False) -> QuantisedMatrix:
    weights, updates = zip(*(part.split for part in parts), strict=True)
    weight, bias, update = torch.cat(weights), bias_of(*parts), stack(weights, updates)
    if norm_bias is not None:
        bias = _plus_product(bias, torch.cat([part.weight for part in parts]), norm_bias)
    if centred:
        whole = parts[0].weight.detach()
        bias, update = _centred(bias), minus_mean(update, whole.mean(0), len(whole))
    return QuantisedMatrix(weight, bias, update)


def minus_mean(update: Update | None, mean: Tensor, outputs: int) -> Update:
    """Return `update`, plus one that subtracts the mean of a matrix's outputs. `mean` (K,): of the rows of the matrix, with `update`."""
    a, b = mean[None], -mean.new_ones(outputs, 1)
    return (a, b) if update is None else (torch.cat([update[0], a]), torch.cat([update[1], b], dim=1))


def _plus_product(bias: Tensor | None, weight: Tensor, norm_bias: Tensor | None) -> Tensor | None:
    """Return bias + W β, rounded once."""
    if norm_bias is None:
        return bias
    wide = torch.promote_types(weight.dtype, torch.float32)
    product = weight.to(wide) @ norm_bias.to(wide)
    return (product if bias is None else product + bias).to(weight.dtype)


def _centred(tensor: T) -> T:
    """Return the tensor minus its mean over the first axis."""
    if tensor is None:
        return tensor
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    return (wide - wide.mean(0)).to(tensor.dtype)


def folded(weight: Tensor, norm: Tensor | None) -> Tensor:
    """Return a matrix that multiplies by a norm's weight first, rounded once."""
    if norm is None:
        return weight
    wide = torch.promote_types(weight.dtype, torch.float32)
    return (weight.to(wide) * norm.to(wide)).to(weight.dtype)


def scaled(tensor: T, factor: float) -> T:
    """Return the tensor times a factor."""
    return tensor if tensor is None or factor == 1 else tensor * factor


def bias_of(*stacked: Part, first: float = 1.0) -> Tensor | None:
    """Return the bias of the matrix that has the rows of all these parts; `first`: factor of the first part's."""
    if not has_bias(*stacked):
        return None
    weights = [part.split[0] for part in stacked]
    parts = [
        weight.new_zeros(len(weight)) if part.bias is None else part.bias
        for weight, part in zip(weights, stacked, strict=True)
    ]
    return torch.cat([parts[0] * first, *parts[1:]])


def has_bias(*parts: Part) -> bool:
    """Return whether the module of any of these parts has a bias."""
    return any(part.module.bias is not None for part in parts)


def drop_weight(matrix: nn.Linear | Conv1D) -> None:
    """Leave a module without its weight, on `meta`."""
    detach(matrix)
    matrix.weight = nn.Parameter(torch.empty_like(matrix.weight, device="meta"), requires_grad=False)
