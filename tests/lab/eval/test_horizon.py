"""How much of segment 1 is left, compared with readings of the memory itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from everlong_lab.eval.horizon import Curve, Retention, curves, draw_curves, retention
from everlong_models.errors import ConfigError
from everlong_models.memories.infinite.long_term import LayerMemory, LongTermConfig

CONFIG = LongTermConfig(segment_length=16, basis=32, samples=32, widths=(0.03, 0.06), ridge=0.1, tau=0.5)


def test_the_mark_is_what_the_memory_itself_reads() -> None:
    """Read a memory of ones, then zeros, at the same grid as the figures use."""
    torch.manual_seed(0)
    memory = LayerMemory(CONFIG, width=2, heads=1, head_dim=2).double()
    signal, marks = torch.zeros(1, 32, 2, dtype=torch.float64), []
    for k in range(5):
        new = torch.full((1, 16, 2), float(k == 0), dtype=torch.float64)
        signal = memory.extend(signal, new, [k])
        grid = memory.regression.basis.at(torch.arange(1, 33, dtype=torch.float64) / 32)
        marks.append(float((grid @ signal[0, :, 0]).abs().max()))
    assert [point.mark for point in retention(CONFIG, 5)] == pytest.approx(marks, rel=1e-6)


def test_gist_and_detail_are_what_a_linear_reader_reaches() -> None:
    """Least squares on many random documents recovers almost as much as the closed form, and not more."""
    torch.manual_seed(0)
    rows, updates, noise = 6000, 3, 0.05
    memory = LayerMemory(CONFIG, width=1, heads=1, head_dim=1).double()
    signal, first = torch.zeros(rows, 32, 1, dtype=torch.float64), torch.empty(0)
    for k in range(updates):
        new = torch.randn(rows, 16, 1, dtype=torch.float64)
        first = new[:, :, 0] if k == 0 else first
        signal = memory.extend(signal, new, [k] * rows).detach()
    grid = memory.regression.basis.at(torch.arange(1, 33, dtype=torch.float64) / 32)
    read = signal[:, :, 0] @ grid.T + noise * torch.randn(rows, 32, dtype=torch.float64)
    wanted = torch.cat([first, first.mean(1, keepdim=True)], dim=1)
    found = read @ torch.linalg.lstsq(read, wanted).solution
    told = 1 - (wanted - found).square().sum(0) / wanted.square().sum(0)
    point = retention(CONFIG, updates, noise=noise)[-1]
    assert point.gist == pytest.approx(float(told[-1]), abs=0.03)
    assert point.detail == pytest.approx(float(told[:-1].mean()), abs=0.03)
    assert 0.1 < point.detail < point.gist < 1


def test_a_constant_share_forgets_an_equal_one_does_not_and_attention_keeps() -> None:
    found = {curve.name: curve.points[-1].gist for curve in curves(CONFIG, updates=12, attended=(0.0, 0.5))}
    plain, even = found["plain, τ = 0.5"], found["plain, τ = k/(k+1)"]
    ignored, kept = (found[f"sticky, stratified, {share} of the attention on segment 1"] for share in ("0%", "50%"))
    assert plain < 0.05 < 0.3 < even
    assert ignored < 0.05 < 0.3 < kept


def test_the_horizon_is_the_last_update_before_half_is_gone() -> None:
    points = [Retention(k, 1.0, gist, 0.0) for k, gist in enumerate((1.0, 0.8, 0.5, 0.4, 0.6), start=1)]
    assert Curve("", points).horizon() == 3
    assert Curve("", points).horizon(0.9) == 1
    assert Curve("", points[:2]).horizon() == 2


def test_draws_follow_from_the_seed() -> None:
    drawing = CONFIG.model_copy(update={"sticky": "independent"})
    one, same, other = (retention(drawing, 4, attended=0.5, seed=seed) for seed in (0, 0, 1))
    assert one == same
    assert one != other


def test_what_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(ConfigError, match="updates=0"):
        curves(CONFIG, updates=0)
    with pytest.raises(ConfigError, match=r"attended=1\.5"):
        curves(CONFIG, updates=2, attended=(1.5,))
    with pytest.raises(ConfigError, match=r"noise=0"):
        curves(CONFIG, updates=2, noise=0.0)
    with pytest.raises(ConfigError, match="basis=31"):
        curves(CONFIG.model_copy(update={"basis": 31}), updates=2)


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    draw_curves(curves(CONFIG, updates=2), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
