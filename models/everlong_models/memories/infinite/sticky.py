"""Sticky memories (∞-former, section 3.3): sample the past where the segment attended to it.

The attention of a segment over the signal becomes a histogram of D bins,

    p(d_j) ∝ Σ_h Σ_i ∫_{d_j} N(t; μ_hi, σ_hi²) dt                                                      (Eq. 16)
    ∫_a^b N(t; μ, σ²) dt = ½ (erf((b−μ)/(σ√2)) − erf((a−μ)/(σ√2)))          (Eq. 17, with its normalisation)

from which M positions are sampled. The random numbers come from a counter-based generator: they are a function of the
row's seed, its segment and the layer. So a replay is exact, and no row depends on other rows of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from everlong_models.splitmix import GOLDEN, shift_right, splitmix64


def histogram(mean: Tensor, variance: Tensor, bins: int) -> Tensor:
    """Return Eq. 16 before normalisation: the mass (B, bins) that densities (B, H, T) give to equal bins of [0, 1]."""
    edges = torch.linspace(0, 1, bins + 1, dtype=mean.dtype, device=mean.device)
    below = 0.5 * torch.erf((edges - mean[..., None]) / (variance[..., None] * 2).sqrt())  # (B, H, T, bins + 1)
    return below.diff(dim=-1).sum(dim=(1, 2))


def sample_positions(histogram: Tensor, uniform: Tensor) -> Tensor:
    """Return positions in [0, 1] (B, M), ascending, float64: the inverse CDF of `histogram` (B, bins) at `uniform` (B, M).

    Inside its bin a position is uniform; sampling bins alone would give at most `bins` distinct points. An all-zero
    histogram counts as a uniform one.
    """
    mass = histogram.double().clamp_min(0)
    mass = torch.where(mass.sum(-1, keepdim=True) > 0, mass, 1.0)
    mass = mass / mass.sum(-1, keepdim=True)
    upto = mass.cumsum(-1)
    bins = histogram.shape[-1]
    index = torch.searchsorted(upto, uniform.contiguous(), right=True).clamp_max(bins - 1)  # (B, M)
    chosen = mass.gather(-1, index)
    inside = (uniform - (upto.gather(-1, index) - chosen)) / chosen.clamp_min(torch.finfo(torch.float64).tiny)
    return ((index + inside.clamp(0, 1)) / bins).sort(dim=-1).values


def stratify(uniform: Tensor) -> Tensor:
    """Turn M independent uniform numbers (B, M) into one number from each of M equal strata of [0, 1]."""
    M = uniform.shape[-1]
    return (torch.arange(M, dtype=uniform.dtype, device=uniform.device) + uniform) / M


def uniforms(seed: Tensor, segment: Tensor, layer: int, count: int) -> Tensor:
    """Return numbers in [0, 1[ (B, count), float64: a function of a row's `seed` and `segment` (B,) int64, and of `layer`."""
    key = splitmix64(splitmix64(splitmix64(seed) + segment * GOLDEN) + torch.full_like(seed, layer) * GOLDEN)
    index = torch.arange(1, count + 1, device=seed.device)
    return shift_right(splitmix64(key[:, None] + index * GOLDEN), 11).double() * 2.0**-53
