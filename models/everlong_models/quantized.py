"""`Quantized`: a matrix in groups of four or eight bits, for products of few rows, which wait for the weights' bytes.

    y = x Wᵀ + x Aᵀ Bᵀ + b,    W ≈ d · q + c in groups of 32 along a row

Four bits where they lose nothing: the q of a group that llama.cpp stored as Q4_1 are found again, since its least and its
greatest weight are 0 and 15 there. Other weights get eight. Activations, d, c and sums are float32. A low-rank update B A,
which would take W off its four bits, stays beside it in float32.

A row's result does not depend on the other rows, to the bit (`kernels`).
"""

from __future__ import annotations

from typing import overload

import numpy as np
import torch
from torch import Tensor

from everlong_models.kernels import Matrix
from everlong_models.lanes import GROUP
from everlong_models.lowrank import Update
from everlong_models.team import multiply

# What rounding in a file may have moved a weight off its grid by, as a share of the grid's step.
TOLERANCE = 0.02
# Looked at together: few enough for the processor's cache, and not so few that calls take the time.
_ROWS = 512


class Quantized:
    """`weight` (N, K), K a multiple of 32 (see `fits`); `bias` (N,) or None; `update`: what comes to the weight.

    `table`: the matrix as `kernels.Matrix` has it, whose addresses are of what this object holds.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, update: Update | None = None) -> None:
        groups = weight.detach().float().unflatten(1, (-1, GROUP))
        found = _on_grid(groups, 15, TOLERANCE)
        self.bits = 8 if found is None else 4
        codes, scales = found or _on_grid(groups, 255)
        self._held = {Matrix.CODES: _packed(codes) if self.bits == 4 else codes, Matrix.SCALES: scales}
        if bias is not None:
            self._held[Matrix.BIAS] = bias.detach().float().clone()
        if update is not None:
            self._held |= zip(
                (Matrix.A, Matrix.B), (part.detach().float().contiguous().clone() for part in update), strict=True
            )
        self.table = np.zeros(len(Matrix), np.int64)
        sizes = {Matrix.BITS: self.bits, Matrix.RANK: 0 if update is None else len(update[0])}
        sizes |= zip((Matrix.N, Matrix.K), weight.shape, strict=True)
        for column, value in (sizes | {column: held.data_ptr() for column, held in self._held.items()}).items():
            self.table[column] = value

    def __call__(self, x: Tensor) -> Tensor:
        """(…, N) of `x` (…, K), float32. Raises `ValueError` for another K or type."""
        return torch.from_numpy(multiply(self.table, x.reshape(-1, x.shape[-1]).numpy())).view(*x.shape[:-1], -1)


def fits(weight: Tensor) -> bool:
    """Whether there is a kernel for `weight` (N, K) where it lies, and a quick one: a product and its sum are one instruction."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.shape[1] % GROUP == 0
        and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    )


@overload
def _on_grid(groups: Tensor, steps: int) -> tuple[Tensor, Tensor]: ...
@overload
def _on_grid(groups: Tensor, steps: int, tolerance: float) -> tuple[Tensor, Tensor] | None: ...
def _on_grid(groups: Tensor, steps: int, tolerance: float | None = None) -> tuple[Tensor, Tensor] | None:
    """The codes (N, K), uint8, and by group d and c (N, K/32, 2) of `groups` (N, K/32, 32), on grids from each one's least to
    its greatest weight. None if one lies further off its grid than `tolerance`, as a share of a step."""
    codes, scales = [], []
    for rows in groups.split(_ROWS):
        least = rows.amin(-1, keepdim=True)
        d = (rows.amax(-1, keepdim=True) - least) / steps
        exact = (rows - least).div_(torch.where(d > 0, d, 1))
        q = exact.round()
        if tolerance is not None and not float(exact.sub_(q).abs_().amax()) <= tolerance:  # nor if it is no number
            return None
        codes.append(q.to(torch.uint8).flatten(1))
        scales.append(torch.cat([d, least], dim=-1))
    return torch.cat(codes), torch.cat(scales)


def _packed(codes: Tensor) -> Tensor:
    """Two codes a byte: of every sixteen, the first eight are the low halves of eight bytes."""
    low, high = codes.unflatten(1, (-1, 2, 8)).unbind(2)
    return (low | high << 4).flatten(1).contiguous()
