"""Products with 16-bit activations: with AVX-512 VNNI they have the same bits as with vectors of eight numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.extending import intrinsic

from everlong_models.kernels.cpu.primitives import address
from everlong_models.kernels.cpu.products.int8 import has_int8
from everlong_models.kernels.cpu.products.int16 import _narrow, _wide
from everlong_models.kernels.cpu.simd import GROUP, PANEL, procedure

GROUPS = 5
K = GROUPS * GROUP


def compiled(write: Callable[..., None]) -> Callable[..., None]:
    """Compile the product that `write` writes, for arrays."""

    @intrinsic
    def dots(_context, codes, scales, x, sums, y, groups, x_stride, sums_stride, y_stride):
        return procedure(9, write)

    @njit
    def multiply(codes, scales, x, sums, y):
        dots(address(codes), address(scales), address(x), address(sums), address(y), GROUPS, K // 2, 2 * GROUPS, PANEL)

    return multiply


def arguments(bits: int, rows: int, *, signed: bool) -> list[Any]:
    """Make codes, scales, x and sums at random, the largest numbers among them."""
    random = np.random.default_rng(rows)
    codes = random.integers(0, 256, K * PANEL * bits // 8, np.uint8)
    codes[:8] = 0, 255, 128, 127, 0, 255, 128, 127
    x = random.integers(-32767, 32768, (rows, K)).astype(np.int16)
    x[:, : 2 * GROUP] = random.choice([-32767, 32767], (rows, 2 * GROUP))
    scales = random.random((GROUPS, 2, PANEL)).astype(np.float16).view(np.uint16)  # numba takes no float16
    if signed:
        codes[8 : 2 * PANEL * GROUP] = 128
    return [codes, scales, x, random.standard_normal((rows, GROUPS, 2)).astype(np.float32)]


@pytest.mark.skipif(not has_int8(), reason="this processor has no AVX-512 VNNI")
@pytest.mark.parametrize("rows", [6, 4, 2, 1])
@pytest.mark.parametrize(("bits", "signed"), [(4, False), (8, False), (8, True)])
def test_both_variants_have_the_same_bits(bits: int, signed: bool, rows: int) -> None:
    found = []
    for make in (_narrow, _wide):
        y = np.full((rows, PANEL), np.nan, np.float32)
        compiled(make(bits, rows, signed=signed))(*arguments(bits, rows, signed=signed), y)
        found.append(y)
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(*found)
