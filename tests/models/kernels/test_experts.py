"""A mixture of experts computes what its formula says, with float and with quantised weights, and each row by itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from everlong_models.kernels.cpu.quantised_matrix import GROUP, can_quantise
from everlong_models.kernels.experts import MLP, Experts, QuantisedExperts, Router
from everlong_models.kernels.linear import Activation, Linear
from tests.models.q4_weights import q4_weights

WIDTH, INNER = 64, 96


def matrices(count: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Weights that four bits hold, other ones for each expert."""
    sizes = ((INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER))
    return [tuple(q4_weights(*size).roll(7 * n + place, 0) for place, size in enumerate(sizes)) for n in range(count)]


def expected(x: torch.Tensor, router: Router, weights: list, act=F.silu) -> torch.Tensor:
    """Every row by itself, every expert by its number."""
    found = torch.zeros_like(x)
    for n, row in enumerate(x):
        chance = (router.weight @ row).softmax(0)
        chosen = chance.argsort(descending=True)[: router.chosen].tolist()
        total = float(sum(chance[e] for e in chosen)) if router.normalised else 1.0
        for e in chosen:
            gate, up, down = weights[e]
            found[n] += chance[e] / total * (down @ (act(gate @ row) * (up @ row)))
    return found


@pytest.fixture(params=[(4, 2, True), (4, 1, False), (50, 8, True), (17, 17, False)], ids=str)
def mixture(request):
    count, chosen, normalised = request.param
    torch.manual_seed(1)
    return Router(torch.randn(count, WIDTH) * 0.3, chosen, normalised), matrices(count)


@torch.no_grad()
@pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU])
def test_with_float_weights(mixture, activation):
    router, weights = mixture
    experts = Experts(router, [MLP(*map(Linear, each)) for each in weights], activation)
    x = torch.randn(3, 7, WIDTH)
    act = F.silu if activation == Activation.SILU else lambda y: F.gelu(y, approximate="tanh")
    wanted = expected(x.flatten(0, 1), router, weights, act)
    torch.testing.assert_close(experts(x).flatten(0, 1), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")
class TestQuantised:
    @pytest.mark.parametrize("rows", [1, 2, 31, 300])
    @pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU])
    def test_rows_are_those_of_the_formula_and_independent(self, mixture, rows, activation):
        router, weights = mixture
        experts = QuantisedExperts.quantise(router, weights)
        x = torch.randn(rows, WIDTH)
        act = F.silu if activation == Activation.SILU else lambda y: F.gelu(y, approximate="tanh")
        found = experts(x, activation)
        torch.testing.assert_close(found, expected(x, router, weights, act), rtol=1e-3, atol=1e-3)
        for row in {0, rows // 2, rows - 1}:
            assert torch.equal(experts(x[row : row + 1], activation)[0], found[row])
        order = torch.randperm(rows)
        assert torch.equal(experts(x[order], activation), found[order])

    def test_any_number_of_threads(self, mixture):
        router, weights = mixture
        experts, x = (
            QuantisedExperts.quantise(router, weights),
            torch.randn(40, WIDTH),
        )
        before, results = torch.get_num_threads(), []
        try:
            for count in (1, 2, 16):
                torch.set_num_threads(count)
                results.append(experts(x, Activation.SILU))
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(result, results[0]) for result in results)

    def test_an_input_of_nan_harms_no_other_row(self, mixture):
        router, weights = mixture
        experts, x = (
            QuantisedExperts.quantise(router, weights),
            torch.randn(5, WIDTH),
        )
        alone = experts(x[1:], Activation.SILU)
        x[0] = torch.nan
        found = experts(x, Activation.SILU)
        assert found[0].isnan().any()
        assert torch.equal(found[1:], alone)

    def test_another_type_is_refused(self, mixture):
        router, weights = mixture
        experts = QuantisedExperts.quantise(router, weights)
        with pytest.raises(ValueError, match=r"x must be float32 on the CPU, got torch\.float64"):
            experts(torch.zeros(1, WIDTH, dtype=torch.float64), Activation.SILU)
