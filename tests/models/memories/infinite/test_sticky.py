"""Histograms and draws against loops; the draws are a function of their counters."""

from __future__ import annotations

import torch

from everlong_models.memories.infinite import sticky
from tests.models import naive_infinite as naive


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_histogram_is_the_mass_of_every_bin():
    mean, variance = random(2, 3, 4), random(2, 3, 4, seed=1) / 20
    found = sticky.histogram(mean, variance, 7)
    for row in range(2):
        densities = [[(float(mean[row, h, i]), float(variance[row, h, i])) for i in range(4)] for h in range(3)]
        torch.testing.assert_close(found[row], naive.histogram(densities, 7))
        grid = torch.linspace(0, 1, 7 * 2_000 + 1, dtype=torch.float64)
        total = sum(torch.distributions.Normal(m, v**0.5).log_prob(grid).exp() for head in densities for m, v in head)
        integrals = [torch.trapezoid(total[j * 2000 : (j + 1) * 2000 + 1], grid[:2001]) for j in range(7)]
        torch.testing.assert_close(found[row], torch.stack(integrals), rtol=1e-5, atol=1e-7)


def test_draws_invert_the_distribution():
    mass, uniform = random(3, 7), random(3, 50, seed=1)
    mass[1, 2:5] = 0
    found = sticky.sample_positions(mass, uniform)
    for row in range(3):
        expected = torch.tensor(naive.draw(mass[row], uniform[row].tolist()), dtype=torch.float64)
        torch.testing.assert_close(found[row], expected)
    assert len(found[0].unique()) == 50  # more points than bins
    assert not ((found[1] * 7 > 2) & (found[1] * 7 < 5)).any()


def test_an_empty_histogram_counts_as_uniform():
    uniform = random(1, 20)
    torch.testing.assert_close(sticky.sample_positions(torch.zeros(1, 7), uniform), uniform.sort().values)


def test_strata_hold_one_number_each():
    assert (sticky.stratify(random(2, 40)) * 40).floor().tolist() == [list(range(40))] * 2


def test_numbers_are_a_function_of_seed_segment_and_layer():
    seeds, segments = torch.tensor([0, 7, -3, 2**62]), torch.tensor([0, 1, 2, 10**6])
    found = sticky.uniforms(seeds, segments, 4, 100)
    for row in range(4):
        expected = naive.uniforms(int(seeds[row]), int(segments[row]), 4, 100)
        assert found[row].tolist() == expected
        assert torch.equal(sticky.uniforms(seeds[row : row + 1], segments[row : row + 1], 4, 100)[0], found[row])
    others = [sticky.uniforms(seeds + 1, segments, 4, 100), sticky.uniforms(seeds, segments + 1, 4, 100)]
    others.append(sticky.uniforms(seeds, segments, 5, 100))
    assert not any((found == other).any() for other in others)


def test_numbers_are_uniform():
    numbers = sticky.uniforms(torch.arange(20), torch.arange(20), 0, 5_000).flatten()
    counts = torch.histc(numbers, 10, 0, 1)
    assert float((counts / 10_000 - 1).abs().max()) < 0.04  # four standard deviations
    pairs = torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))
    assert abs(float(pairs[0, 1])) < 0.01
