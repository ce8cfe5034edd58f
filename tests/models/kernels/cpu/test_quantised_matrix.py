"""`QuantisedMatrix` against float: four bits are exact where they are used, eight are close, and rows are independent."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from everlong_models.kernels.cpu.quantised_matrix import GROUP, QuantisedMatrix, can_quantise
from tests.models.q4_weights import q4_weights

pytestmark = pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")


def test_one_input_by_itself():
    weight, x = q4_weights(47, 96), torch.randn(96)
    assert torch.equal(QuantisedMatrix(weight)(x), QuantisedMatrix(weight)(x[None])[0])


@pytest.mark.parametrize(("bits", "error"), [(4, 4e-5), (8, 6e-3)])
@pytest.mark.parametrize("columns", [96, 1536])
@pytest.mark.parametrize("biased", [True, False])
def test_the_formula(columns, bits, error, biased):
    weight = q4_weights(47, columns) if bits == 4 else torch.randn(47, columns)
    bias = torch.randn(47) if biased else None
    x = torch.randn(2, 3, columns)
    layer, y = QuantisedMatrix(weight, bias), F.linear(x, weight, bias)
    assert layer.bits == bits
    assert layer(x).dtype == torch.float32
    assert layer(x).shape == y.shape
    assert float((layer(x) - y).norm() / y.norm()) < error


@pytest.mark.parametrize("columns", [96, 1536])
def test_activations_of_sixteen_bits_lose_nothing(columns):
    """Integers that use the full scale of each group are exact, up to the rounding of float32."""
    x = torch.randint(-32767, 32768, (5, columns)).float()
    x[:, ::GROUP] = 32767
    x[0] /= 1024
    x[1, GROUP:] = 0
    weight = q4_weights(47, columns)
    exact = x.double() @ weight.double().T
    assert float((QuantisedMatrix(weight)(x) - exact).abs().max() / exact.abs().max()) < 1e-6
    groups = (
        x.unflatten(1, (-1, GROUP)) * torch.logspace(-20, 8, columns // GROUP)[:, None]
    )  # each has a scale of its own
    exact = groups.flatten(1).double() @ weight.double().T
    assert float(((QuantisedMatrix(weight)(groups.flatten(1)) - exact) / exact).abs().max()) < 1e-4


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("weight", [q4_weights(48, 96), torch.randn(48, 96), torch.zeros(48, 96)])
def test_nan_stays_nan(number, weight):
    """And other rows do not change; magnitudes too small for a scale become 0."""
    x = torch.randn(3, 96)
    expected = QuantisedMatrix(weight)(x[2:])
    x[0, 37], x[1] = number, 1e-33 * x[1]
    found = QuantisedMatrix(weight)(x)
    assert not found[0].isfinite().any()
    assert found[1].abs().max() < 1e-30
    assert torch.equal(found[2:], expected)


def test_four_bits_are_taken_only_where_they_lose_nothing():
    weight = q4_weights(16, 64)
    assert QuantisedMatrix(weight).bits == 4
    weight[5, 7] += 0.2 * weight.unflatten(1, (-1, GROUP)).diff(dim=-1).abs().max() / 15
    assert QuantisedMatrix(weight).bits == 8
    assert QuantisedMatrix(torch.ones(16, 64)).bits == 4, "a group without a step"
    for row in (0, 15, 300):
        weight = q4_weights(301, 64)
        weight[row, 9] = torch.nan
        assert QuantisedMatrix(weight).bits == 8


def test_a_low_rank_update_stays_separate_from_four_bits():
    weight, bias, (a, b) = q4_weights(48, 96), torch.randn(48), (torch.randn(8, 96), torch.randn(48, 8) / 30)
    x = torch.randn(2, 3, 96)
    layer, plain, y = (
        QuantisedMatrix(weight, bias, (a, b)),
        QuantisedMatrix(weight, bias),
        F.linear(x, weight + b @ a, bias),
    )
    assert layer.bits == 4
    assert QuantisedMatrix(weight + b @ a).bits == 8
    assert float((y - F.linear(x, weight, bias)).norm() / y.norm()) > 0.3
    torch.testing.assert_close(layer(x) - plain(x), x @ (b @ a).T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer(x), y, rtol=1e-4, atol=1e-4)


def test_a_group_of_one_value_and_zeros():
    x = torch.randn(2, 64)
    for weight in (torch.full((16, 64), 0.375), torch.zeros(16, 64)):
        torch.testing.assert_close(QuantisedMatrix(weight)(x), x @ weight.T, rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours():
    torch.manual_seed(1)
    wide = QuantisedMatrix(q4_weights(160, 1536), None, (torch.randn(24, 1536), torch.randn(160, 24)))
    for layer, columns in (
        (QuantisedMatrix(q4_weights(160, 96)), 96),
        (QuantisedMatrix(torch.randn(160, 96)), 96),
        (wide, 1536),
    ):
        x = torch.randn(33, columns)
        y = layer(x)
        for rows in (1, 2, 7, 32):
            assert torch.equal(layer(x[:rows]), y[:rows])
            assert torch.equal(layer(x[-rows:]), y[-rows:])


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(16, 63),
        torch.zeros(16, 64, dtype=torch.float64),
        torch.zeros(16, 64, device="meta"),
        torch.randn(16, 64) * 1e-5,
        torch.randn(16, 64) * 1e5,
        torch.full((16, 64), torch.nan),
    ],
    ids=["columns", "type", "device", "small", "large", "no number"],
)
def test_matrices_that_cannot_be_quantised(weight):
    assert not can_quantise(weight)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("least", [1.0, 1e-2])
def test_extreme_scales_are_multiplied_accurately(size, least):
    """Scales have 16 bits, for groups of small weights, too."""
    torch.manual_seed(4)
    weight, x = torch.randn(32, 64) * size, torch.randn(5, 64)
    weight[:, 32:] *= least
    exact = x.double() @ weight.double().T
    assert can_quantise(weight)
    assert float((QuantisedMatrix(weight)(x) - exact).norm() / exact.norm()) < 0.012


def test_a_product_with_another_type_or_width():
    layer = QuantisedMatrix(q4_weights(48, 96))
    for x in (torch.zeros(2, 96, dtype=torch.float64), torch.zeros(2, 64)):
        with pytest.raises(ValueError, match="x must be float32"):
            layer(x)


def test_rows_that_are_not_contiguous():
    layer, x = QuantisedMatrix(q4_weights(48, 96)), torch.randn(5, 3, 96)
    assert torch.equal(layer(x[:, -1]), layer(x[:, -1].contiguous()))
