"""Products of many rows with activations in 8 bits: they are exact for the rounded activations, and no row depends on another."""

from __future__ import annotations

import pytest
import torch

from everlong_models.kernels.cpu.products.int8 import has_int8
from everlong_models.kernels.cpu.quantised_matrix import Codes, QuantisedMatrix
from everlong_models.kernels.cpu.simd import GROUP, LANES, PANEL
from everlong_models.kernels.cpu.thread_pool import multiply_int8

pytestmark = pytest.mark.skipif(not has_int8(), reason="this processor has no AVX-512 VNNI")

KINDS = ["4 bits", "8 bits", "signed"]


def matrix(kind: str, outputs: int, inputs: int) -> QuantisedMatrix:
    """Make a matrix with random codes."""
    generator = torch.Generator().manual_seed(0)
    if kind == "signed":
        shape = outputs // PANEL, inputs // 2, 2, LANES, 2
        codes = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
        steps = torch.rand(outputs // PANEL, inputs // GROUP, 2, PANEL, generator=generator) * 0.01
        return QuantisedMatrix.of(Codes(codes, steps.half()), outputs)
    if kind == "8 bits":
        return QuantisedMatrix(torch.randn(outputs, inputs, generator=generator))
    codes = torch.randint(0, 16, (outputs, inputs // GROUP, GROUP), generator=generator).float()
    codes[..., 0], codes[..., 1] = 0, 15
    steps = (torch.rand(outputs, inputs // GROUP, 1, generator=generator) * 0.01 + 0.005).half().float()
    made = QuantisedMatrix((codes * steps - (8 * steps).half().float()).view(outputs, inputs))
    assert made.bits == 4
    return made


def weights(of: QuantisedMatrix) -> torch.Tensor:
    """Return the weights (N, K): multiplying by the identity in 16 bits is exact."""
    return of(torch.eye(of.inputs)).t()


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Return `x` (B, K) rounded to 127 steps of the largest magnitude of each group."""
    groups = x.unflatten(-1, (-1, GROUP))
    steps = groups.abs().amax(-1, keepdim=True) / 127
    return torch.where(steps > 0, (groups / steps).round() * steps, groups).flatten(-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), [(PANEL, GROUP), (3 * PANEL, 5 * GROUP), (160, 192)])
@pytest.mark.parametrize("rows", [1, 6, 23, 400])
def test_it_multiplies_what_was_rounded(kind: str, outputs: int, inputs: int, rows: int) -> None:
    of, x = matrix(kind, outputs, inputs), torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1))
    expected = rounded(x).double() @ weights(of).double().t()
    found = of.multiply_int8(x)
    assert found.shape == (rows, outputs)
    # One activation in some thousands is so near the middle of two steps that the kernel rounds it the other way.
    assert (found - expected).norm() < 1e-3 * expected.norm()
    exact = x.double() @ weights(of).double().t()
    assert (found - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_activations_on_the_grid_lose_nothing(kind: str) -> None:
    generator = torch.Generator().manual_seed(2)
    of, x = matrix(kind, 96, 128), torch.randint(-127, 128, (30, 128), generator=generator).float()
    x[:, ::GROUP] = 127
    expected = x.double() @ weights(of).double().t()
    assert (of.multiply_int8(x) - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_on_no_other_row_and_on_no_number_of_threads(kind: str) -> None:
    of, x = matrix(kind, 3 * PANEL, 320), torch.randn(900, 320, generator=torch.Generator().manual_seed(3))
    found, before = of.multiply_int8(x), torch.get_num_threads()
    for first, last in ((0, 1), (5, 12), (380, 390), (897, 900)):
        assert torch.equal(of.multiply_int8(x[first:last]), found[first:last])
    torch.set_num_threads(1)
    try:
        assert torch.equal(of.multiply_int8(x), found)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_of_zeros_and_of_numbers_that_are_not_finite(kind: str, value: float) -> None:
    of, x = matrix(kind, PANEL, 64), torch.zeros(3, 64)
    x[1, 40] = value
    found = of.multiply_int8(x)
    assert not found[[0, 2]].any()
    assert found[1].isnan().all(), "the whole row is NaN"


def test_other_shapes_and_types_are_refused() -> None:
    of = matrix("4 bits", PANEL, 64)
    for x in (torch.zeros(2, 32), torch.zeros(2, 64, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"x must be float32 of shape \(rows, 64\)"):
            multiply_int8(of.table, x)
