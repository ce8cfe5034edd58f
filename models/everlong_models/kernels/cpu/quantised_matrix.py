"""`QuantisedMatrix`: a matrix in groups of four or eight bits, for products of few rows, which wait for the weights' bytes.

    y = x Wᵀ + x Aᵀ Bᵀ + b,    W ≈ d · q + c in groups of 32 along a row

Four bits where they lose nothing: the q of a group that llama.cpp stored as Q4_1 are found again, since its least and its
greatest weight are 0 and 15 there. Other weights get eight. An x has sixteen bits, with a scale for each group of 32 (`lanes.halves`), so
that q · x are whole numbers, two of which are added in one instruction, and without an error; d and c have sixteen, as llama.cpp
stores them, too, and the sums of x that c is multiplied by are float32. A low-rank update B A, which would take W off its four
bits, stays beside it in float32.

A row's result does not depend on the other rows, to the bit (`kernels`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.cpu.decode_step import Matrix
from everlong_models.kernels.cpu.simd import GROUP, PANEL, has_float16
from everlong_models.kernels.cpu.thread_pool import multiply, pack_panels, quantise
from everlong_models.kernels.low_rank import Update

# What rounding in a file may have moved a weight off its grid by, as a share of the grid's step.
TOLERANCE = 0.02
_LEAST = 2.0**-10
"""Scales below 2^-14 have steps of 2^-24, of which the 255th place of a grid has half of as many: less than a hundredth of this."""


class QuantisedMatrix:
    """`weight` (N, K), K a multiple of 32 (see `fits`); `bias` (N,) or None; `update`: what comes to the weight. Inside, N is
    the next multiple of `PANEL`.

    `table`: the matrix as `kernels.Matrix` has it, whose addresses are of what this object holds.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, update: Update | None = None) -> None:
        self._outputs, more = len(weight), -len(weight) % PANEL
        whole = F.pad(weight.detach().float(), (0, 0, 0, more)) if more else weight.detach().float()
        codes, scales, four = quantise(whole, 4, TOLERANCE)
        if not four:
            codes, scales, _ = quantise(whole, 8)
        self.bits = 4 if four else 8
        self._held = {Matrix.CODES: codes, Matrix.SCALES: scales}
        if bias is not None:
            self._held[Matrix.BIAS] = F.pad(bias.detach().float(), (0, more)).clone()
        if update is not None:
            a, b = (part.detach().float() for part in update)
            self._held |= {Matrix.A: a.contiguous().clone(), Matrix.B: pack_panels(F.pad(b, (0, 0, 0, more)))}
        self.table = np.zeros(len(Matrix), np.int64)
        sizes = {Matrix.BITS: self.bits, Matrix.RANK: 0 if update is None else len(update[0])}
        sizes |= {Matrix.N: len(weight) + more, Matrix.K: weight.shape[1]}
        for column, value in (sizes | {column: held.data_ptr() for column, held in self._held.items()}).items():
            self.table[column] = value

    def __call__(self, x: Tensor) -> Tensor:
        """(…, N) of `x` (…, K), float32. Raises `ValueError` for another K or type."""
        y = torch.from_numpy(multiply(self.table, x.reshape(-1, x.shape[-1]).numpy()))
        return y[:, : self._outputs].reshape(*x.shape[:-1], self._outputs)


def can_quantise(weight: Tensor) -> bool:
    """Whether there is a kernel for `weight` (N, K) where it lies, and a quick one (a product and its sum are one instruction, and what is
    compiled knows numbers of 16 bits), and such have its scales: its greatest weight is 0, or from `_LEAST` to what they reach."""
    if not (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.shape[1] % GROUP == 0
        and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
        and has_float16()
    ):
        return False
    most = float(torch.linalg.vector_norm(weight.detach(), torch.inf))
    return most == 0 or _LEAST <= most <= torch.finfo(torch.float16).max
