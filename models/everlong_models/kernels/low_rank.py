"""`LowRank`: a low-rank update of a layer's weight, W + B A, kept separate from W.

It is a parametrization of the layer (`torch.nn.utils.parametrize`): `layer.weight` computes the sum, and code that converts the weight
can take both parts (`split_update`). So weights that are mapped from a file are not copied.

A layer whose weight is not a tensor of floats (`has_float_weight`) has no such sum. Its update is two more products, W x + B (A x).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

Update = tuple[Tensor, Tensor]
"""A (r, in) and B (out, r): a matrix W (out, in) has become W + B A."""


class LowRank(nn.Module):
    """W ↦ W + B A, computed at least in float32 and rounded once to the type of W. `transposed`: W is (in, out), as in GPT-2."""

    a: Tensor
    b: Tensor

    def __init__(self, update: Update, *, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed
        for name, part in zip("ab", update, strict=True):
            self.register_buffer(name, part.detach())

    def forward(self, weight: Tensor) -> Tensor:
        """Return W + B A as a new tensor."""
        a, b = (self.b.t(), self.a.t()) if self.transposed else (self.a, self.b)
        wide = torch.promote_types(weight.dtype, torch.float32)
        return torch.addmm(weight.to(wide), b.to(wide), a.to(wide)).to(weight.dtype)


def attach(layer: Any, update: Update, *, transposed: bool = False) -> None:
    """Attach an update to the layer's `weight`, on the weight's device. The shapes must match.

    A weight on `meta` stands for a quantised one, which is computed on the CPU; its update stays where it is.
    """
    moved = LowRank(update, transposed=transposed)
    if not layer.weight.is_meta:
        moved = moved.to(layer.weight.device)
    # unsafe: skip a check that would compute the sum once more
    parametrize.register_parametrization(layer, "weight", moved, unsafe=True)


_A, _B = "lora_a", "lora_b"
"""Buffers of a layer whose update is added to its output."""


def has_float_weight(layer: Any, name: str = "weight") -> bool:
    """Return whether the layer's weight `name` is one tensor of floats of at least 16 bits, rather than quantised."""
    weight: Any = getattr(layer, name, None)
    # torchao's weights claim the type of the floats that they stand for, and consist of several tensors.
    several = hasattr(weight, "__tensor_flatten__")
    return isinstance(weight, Tensor) and weight.is_floating_point() and weight.dtype.itemsize > 1 and not several


def attach_to_output(layer: nn.Module, update: Update, dtype: torch.dtype, device: torch.device) -> None:
    """Add B (A x) to the layer's output, for a quantised weight. `dtype`, `device`: of the products."""
    for name, part in zip((_A, _B), update, strict=True):
        layer.register_buffer(name, part.detach().to(device, dtype))
    layer.register_forward_hook(_add_update)


def _add_update(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    reduced = F.linear(inputs[0].to(layer.lora_a.dtype), layer.lora_a)
    return output + F.linear(reduced, layer.lora_b).to(output.dtype)


def output_update(layer: Any) -> Update | None:
    """Return the update that `attach_to_output` attached."""
    return (layer.lora_a, layer.lora_b) if hasattr(layer, _A) else None


def split_update(layer: Any) -> tuple[Tensor, Update | None]:
    """Return the layer's weight without its update, and the update (None if it has none)."""
    if not parametrize.is_parametrized(layer, "weight"):
        return layer.weight, None
    parametrization = layer.parametrizations.weight
    return parametrization.original, (parametrization[0].a, parametrization[0].b)


def stack(weights: Sequence[Tensor], updates: Sequence[Update | None]) -> Update | None:
    """Return the update of the matrix that has the rows of all these `weights`; None if none has an update."""
    some = next((update for update in updates if update is not None), None)
    if some is None:
        return None
    pairs = [
        update or (some[0].new_zeros(0, weight.shape[1]), some[1].new_zeros(len(weight), 0))
        for weight, update in zip(weights, updates, strict=True)
    ]
    return torch.cat([a for a, _ in pairs]), torch.block_diag(*(b for _, b in pairs))


def detach(layer: nn.Module) -> None:
    """Remove the layer's update. The weight stays as it was before the update."""
    if parametrize.is_parametrized(layer, "weight"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def merge(model: nn.Module) -> None:
    """Replace each weight that has an update by the sum, so that it is not computed at every use."""
    layer: Any
    for layer in list(model.modules()):
        if parametrize.is_parametrized(layer, "weight"):
            weight = layer.weight
            detach(layer)
            layer.weight = nn.Parameter(
                weight, requires_grad=False
            )  # a new parameter, because another layer may share the old one
