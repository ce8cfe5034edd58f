"""The ∞-former's equations, written as loops and as the paper prints them (errata apart), without the package's code.

All in float64. B_NE: coefficients, X_TE: vectors. Attention is integrated numerically, not in closed form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GRID = torch.linspace(-2, 3, 20_001, dtype=torch.float64)
MASK = (1 << 64) - 1


def normal(t: float, mean: float, deviation: float) -> float:
    return math.exp(-((t - mean) ** 2) / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))


def basis(N: int, widths: tuple[float, ...]) -> list[tuple[float, float]]:
    """(μ_j, σ_j) of every basis function: each width at N / len(widths) centres."""
    n = N // len(widths)
    return [(i / (n - 1), width) for width in widths for i in range(n)]


def psi(t: float, N: int, widths: tuple[float, ...]) -> Tensor:
    return torch.tensor([normal(t, *function) for function in basis(N, widths)], dtype=torch.float64)


def psi_on_grid(N: int, widths: tuple[float, ...]) -> Tensor:
    """ψ_j over GRID, (N, points)."""
    return torch.stack([normal_on_grid(mean, width) for mean, width in basis(N, widths)])


def normal_on_grid(mean: float, deviation: float) -> Tensor:
    return torch.exp(-((GRID - mean) ** 2) / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))


def regress(X_TE: Tensor, positions: list[float], N: int, widths: tuple[float, ...], penalty: float) -> Tensor:
    """Eq. 23 by its normal equations: (F Fᵀ + λI) B = F X."""
    F = torch.stack([psi(t, N, widths) for t in positions], dim=1)  # (N, T)
    return torch.linalg.solve(F @ F.T + penalty * torch.eye(N, dtype=torch.float64), F @ X_TE)


def update(B_NE: Tensor, X_TE: Tensor, count: int, config, sampled: list[float] | None = None) -> Tensor:
    """Eq. 13-15. `sampled`: where a sticky memory reads its past, in [0, 1]."""
    N, M, T = config.basis, config.samples, X_TE.shape[0]
    if count == 0:
        return regress(X_TE, [i / T for i in range(1, T + 1)], N, config.widths, config.ridge)
    tau = count / (count + 1) if config.tau == "k/(k+1)" else config.tau
    laid = [tau * m / M for m in range(1, M + 1)]
    read = [t / tau for t in laid] if sampled is None else sampled
    past = torch.stack([B_NE.T @ psi(t, N, config.widths) for t in read])
    positions = laid + [tau + (1 - tau) * i / T for i in range(1, T + 1)]
    return regress(torch.cat([past, X_TE]), positions, N, config.widths, config.ridge)


def gate(X_TE: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Eq. 18 with a full convolution `weight` (E, E, 3), or a depthwise one (E, 1, 3)."""
    if weight.shape[1] == 1:
        weight = weight * torch.eye(len(bias), dtype=torch.float64)[:, :, None]
    T, out = X_TE.shape[0], torch.zeros_like(X_TE)
    for t in range(T):
        total = bias.clone()
        for k in (-1, 0, 1):
            if 0 <= t + k < T:
                total += weight[:, :, k + 1] @ X_TE[t + k]
        out[t] = torch.sigmoid(total) * X_TE[t]
    return out


def attend(B_NE: Tensor, queries_HTd: Tensor, memory) -> tuple[Tensor, list[list[tuple[float, float]]]]:
    """Eq. 8-12 for one row: Z_LTM (T, E), and (μ, σ²) of every head and query."""
    config, (H, T, d) = memory.config, queries_HTd.shape
    grid = psi_on_grid(config.basis, config.widths)
    contexts, densities = [], []
    for h in range(H):
        K = B_NE @ memory.key.weight[h * d : (h + 1) * d].T
        V = B_NE @ memory.value.weight[h * d : (h + 1) * d].T
        rows, seen = [], []
        for i in range(T):
            scores = K @ queries_HTd[h, i] / math.sqrt(d)  # (N,)
            mean = 1 / (1 + math.exp(-float(memory.affine[h, 0] @ scores + memory.bias[h, 0])))
            variance = math.log1p(math.exp(float(memory.affine[h, 1] @ scores + memory.bias[h, 1])))
            variance = max(variance, config.min_variance)
            density = normal_on_grid(mean, math.sqrt(variance))
            rows.append(V.T @ torch.trapezoid(grid * density, GRID))
            seen.append((mean, variance))
        contexts.append(torch.stack(rows))
        densities.append(seen)
    return torch.cat(contexts, dim=1) @ memory.output.weight.T, densities


def histogram(densities: list[list[tuple[float, float]]], bins: int) -> Tensor:
    """Eq. 16 and 17, not normalised."""
    mass = torch.zeros(bins, dtype=torch.float64)
    for head in densities:
        for mean, variance in head:
            for j in range(bins):
                a, b = ((edge - mean) / math.sqrt(2 * variance) for edge in (j / bins, (j + 1) / bins))
                mass[j] += 0.5 * (math.erf(b) - math.erf(a))
    return mass


def splitmix(state: int) -> int:
    """One output of the generator, of Python's integers."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def uniforms(seed: int, segment: int, layer: int, count: int) -> list[float]:
    golden = 0x9E3779B97F4A7C15
    key = splitmix(splitmix(splitmix(seed) + segment * golden) + layer * golden)
    return [(splitmix(key + i * golden) >> 11) / 2**53 for i in range(1, count + 1)]


def draw(mass: Tensor, uniform: list[float]) -> list[float]:
    """Positions by walking through the bins until the probability is used up; ascending."""
    probabilities = (mass / mass.sum()).tolist()
    positions = []
    for u in uniform:
        left = u
        for j, p in enumerate(probabilities):  # noqa: B007
            if left < p:
                break
            left -= p
        positions.append((j + left / p) / len(probabilities))
    return sorted(positions)
