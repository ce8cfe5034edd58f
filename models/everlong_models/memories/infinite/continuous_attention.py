"""Continuous attention over a signal of Gaussian basis functions (∞-former, sections 2.2 and 3.2): pure functions.

A sequence of T vectors X at positions t_i in [0, 1] becomes a signal of N coefficients a dimension,

    X̄(t) = Bᵀ ψ(t),   ψ_j(t) = N(t; μ_j, σ_j²)                                                    (Eq. 4, 7)
    Bᵀ = Xᵀ G,         G = Fᵀ (F Fᵀ + λI)⁻¹,   F = [ψ(t_1) … ψ(t_T)]                                (Eq. 5, 23)

A Gaussian density over [0, 1] attends to it in closed form, since the product of two Gaussians integrates to one:

    E_p[ψ_j] = ∫ N(t; μ, σ²) N(t; μ_j, σ_j²) dt = N(μ; μ_j, σ² + σ_j²)                            (for Eq. 6, 11)

An update adds T new vectors: it contracts the signal to [0, τ], reads M samples of it, and regresses samples and new
vectors together (Eq. 13-15). With evenly spaced samples the update is linear in B and X, with constant operators:

    B' = G_pastᵀ Ψ B + G_newᵀ X,   Ψ = [ψ(t_1/τ) … ψ(t_M/τ)]ᵀ
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


def spread(count: int, low: float, high: float) -> Tensor:
    """Return `count` linearly spaced positions in ]low, high], float64: t_i = i / L of section 2.2, rescaled."""
    return low + (high - low) * torch.arange(1, count + 1, dtype=torch.float64) / max(count, 1)


def expectation(mean: Tensor, variance: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
    """Return E_p[ψ] (…, N) of p = N(`mean`, `variance`) (…), for a basis of `widths` (W,) at each of `centres` (n,), N = W·n.

    A `variance` of zero gives ψ(mean) itself. To touch the large tensors (queries × N) as little as possible, all widths
    share the distances, and the normalisation is added to the exponent.
    """
    variance = variance[..., None] + widths.square()  # (…, W)
    distance = (mean[..., None] - centres).square()  # (…, n)
    normalisation = -0.5 * (2 * math.pi * variance).log()
    exponent = distance[..., None, :] * (-0.5 / variance)[..., None]
    return exponent.add_(normalisation[..., None]).exp_().flatten(-2)


@dataclass(frozen=True)
class Basis:
    """N = `functions` Gaussians: each of `widths` (standard deviations) at N / len(widths) even centres on [0, 1]."""

    functions: int
    widths: tuple[float, ...]

    def centres(self) -> Tensor:
        """Return the n = N / len(widths) centres (n,), float64. ψ_j has the centre j mod n and the width j div n."""
        return torch.linspace(0, 1, self.functions // len(self.widths), dtype=torch.float64)

    def deviations(self) -> Tensor:
        """Return `widths` as a tensor (W,), float64."""
        return torch.tensor(self.widths, dtype=torch.float64)

    def at(self, t: Tensor) -> Tensor:
        """Return ψ(t), (…, N) float64, of positions `t` (…) on the CPU."""
        return expectation(t.double(), torch.zeros_like(t), self.centres(), self.deviations())


@dataclass(frozen=True)
class Regression:
    """The settings of an update: the basis, M = `samples` of the past, and the ridge penalty λ = `penalty`."""

    basis: Basis
    samples: int
    penalty: float


class Operators(NamedTuple):
    """The matrices of one update: B' = `past` · X_past + `new` · X_new; with even samples the first term is `contract` · B."""

    past: Tensor  # (N, M) = G_pastᵀ
    new: Tensor  # (N, T) = G_newᵀ
    contract: Tensor  # (N, N)


def ridge(design: Tensor, penalty: float) -> Tensor:
    """Return G (T, N) of Eq. 5 for `design` = Fᵀ (T, N): solves the normal equations by Cholesky in float64.

    The condition number reaches 10⁶ with the paper's bases: too much for float32.
    """
    design = design.double()
    normal = design.T @ design
    normal.diagonal().add_(penalty)
    return torch.cholesky_solve(design.T, torch.linalg.cholesky(normal)).T


def operators(regression: Regression, length: int, tau: float) -> Operators:
    """Return the matrices of an update by `length` new vectors with a contraction by `tau`, in float64.

    The past's samples are placed on ]0, τ] and the new vectors on ]τ, 1]. `tau` = 0 is the first update: there is no
    past, and the new vectors get all of [0, 1].
    """
    basis, samples = regression.basis, regression.samples if tau else 0
    positions = torch.cat([spread(samples, 0, tau), spread(length, tau, 1)])
    G = ridge(basis.at(positions), regression.penalty)
    past, new = G[:samples].T.contiguous(), G[samples:].T.contiguous()
    return Operators(past, new, past @ basis.at(spread(samples, 0, 1)))


@lru_cache(maxsize=32)
def stored_operators(
    regression: Regression, length: int, tau: float, device: torch.device, dtype: torch.dtype
) -> Operators:
    """Return cached `operators`, rounded to `dtype`, on `device`. They depend on positions only."""
    # Ordinary tensors even if the caller is in inference mode: the next caller may be training.
    with torch.inference_mode(False), torch.no_grad():
        return Operators(*(matrix.to(device, dtype) for matrix in operators(regression, length, tau)))


def divergence(variance: Tensor, prior: float) -> Tensor:
    """Return the KL divergence of N(μ, `variance`) from N(μ, `prior`²): ½ (σ²/σ0² − log(σ²/σ0²) − 1).

    This is Eq. 21 with its logarithm corrected: the paper prints log(σ/σ0).
    """
    ratio = variance / prior**2
    return 0.5 * (ratio - ratio.log() - 1)
