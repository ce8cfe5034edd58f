"""∞-former's horizon: how much of the first segment a long-term memory still holds after k updates.

This needs no training, because an update is linear in its input. After k segments the coefficients are

    B_k = Σ_j M_jk X_j,    M_kk = C_k,  M_jk = A_k M_j,k−1                              (Eq. 13-15; `continuous`)

with the contraction A_k and the regression C_k of new vectors. A sticky memory's A_k depends on where it takes its
samples, and so on the attention; given the samples it is as linear. Segments are independent, white and of unit variance.
The memory is read at an even grid with some noise. Then three figures describe what is left of X_1:

    mark     the strongest reading of a vector that all of segment 1 shares; 1 is the vector itself
    gist     how well the best linear reader recovers segment 1's mean from the readings: R², 1 is exact
    detail   the same for segment 1's single vectors

For sticky memories the attention is given: a share of it goes to the current position of segment 1, the rest is even.
With a share of 0 the attention prefers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from everlong_lab.eval.plot import save
from everlong_models.errors import ConfigError
from everlong_models.memories.infinite import sticky
from everlong_models.memories.infinite.continuous_attention import Basis, Regression, operators, ridge, spread
from everlong_models.memories.infinite.long_term import LongTermConfig


class Retention(NamedTuple):
    """What is left of segment 1 after `updates`; 1 is its own update. See the module for the figures."""

    updates: int
    mark: float
    gist: float
    detail: float


class Curve(NamedTuple):
    """A memory's retention, update by update."""

    name: str
    points: list[Retention]

    def horizon(self, least: float = 0.5) -> int:
        """Return the number of updates after which gist is still at least `least`, before it first falls below."""
        for point in self.points:
            if point.gist < least:
                return point.updates - 1
        return self.points[-1].updates


def curves(
    config: LongTermConfig, *, updates: int, attended: Sequence[float] = (0.1, 0.5), noise: float = 0.01
) -> list[Curve]:
    """Return the retention of plain, k/(k+1) and sticky memories (both ways of sampling) over `updates`.

    Everything else is as in `config`. `attended`: shares of attention on segment 1, for sticky memories. `noise`: standard
    deviation of a reading. Raises `ConfigError` for settings that cannot work.
    """
    config.check()
    if updates < 1:
        raise ConfigError("updates", updates, "must be at least 1")
    if not noise > 0:
        raise ConfigError("noise", noise, "must be greater than 0")
    for share in attended:
        if not 0 <= share <= 1:
            raise ConfigError("attended", share, "must be a share of the attention, from 0 to 1")
    plain = config.model_copy(update={"sticky": "off"})
    even = plain.model_copy(update={"tau": "k/(k+1)"})
    found = [
        Curve(f"plain, τ = {config.tau}", retention(plain, updates, noise=noise)),
        Curve("plain, τ = k/(k+1)", retention(even, updates, noise=noise)),
    ]
    for method in ("independent", "stratified"):
        sampling = plain.model_copy(update={"sticky": method})
        for share in attended:
            points = retention(sampling, updates, attended=share, noise=noise)
            found.append(Curve(f"sticky, {method}, {share:.0%} of the attention on segment 1", points))
    return found


def retention(
    config: LongTermConfig, updates: int, *, attended: float = 0.0, noise: float = 0.01, seed: int = 0
) -> list[Retention]:
    """Return what is left of segment 1 after 1 … `updates` segments of `config.segment_length` vectors."""
    basis = Basis(config.basis, config.widths)
    regression = Regression(basis, config.samples, config.ridge)
    grid = basis.at(spread(config.samples, 0, 1))  # (M, N): positions at which the memory is read
    length, points = config.segment_length, []
    place = 1.0  # segment 1 occupies [0, place]
    first = torch.empty(0)  # M_1k (N, S)
    others = torch.zeros(config.basis, config.basis, dtype=torch.float64)  # Σ_j>1 M_jk M_jkᵀ
    for k in range(1, updates + 1):
        tau = config.contraction(k - 1)
        update = operators(regression, length, tau)
        if k == 1:
            first = update.new
        else:
            contract = update.contract
            if config.sticky != "off":
                positions = _sample_positions(config, place, attended, seed, k)
                contract = ridge(basis.at(_layout(config, tau)), config.ridge)[: config.samples].T @ basis.at(positions)
                place = tau * float((positions <= place).double().mean())
            else:
                place *= tau
            first = contract @ first
            others = contract @ others @ contract.T + update.new @ update.new.T
        points.append(_measure(k, grid @ first, grid @ others @ grid.T, noise))
    return points


def _layout(config: LongTermConfig, tau: float) -> Tensor:
    """Return the positions at which an update puts the past's samples and the new vectors."""
    return torch.cat([spread(config.samples, 0, tau), spread(config.segment_length, tau, 1)])


def _sample_positions(config: LongTermConfig, place: float, attended: float, seed: int, update: int) -> Tensor:
    """Sample positions (M,) from attention whose share `attended` is on [0, `place`] and whose rest is even."""
    edges = torch.linspace(0, 1, config.bins + 1, dtype=torch.float64)
    here = (edges.clamp(max=place) / max(place, 1e-12)).diff()  # a bin across `place` gets its part
    mass = attended * here + (1 - attended) * edges.diff()
    uniform = sticky.uniforms(torch.tensor([seed]), torch.tensor([update]), 0, config.samples)
    if config.sticky == "stratified":
        uniform = sticky.stratify(uniform)
    return sticky.sample_positions(mass[None], uniform)[0]


def _measure(updates: int, first: Tensor, others: Tensor, noise: float) -> Retention:
    """Return the figures, from the readings' dependence on segment 1 (M, S) and their covariance due to the others (M, M).

    The best linear reader of white x from y = R x + e has R² = rᵀ(RRᵀ + cov e)⁻¹ r for each column r of R.
    """
    S = first.shape[1]
    total = first @ first.T + others
    total.diagonal().add_(noise**2)
    factor = torch.linalg.cholesky(total)
    mean = first.sum(1, keepdim=True) / S**0.5  # the column of the mean, scaled to unit variance
    recovered = torch.linalg.solve_triangular(factor, torch.cat([first, mean], dim=1), upper=False).square().sum(0)
    return Retention(updates, float(first.sum(1).abs().max()), float(recovered[-1]), float(recovered[:-1].mean()))


def draw_curves(found: Sequence[Curve], file: Path) -> None:
    """Plot mark, gist and detail over the updates as a PNG."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only a plot needs it

    figure = Figure(figsize=(9, 3), dpi=80, layout="constrained")
    for axes, quantity in zip(figure.subplots(1, 3), ("mark", "gist", "detail"), strict=True):
        for curve in found:
            axes.plot(
                [point.updates for point in curve.points],
                [getattr(point, quantity) for point in curve.points],
                label=curve.name,
                linewidth=1.2,
            )
        axes.set(title=quantity, xlabel="segments read", ylim=(0, 1.15), xlim=(1, None))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("left of segment 1")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    save(figure, file)
