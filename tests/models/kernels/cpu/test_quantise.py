"""Quantised weights equal those computed with PyTorch's operations, to the bit: codes, steps and minimums."""

from __future__ import annotations

import pytest
import torch

from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.quantised_matrix import can_quantise
from everlong_models.kernels.cpu.simd import GROUP, PANEL
from tests.models.q4_weights import q4_weights

pytestmark = pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")


def naive_grids(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Codes and scales of a matrix (N, K), laid out as in `QuantiseJob`, and the largest distance of a weight from its grid."""
    groups = weight.unflatten(1, (-1, GROUP))
    least = groups.amin(-1, keepdim=True).half()
    d = ((groups.amax(-1, keepdim=True) - least.float()) / (2**bits - 1)).half()
    exact = (groups - least.float()) / torch.where(d > 0, d, 1).float()
    rounded = exact.round().clamp(0, 2**bits - 1)
    # (panels, halves, lanes, K / 2, 2) → (panels, K / 2, halves, lanes, 2)
    codes = rounded.to(torch.uint8).flatten(1).unflatten(1, (-1, 2)).unflatten(0, (-1, 2, PANEL // 2))
    panels = codes.permute(0, 3, 1, 2, 4)
    if bits == 4:
        panels = panels[:, :, 0] | panels[:, :, 1] << 4
    scales = torch.cat([d, least], dim=-1).unflatten(0, (-1, PANEL)).permute(0, 2, 3, 1)
    return panels, scales, float((exact - rounded).abs().max())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "weight", [q4_weights(160, 96), torch.randn(48, 64), torch.ones(16, 32), torch.randn(96, 64).T[:64, :32]]
)
def test_codes_and_scales_equal_pytorchs(threads, bits, weight):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        codes, scales, far = naive_grids(weight, bits)
        got = thread_pool.quantise(weight, bits)
        assert (torch.equal(got[0], codes), torch.equal(got[1], scales), got[2]) == (True, True, True)
        assert [thread_pool.quantise(weight, bits, share * far + 1e-9)[2] for share in (0.99, 1)] == [far == 0, True]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("weight", [torch.zeros(15, 32), torch.zeros(16, 40), torch.zeros(16, 32).double()])
def test_weights_that_cannot_be_quantised_are_refused(weight):
    with pytest.raises(ValueError, match=r"weight must be float32.*got torch\.float"):
        thread_pool.quantise(weight, 4)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 13, 31])
def test_nan_is_off_its_grid(number, place):
    weight = q4_weights(48, 96)
    weight[17, 32 + place] = number
    assert not thread_pool.quantise(weight, 4, 0.02)[2]
