"""A mixture of experts as the MLP of a layer.

`Experts` on a CPU; `GroupedExperts` on a GPU (`kernels.gpu.experts_kernel`); `QuantisedExperts` with quantised weights (`kernels.cpu.experts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.cpu import job as tables
from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.job import Matrix
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.kernels.gpu import experts_kernel, layer_kernels
from everlong_models.kernels.linear import Activation, Linear


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses experts. `weight` (E, D); `chosen`: how many for each row; `normalised`: whether their weights sum to 1."""

    weight: Tensor
    chosen: int
    normalised: bool

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers (B, k) of the experts of each row of `x` (B, D), and their weights (B, k)."""
        weights, numbers = F.softmax(F.linear(x, self.weight), -1, dtype=torch.float32).topk(self.chosen, dim=-1)
        if self.normalised:
            weights /= weights.sum(-1, keepdim=True)
        return numbers, weights.to(x.dtype)


@dataclass(frozen=True, slots=True)
class MLP:
    """The matrices of a gated MLP: a layer's only one, or one of its experts."""

    gate: Linear
    up: Linear
    down: Linear

    def inner(self, x: Tensor, activation: Activation) -> Tensor:
        """Return the input (…, F) of `down` for `x` (…, D)."""
        return self.up(x, times=self.gate(x, activation=activation))


@dataclass(frozen=True, slots=True)
class UngatedMLP:
    """The matrices of an MLP without a gate."""

    up: Linear
    down: Linear

    def inner(self, x: Tensor, activation: Activation) -> Tensor:
        """See `MLP`."""
        return self.up(x, activation=activation)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts with float weights, on a CPU."""

    router: Router
    experts: Sequence[MLP]
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        """Return the weighted sum (…, D) of the chosen experts' outputs for `x` (…, D)."""
        rows = x.flatten(0, -2)
        numbers, weights = self.router(rows)
        order = numbers.flatten().argsort(stable=True)  # pairs of a row and an expert, by expert
        counts = numbers.flatten().bincount(minlength=len(self.experts)).tolist()
        found = rows.new_empty(len(order), rows.shape[1])
        # Converted once, not for each product: in between, everything stays in the type of the weights.
        inputs = rows.to(self.experts[0].gate.dtype).index_select(0, order // numbers.shape[1]).split(counts)
        for expert, entering, leaving in zip(self.experts, inputs, found.split(counts), strict=True):
            if len(entering):
                leaving.copy_(expert.down(expert.inner(entering, self.activation)))
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        # One pass over the outputs: each row's are added up in the order of its experts.
        y = F.embedding_bag(places.view_as(numbers), found, per_sample_weights=weights, mode="sum")
        return y.view(x.shape)


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """A mixture of experts on a GPU. `both` (E, 2 F, D): gate, then up; `down` (E, D, F). Never waits for the GPU, so CUDA graphs can capture it."""

    router: Router
    both: Tensor
    down: Tensor
    activation: Activation

    def available(self) -> bool:
        """Return whether Triton can compile the kernels for this mixture (see `layer_kernels.compiles`)."""
        many = -(-experts_kernel.MANY * len(self.both) // self.router.chosen)

        def run() -> None:
            for rows in (1, many):
                self(self.both.new_zeros(rows, self.both.shape[2]))

        return layer_kernels.compiles(self.both, run)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the weighted sum (…, D) of the chosen experts' outputs for `x` (…, D)."""
        rows = x.flatten(0, -2)
        numbers, weights = self.router(rows)
        found, pairs = numbers.flatten().sort()
        ends = torch.searchsorted(found, torch.arange(len(self.both), device=x.device), right=True)
        both = experts_kernel.multiply(rows, self.both, pairs, ends)
        inner = layer_kernels.norm_gate(both[None], None, None, 0.0, self.activation)[0]
        outputs = experts_kernel.multiply(inner, self.down, pairs, ends).unflatten(0, numbers.shape)
        return (weights[:, None] @ outputs).view(x.shape)


class QuantisedExperts:
    """A mixture of experts with quantised weights.

    `matrices`: gate, up and down of each expert. `table`: the mixture as `job.Experts` fields; its addresses are valid as long as this object
    lives.
    """

    def __init__(self, router: Router, matrices: Sequence[Sequence[QuantisedMatrix]]) -> None:
        self.matrices = matrices
        self._router = router.weight.detach().float().contiguous().clone()
        self._matrices = np.stack([[matrix.table for matrix in expert] for expert in matrices])
        self.table = np.zeros(tables.EXPERT_FIELDS, np.int64)
        for field, value in (
            (tables.Experts.COUNT, len(matrices)), (tables.Experts.CHOSEN, router.chosen), (tables.Experts.NORMALISED, router.normalised),
            (tables.Experts.INNER, self._matrices[0, 0, Matrix.N]), (tables.Experts.ROUTER, self._router.data_ptr()),
            (tables.Experts.MATRICES, self._matrices.ctypes.data),
        ):  # fmt: skip
            self.table[field] = value

    @classmethod
    def quantise(cls, router: Router, matrices: Iterable[Sequence[Tensor]]) -> QuantisedExperts:
        """Quantise gate, up and down of each expert; `can_quantise` must hold for each."""
        return cls(router, [[QuantisedMatrix(matrix) for matrix in expert] for expert in matrices])

    def __call__(self, x: Tensor, activation: Activation) -> Tensor:
        """Return the weighted sum (…, D) of the chosen experts' outputs for `x` (…, D), float32."""
        rows = x.flatten(0, -2)
        parts = [
            thread_pool.mixture(self.table, part, gelu=activation == Activation.GELU) for part in rows.split(_ROWS)
        ]
        return torch.cat(parts).view(x.shape)


_ROWS = 1024
"""Rows that are computed at once. It bounds memory."""
