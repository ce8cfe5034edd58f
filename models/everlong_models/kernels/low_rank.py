"""`LowRank`: what a matrix has learnt beside its weight, W + B A, until the sum is wanted.

A parametrization of the layer (`torch.nn.utils.parametrize`): whoever asks for its `weight` gets the sum, and whoever lays
the weight out anew finds both parts. So weights that are mapped from a file stay as they are there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Update = tuple[Tensor, Tensor]
"""A (r, in) and B (out, r): a matrix W (out, in) has become W + B A."""


class LowRank(nn.Module):
    """W ↦ W + B A, at least in float32, rounded once to the type of W; `transposed`: W is (in, out), as GPT-2 keeps it."""

    a: Tensor
    b: Tensor

    def __init__(self, update: Update, *, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed
        for name, part in zip("ab", update, strict=True):
            self.register_buffer(name, part.detach())

    def forward(self, weight: Tensor) -> Tensor:
        """The sum, in new memory."""
        a, b = (self.b.t(), self.a.t()) if self.transposed else (self.a, self.b)
        wide = torch.promote_types(weight.dtype, torch.float32)
        return torch.addmm(weight.to(wide), b.to(wide), a.to(wide)).to(weight.dtype)


def attach(layer: Any, update: Update, *, transposed: bool = False) -> None:
    """Gives the layer's `weight` an update, which must be of its shape and is computed where the weight is."""
    moved = LowRank(update, transposed=transposed).to(layer.weight.device)
    parametrize.register_parametrization(
        layer, "weight", moved, unsafe=True
    )  # safe: computed once more, to be compared


def split_update(layer: Any) -> tuple[Tensor, Update | None]:
    """The layer's weight without an update, and the update."""
    if not parametrize.is_parametrized(layer, "weight"):
        return layer.weight, None
    held = layer.parametrizations.weight
    return held.original, (held[0].a, held[0].b)


def detach(layer: nn.Module) -> None:
    """Leaves the layer its weight without an update."""
    if parametrize.is_parametrized(layer, "weight"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def merge(model: nn.Module) -> None:
    """Puts the sums in the weights' places, for what asks for them again and again."""
    layer: Any
    for layer in list(model.modules()):
        if parametrize.is_parametrized(layer, "weight"):
            weight = layer.weight
            detach(layer)
            layer.weight = nn.Parameter(weight, requires_grad=False)  # a new one: another layer may share the old
