"""`QuantisedMatrix`: a matrix in groups of four or eight bits, for products with few rows, which are bound by reading weights.

    y = x Wᵀ + x Aᵀ Bᵀ + b,    W ≈ d · q + c in groups of 32 along a row

Weights get four bits where that loses nothing: a group that llama.cpp stored as Q4_1 yields its codes q exactly, because its
minimum and maximum are codes 0 and 15. All other weights get eight bits. `QuantisedMatrix.of` takes codes as they are in a file
(`backbone.gguf.blocks`).

x is quantised to 16 bits, with a scale for each group of 32 (`simd.quantise_16`). So q · x is an integer sum without rounding, two
products per instruction. d and c have 16 bits, as in llama.cpp's files; the sums of x that c is multiplied by are float32. A
low-rank update B A would move W off its four-bit grid, so it stays separate, in float32.

A row's result does not depend on the other rows, to the bit (see `decode_step`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.cpu.job import Matrix
from everlong_models.kernels.cpu.matrix_product import ROWS
from everlong_models.kernels.cpu.simd import GROUP, PANEL, has_float16
from everlong_models.kernels.cpu.thread_pool import multiply, multiply_int8, pack_panels, quantise, write_bfloat16
from everlong_models.kernels.low_rank import Update

# How far a weight may be off its grid because of rounding in a file, in steps of the grid.
TOLERANCE = 0.02
_LEAST = 2.0**-10
"""Least magnitude of a matrix's largest weight. float16 scales below 2^-14 are subnormal, with steps of 2^-24: at code 255 the
error is less than a hundredth of this value."""


class Codes(NamedTuple):
    """A matrix (N, K) in codes, N a multiple of `PANEL` and K of `GROUP`, laid out as in `QuantiseJob`.

    `codes`: uint8, or int8 for codes with a sign. Two codes in a byte (N / PANEL, K / 2, LANES, 2), or one (N / PANEL, K / 2, 2, LANES, 2).
    `scales`: float16 (N / PANEL, K / GROUP, 2, PANEL): a group's step and minimum. With a sign: the steps of its first and second half.
    """

    codes: Tensor
    scales: Tensor

    @property
    def bits(self) -> int:
        """The size of a code: 4 or 8 bits."""
        return 4 if self.codes.dim() == 4 else 8


class QuantisedMatrix:
    """A quantised copy of `weight` (N, K), for which `can_quantise` must hold.

    `bias` (N,) or None; `update`: a low-rank update of the weight, or None. Internally N is padded to a multiple of `PANEL`.
    `table`: the matrix as a row of `decode_step.Matrix` fields; its addresses are valid as long as this object lives.
    The attribute `update` holds the update in bfloat16, for products of many rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, update: Update | None = None) -> None:
        more = -len(weight) % PANEL
        whole = F.pad(weight.detach().float(), (0, 0, 0, more)) if more else weight.detach().float()
        self._build(quantise_codes(whole), len(weight), bias, update)

    @classmethod
    def of(
        cls, codes: Codes, outputs: int, bias: Tensor | None = None, update: Update | None = None
    ) -> QuantisedMatrix:
        """Make the matrix that consists of the first `outputs` rows of `codes`. Keeps these tensors without a copy."""
        made = cls.__new__(cls)
        made._build(codes, outputs, bias, update)
        return made

    def with_update(self, update: Update, bias: Tensor | None) -> QuantisedMatrix:
        """Return this matrix with a low-rank update and a bias, which replace those that it has. Both share their codes."""
        codes = Codes(self._tensors[Matrix.CODES], self._tensors[Matrix.SCALES])
        return QuantisedMatrix.of(codes, self.outputs, bias, update)

    def _build(self, codes: Codes, outputs: int, bias: Tensor | None, update: Update | None) -> None:
        panels, half_inputs = codes.codes.shape[:2]
        more = panels * PANEL - outputs
        self.outputs, self.inputs, self.bits = outputs, 2 * half_inputs, codes.bits
        self._tensors = {Matrix.CODES: codes.codes, Matrix.SCALES: codes.scales}
        if bias is not None:
            self._tensors[Matrix.BIAS] = F.pad(bias.detach().float(), (0, more)).clone()
        self.update = None if update is None else (update[0].detach().bfloat16(), update[1].detach().bfloat16())
        if update is not None:
            a, b = (part.detach().float() for part in update)
            self._tensors |= {Matrix.A: a.contiguous().clone(), Matrix.B: pack_panels(F.pad(b, (0, 0, 0, more)))}
        self.table = np.zeros(len(Matrix), np.int64)
        sizes = {Matrix.BITS: self.bits, Matrix.RANK: 0 if update is None else len(update[0])}
        sizes |= {Matrix.N: outputs + more, Matrix.K: self.inputs, Matrix.SIGNED: codes.codes.dtype == torch.int8}
        for column, value in (sizes | {column: tensor.data_ptr() for column, tensor in self._tensors.items()}).items():
            self.table[column] = value

    @property
    def bias(self) -> Tensor | None:
        """The bias (N,), float32, or None."""
        bias = self._tensors.get(Matrix.BIAS)
        return None if bias is None else bias[: self.outputs]

    def __call__(self, x: Tensor) -> Tensor:
        """Return y (…, N) for `x` (…, K), float32. Raises `ValueError` for another K or type."""
        rows = x.reshape(-1, x.shape[-1]).split(ROWS)
        y = torch.cat([torch.from_numpy(multiply(self.table, part.numpy())) for part in rows])
        return y[:, : self.outputs].reshape(*x.shape[:-1], self.outputs)

    def multiply_int8(self, x: Tensor) -> Tensor:
        """Return x Wᵀ (B, N) for `x` (B, K), float32, without bias and update. x is rounded to 8 bits. `int8.has_int8` must hold.

        Raises `ValueError` for another K or type.
        """
        return multiply_int8(self.table, x)[:, : self.outputs]

    def transposed_bfloat16(self, scratch: Tensor) -> Tensor:
        """Return Wᵀ (K, N) without bias and update, rounded to bfloat16, in the memory of `scratch`, which must have enough numbers."""
        shape = self.inputs, int(self.table[Matrix.N])
        to = scratch[: shape[0] * shape[1]].view(shape)
        write_bfloat16(self.table, to)
        return to[:, : self.outputs]


def quantise_codes(weight: Tensor) -> Codes:
    """Quantise a matrix (N, K), float32, N a multiple of `PANEL` and K of `GROUP`: to four bits if that loses nothing, else to eight."""
    codes, scales, four = quantise(weight, 4, TOLERANCE)
    if not four:
        codes, scales, _ = quantise(weight, 8)
    return Codes(codes, scales)


def has_kernels() -> bool:
    """Return whether this processor has vector and float16 instructions, without which quantised products would be slow or crash."""
    return torch.backends.cpu.get_cpu_capability() != "DEFAULT" and has_float16()


def can_quantise(weight: Tensor) -> bool:
    """Return whether `QuantisedMatrix` supports `weight` (N, K) on this machine.

    The weight must be float32 on a CPU with vector and float16 instructions, and K a multiple of `GROUP`. Its largest magnitude must
    be 0, or from `_LEAST` to the largest float16, so that float16 can hold the scales.
    """
    if not (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[1] % GROUP == 0 and has_kernels()
    ):
        return False
    most = float(torch.linalg.vector_norm(weight.detach(), torch.inf))
    return most == 0 or _LEAST <= most <= torch.finfo(torch.float16).max
