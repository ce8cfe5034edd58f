"""Which tokens own which part of a signal: by hand, by simulation token by token, and in the signal itself."""

from __future__ import annotations

import itertools

import pytest
import torch

from everlong_models.memories.infinite.long_term import LayerMemory, LongTermConfig, LongTermMemory
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from everlong_models.memories.infinite.voronoi import VoronoiCells, corners_of_samples
from tests.models import naive_infinite as naive
from tests.models.memory_contract import tokens
from tests.models.tiny import llama


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_cells_by_hand():
    """Two segments of two tokens and τ = ½: the tokens lie at ¼, ½, ¾, 1."""
    space = VoronoiCells.even(2, 2, 2, 0.5)
    assert space.before(doubles(0, 0.25, 0.5, 0.625, 1)).tolist() == [0, 1, 2, 2.5, 4]
    assert space.cells(torch.arange(5)).tolist() == [0, 0.375, 0.625, 0.875, 1]


def test_cells_of_samples_by_hand():
    """Both samples at ¼ of two tokens: half of the past's half is the first half of token 1; the rest is jumped over."""
    at, corners = corners_of_samples(doubles(0.5, 0.5, 2, 4)[None, None], doubles(0.5))
    assert at[0, 0].tolist() == [0, 0.25, 0.5, 0.5, 1]
    space = VoronoiCells(at[0, 0], corners[0, 0])
    assert space.before(doubles(0.125, 0.4, 0.5, 0.75)).tolist() == [0.25, 0.5, 2, 3]
    assert space.cells(torch.arange(5)).tolist() == [0, 0.5, 0.625, 0.875, 1]


def test_phrases_are_the_largest_windows_that_do_not_overlap():
    """1,000 tokens, of which 11 … 14 have half of the space and 501 … 502 a quarter."""
    space = VoronoiCells(doubles(0, 0.01, 0.51, 0.6, 0.85, 1), doubles(0, 10, 14, 500, 502, 1000))
    first, second, *rest = space.largest(5, 4)
    every = space.cells(torch.arange(4, 1001)) - space.cells(torch.arange(997))
    assert first.start == int(every.argmax()) in (9, 10)
    assert first.space == pytest.approx(float(every.max()))
    assert second.start == 400 + int(every[400:].argmax())
    assert second.space == pytest.approx(float(every[400:].max()))
    found = [first, second, *rest]
    assert all(a.end <= b.start or b.end <= a.start for a, b in itertools.combinations(found, 2))
    assert space.largest(1, 4) == [first]


@pytest.mark.parametrize(
    "space", [VoronoiCells.even(5, 8, 8, None), VoronoiCells.even(1, 2, 8, 0.5), VoronoiCells.even(1, 80, 80, 0.5)]
)
def test_equal_space_gives_no_phrases(space: VoronoiCells):
    assert space.largest(5, 8) == []


def test_plain_phrases_are_of_the_segments_that_have_more_than_others():
    """The newest of 12 have 0.3, 0.21, 0.147, 0.103 and 0.072 of the space, each of them 1/12 on average."""
    phrases = VoronoiCells.even(12, 100, 100, 0.7).largest(99, 10)
    assert {phrase.start // 100 for phrase in phrases} >= {8, 9, 10, 11}
    assert min(phrase.start for phrase in phrases) >= 790
    assert phrases[0].start >= 1100
    assert phrases[0].space == pytest.approx(10 * 0.3 / 100)


def simulated(tau, segments: int, first: int, length: int) -> list[float]:
    """Return the point of every token, by contracting all of them at each update."""
    at: list[float] = []
    for k in range(segments):
        n = length if k else first
        share = 0.0 if k == 0 else k / (k + 1) if tau is None else tau
        at = [share * t for t in at] + [share + (1 - share) * (i + 1) / n for i in range(n)]
    return at


@pytest.mark.parametrize("tau", [0.5, 0.75, 0.99, None])
@pytest.mark.parametrize(("segments", "first"), [(1, 7), (2, 12), (9, 5), (60, 12)])
def test_even_samples_are_simulated_token_by_token(tau, segments: int, first: int):
    at = simulated(tau, segments, first, 12)
    space, n = VoronoiCells.even(segments, first, 12, tau), len(at)
    torch.testing.assert_close(space.before(doubles(*at[-30:])), doubles(*range(1, n + 1))[-30:])
    borders = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(at)), 1.0]
    torch.testing.assert_close(space.cells(torch.arange(n + 1)), doubles(*borders), rtol=1e-9, atol=1e-9)


def line(points: list[tuple[float, float]], x: float) -> float:
    """Through ascending points, at x."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1 and x1 > x0:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise AssertionError(x)


@pytest.mark.parametrize("sticky", ["independent", "stratified"])
@pytest.mark.parametrize("tau", [0.6, "k/(k+1)"])
@torch.no_grad()
def test_sticky_samples_are_followed_from_update_to_update(sticky, tau):
    small = {"segment_length": 8, "basis": 10, "widths": (0.05, 0.1), "samples": 9, "bins": 7}
    model = InfiniteFormer(InfiniteConfig(**small, sticky=sticky, tau=tau, output="random", seed=3), llama()).eval()
    state, points = model.initial_state(), [[] for _ in range(2)]
    for count in range(5):
        state = model.read(tokens(model, 1, 8, count), state)
        share = model.config.contraction(count)
        spaces = model.memory.voronoi_cells(state.tensors, 8 * (count + 1))
        for layer in range(2):
            laid = [(0.0, 0.0)]
            if count:
                uniform = naive.uniforms(3, count, layer, 9)
                if sticky == "stratified":
                    uniform = [(m + u) / 9 for m, u in enumerate(uniform)]
                drawn = naive.draw(state["histogram"][0, layer], uniform)
                laid += [(share * (m + 1) / 9, line(points[layer], p)) for m, p in enumerate(drawn)]
            points[layer] = [*laid, (share, 8.0 * count), (1.0, 8.0 * (count + 1))]
            probe = [0.0137 + 0.98 * i / 50 for i in range(51)]
            expected = doubles(*(line(points[layer], t) for t in probe))
            torch.testing.assert_close(spaces[layer].before(doubles(*probe)), expected, rtol=1e-7, atol=1e-7)
    assert not torch.equal(state["places"][:, 0], state["places"][:, 1])


@pytest.mark.parametrize("sticky", ["off", "stratified"])
@pytest.mark.parametrize("tau", [0.7, "k/(k+1)"])
@torch.no_grad()
def test_the_signal_at_a_point_holds_the_tokens_of_its_cell(sticky, tau):
    """A memory of the tokens' own numbers, as a share of all: read anywhere, it tells the number that D tells."""
    config = LongTermConfig(
        segment_length=64, basis=256, widths=(0.01,), samples=256, ridge=1e-3, tau=tau, sticky=sticky, bins=32
    )
    memory = LongTermMemory(config, layers=1, width=1, heads=1, head_dim=1, dtype=torch.float64)
    one = memory[0]
    assert isinstance(one, LayerMemory)
    one.gate = lambda x: x  # store the inputs unchanged
    state = memory.empty(1)
    attention = torch.full((1, 1, 32), 0.2, dtype=torch.float64)
    attention[..., 5:9] = 3  # a region that sticks
    for k in range(4):
        numbers = (torch.arange(64, dtype=torch.float64) + 64 * k + 1) / 256
        state = memory.update(state, numbers[None, None, :, None], attention if sticky != "off" else None)
    (space,) = memory.voronoi_cells(state, 256)
    t = torch.linspace(0.05, 0.95, 60, dtype=torch.float64)
    signal = (one.regression.basis.at(t) @ state["coefficients"][0, 0])[:, 0] * 256
    error = (signal - space.before(t)).abs()
    assert float(error.median()) < 1
    assert float(error.quantile(0.9)) < 12  # at the borders, where it jumps, a signal of Gaussians is smooth
