"""The signal's mathematics against loops, linear solvers and numerical integration."""

from __future__ import annotations

import types

import pytest
import torch

from everlong_models.memories.infinite.continuous_attention import (
    Basis,
    Regression,
    divergence,
    expectation,
    operators,
    ridge,
    spread,
    stored_operators,
)
from tests.models import naive_infinite as naive

BASIS = Basis(12, (0.05, 0.1))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_basis_is_every_width_at_every_centre():
    positions = [-0.2, 0.0, 0.31, 1.0]
    expected = torch.stack([naive.psi(t, 12, (0.05, 0.1)) for t in positions])
    torch.testing.assert_close(BASIS.at(torch.tensor(positions, dtype=torch.float64)), expected)


@pytest.mark.parametrize("variance", [1e-4, 0.01, 0.3])
def test_the_closed_form_is_the_integral(variance):
    """E_p[ψ_j] = ∫ p(t) ψ_j(t) dt for a Gaussian p."""
    for mean in (0.02, 0.5, 0.9):
        density = naive.normal_on_grid(mean, variance**0.5)
        integral = torch.trapezoid(naive.psi_on_grid(12, (0.05, 0.1)) * density, naive.GRID)
        closed = expectation(
            torch.tensor(mean).double(), torch.tensor(variance).double(), BASIS.centres(), BASIS.deviations()
        )
        torch.testing.assert_close(closed, integral, rtol=1e-6, atol=1e-9)


def test_the_closed_form_has_the_integrals_gradient():
    mean, variance = (random(3).sigmoid().requires_grad_(), (random(3, seed=1).sigmoid() / 10).requires_grad_())
    assert torch.autograd.gradcheck(
        lambda m, v: expectation(m, v, BASIS.centres(), BASIS.deviations()), (mean, variance)
    )


def test_ridge_solves_the_normal_equations_of_the_papers_basis():
    design = Basis(512, (0.005, 0.01)).at(spread(1024, 0, 1))  # (T, N) = Fᵀ
    G, X = ridge(design, 0.5), random(1024, 3)
    normal = design.T @ design + 0.5 * torch.eye(512, dtype=torch.float64)
    assert float(torch.linalg.cond(normal)) > 1e4  # what float32 would lose
    torch.testing.assert_close(G.T @ X, torch.linalg.solve(normal, design.T @ X), rtol=1e-9, atol=1e-9)


def test_ridge_minimises_the_criterion():
    """Eq. 23: no step away from B = Gᵀ X makes ‖FᵀB − X‖² + λ‖B‖² smaller."""
    design, X = BASIS.at(spread(20, 0, 1)), random(20, 2)
    B = (ridge(design, 0.3).T @ X).requires_grad_()
    ((design @ B - X).square().sum() + 0.3 * B.square().sum()).backward()
    torch.testing.assert_close(B.grad, torch.zeros_like(B), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("count", "tau"), [(0, 0.6), (1, 0.6), (5, 0.6), (1, "k/(k+1)"), (5, "k/(k+1)")])
@pytest.mark.parametrize("length", [1, 8])
def test_the_operators_are_contraction_sampling_and_regression(count, tau, length):
    config = types.SimpleNamespace(basis=12, widths=(0.05, 0.1), samples=9, ridge=0.4, tau=tau)
    B, X = random(12, 3), random(length, 3, seed=1)
    share = 0.0 if count == 0 else tau if isinstance(tau, float) else count / (count + 1)
    maps = operators(Regression(BASIS, 9, 0.4), length, share)
    torch.testing.assert_close(maps.contract @ B + maps.new @ X, naive.update(B, X, count, config))


def test_operators_made_in_inference_mode_serve_training():
    settings = (Regression(BASIS, 7, 0.25), 6, 0.5, torch.device("cpu"), torch.float64)
    with torch.inference_mode():
        first = stored_operators(*settings)
    assert stored_operators(*settings) is first
    X = random(6, 3).requires_grad_()
    (first.new @ X).sum().backward()
    assert X.grad is not None


@pytest.mark.parametrize("deviation", [0.01, 0.05, 0.2])
def test_the_divergence_is_that_of_two_gaussians(deviation):
    """½ (σ²/σ0² − log(σ²/σ0²) − 1) = ∫ p log(p/q); Eq. 21 as printed differs by ½ log(σ/σ0)."""
    p, q = (torch.distributions.Normal(torch.tensor(0.4).double(), s) for s in (deviation, 0.05))
    t = torch.linspace(0.4 - 12 * deviation, 0.4 + 12 * deviation, 20_001, dtype=torch.float64)
    integral = torch.trapezoid(p.log_prob(t).exp() * (p.log_prob(t) - q.log_prob(t)), t)
    torch.testing.assert_close(divergence(torch.tensor(deviation**2).double(), 0.05), integral, rtol=1e-6, atol=1e-9)
