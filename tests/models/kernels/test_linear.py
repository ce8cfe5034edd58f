"""`Linear` is y = act(x Wᵀ + b) · times + plus, packed or not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from everlong_models.kernels import linear
from everlong_models.kernels.linear import (
    Activation,
    Linear,
    activate,
    has_bfloat16,
    has_onednn,
    has_simd_kernels,
    matmul,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("wide", [40, 48])
def test_the_formula(dtype, biased, rows, wide):
    torch.manual_seed(0)
    weight, bias = torch.randn(wide, 24, dtype=dtype), torch.randn(wide, dtype=dtype) if biased else None
    x, other = torch.randn(2, rows, 24, dtype=dtype), torch.randn(2, rows, wide, dtype=dtype)
    y, layer = F.linear(x, weight, bias), Linear(weight, bias)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(layer(x), y, **close)
    torch.testing.assert_close(layer(x, activation=Activation.SILU), F.silu(y), **close)
    torch.testing.assert_close(layer(x, activation=Activation.GELU), F.gelu(y, approximate="tanh"), **close)
    torch.testing.assert_close(layer(x, activation=Activation.EXACT_GELU), F.gelu(y), **close)
    torch.testing.assert_close(layer(x, times=other), y * other, **close)
    torch.testing.assert_close(layer(x, plus=other), y + other, **close)


def test_only_float32_on_the_cpu_is_packed(monkeypatch):
    weight, avx2 = torch.randn(16, 8), torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert Linear(weight).in_panels == avx2
    assert Linear(weight).packed == (torch.backends.mkldnn.is_available() and not avx2)
    assert Linear(weight[:8]).packed == torch.backends.mkldnn.is_available()  # half a panel
    for other in (weight.double(), weight.bfloat16(), weight.to("meta")):
        assert not Linear(other).packed
        assert not Linear(other).in_panels
    monkeypatch.setattr(linear, "has_onednn", lambda x: False)
    monkeypatch.setattr(linear, "has_simd_kernels", lambda x: False)
    plain = Linear(weight)
    assert not plain.packed
    assert not plain.in_panels
    assert plain.weight.data_ptr() == weight.data_ptr()


def test_packed_products_have_float32_precision():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 512), torch.randn(64, 512)
    exact = x.double() @ weight.double().T
    error = (Linear(weight)(x) - exact).abs().max() / exact.abs().max()
    assert error < 1e-6  # TF32 and bfloat16 would be at 1e-4 and 1e-3


@pytest.mark.skipif(not has_bfloat16(), reason="this processor has no instructions for bfloat16")
@pytest.mark.parametrize("biased", [True, False])
def test_bfloat16(biased):
    """Its weights and products have eight bits; what is added does not lose any; a row is as it is alone."""
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 64) / 8, torch.randn(48) if biased else None
    x, other = torch.randn(2, 30, 64), torch.randn(2, 30, 48)
    layer, y = Linear(weight, bias, bfloat16=True), F.linear(x, weight, bias)
    for found, expected in (
        (layer(x), y),
        (layer(x, activation=Activation.SILU), F.silu(y)),
        (layer(x, activation=Activation.EXACT_GELU), F.gelu(y)),
        (layer(x, times=other), y * other),
        (layer(x, plus=1e4 * other), y + 1e4 * other),
    ):
        assert found.dtype == torch.float32
        assert (found - expected).abs().max() < 0.05
        assert not torch.equal(found, expected)
    few = x.bfloat16()
    assert (
        layer(few).dtype
        == layer(few, activation=Activation.SILU).dtype
        == layer(few, times=other.bfloat16()).dtype
        == few.dtype
    )
    assert torch.equal(layer(few, plus=other), layer(x, plus=other))
    for rows in (2, 7, 29):
        assert torch.equal(layer(x[:, :rows]), layer(x)[:, :rows])


def test_bfloat16_has_no_effect_without_instructions_for_it(monkeypatch):
    monkeypatch.setattr(linear, "has_bfloat16", lambda: False)
    weight, x = torch.randn(8, 8), torch.randn(3, 8)
    assert torch.equal(Linear(weight, bfloat16=True)(x), Linear(weight)(x))


@pytest.mark.skipif(not has_onednn(torch.zeros(1)), reason="this PyTorch has no oneDNN")
def test_matmul():
    torch.manual_seed(0)
    x, keys, values = torch.randn(30, 16), torch.randn(50, 16), torch.randn(16, 9)
    torch.testing.assert_close(matmul(x, keys[:33]), x @ keys[:33].T)
    torch.testing.assert_close(matmul(x, values.t()), x @ values)


@pytest.mark.skipif(not has_simd_kernels(torch.empty(0)), reason="not this package's kernels")
@pytest.mark.parametrize("threads", [1, 3, 6])
def test_an_activation_does_not_depend_on_the_number_of_rows(threads: int) -> None:
    """PyTorch divides a tensor among threads anywhere, and computes what does not fill a vector by other instructions."""
    x, before = 2 * torch.randn(600, 8960, generator=torch.Generator().manual_seed(0)), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(activate(x.clone(), Activation.SILU), torch.cat([F.silu(row) for row in x.split(1)]))
    finally:
        torch.set_num_threads(before)
