"""The numba kernel that writes a quantised matrix as bfloat16, for a product of many rows.

Prefill multiplies hundreds of rows by each matrix. Processors with AMX or AVX512-BF16 do that in bfloat16 several times as fast as with 16-bit integers
(docs/research/lab-notes.md), and the matrix that is written fits the cache. Threads take columns of panels, as in `decode_step`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from llvmlite import ir
from numba import carray
from numba.extending import intrinsic

from everlong_models.kernels.cpu.job import FIELDS, LINE
from everlong_models.kernels.cpu.primitives import fetch_add
from everlong_models.kernels.cpu.simd import (
    GROUP,
    INTS,
    LANES,
    PAIRS_8,
    PAIRS_16,
    PANEL,
    SHORTS,
    VECTOR,
    Code,
    procedure,
)

_PANELS = 4
"""Panels in a part: their outputs for one k fill two cache lines."""


class DequantiseJob(IntEnum):
    """The fields of a job: sizes and addresses of a `QuantisedMatrix`. `SCRATCH`, `SCRATCH_SIZE` and `COUNTERS` as in `DecodeJob`."""

    N = 0
    SCRATCH = 2
    SCRATCH_SIZE = 3
    COUNTERS = 4
    K = 5
    BITS = 6
    SIGNED = 7
    CODES = 8
    SCALES = 9
    TO = 10  # bfloat16 (K, N)


def _to_bfloat16(code: Code, x: ir.Value) -> ir.Value:
    """Round to the nearest bfloat16, half to even. The numbers must be finite."""
    b, bits = code.builder, code.builder.bitcast(x, INTS)
    one, half, high = (ir.Constant(INTS, [number] * LANES) for number in (1, 0x7FFF, 16))
    even = b.and_(b.lshr(bits, high), one)
    return b.trunc(b.lshr(b.add(bits, b.add(even, half)), high), SHORTS)


def _write_group(bits: int, *, signed: bool) -> Any:
    """Make the intrinsic that writes one group of one panel: `GROUP` rows of `PANEL` outputs, `stride` bytes apart."""
    size, wide, halves = 2 * PANEL * bits // 8, PANEL // LANES, 2 if signed else 1

    def write(code, codes, scales, to, stride):
        b = code.builder
        low, high = (ir.Constant(INTS, [number] * LANES) for number in (0xFFFF, 16))

        def pairs(address: ir.Value) -> list[ir.Value]:
            """Load the codes of two k for all outputs, as 16-bit integers with the two k interleaved."""
            vectors = []
            for part in range(size // (2 * LANES)):
                extend = b.sext if signed else b.zext
                whole = extend(code.load(b.add(address, code.number(2 * LANES * part)), PAIRS_8), PAIRS_16)
                mask = ir.Constant(PAIRS_16, [15] * 16)
                vectors += [whole] if bits == 8 else [b.and_(whole, mask), code.high(whole)]
            return vectors

        def singles(pair: ir.Value) -> tuple[ir.Value, ir.Value]:
            """Separate two k."""
            whole = b.bitcast(pair, INTS)
            if signed:
                return b.ashr(b.shl(whole, high), high), b.ashr(whole, high)
            return b.and_(whole, low), b.lshr(whole, high)

        least = [code.half(scales, PANEL + LANES * part) for part in range(wide)]
        for half in range(halves):
            steps = [code.half(scales, PANEL * half + LANES * part) for part in range(wide)]
            count = code.number(GROUP // 2 // halves)
            with code.loop(count) as k:
                at = b.add(code.number(GROUP // 2 // halves * half), k.index)
                for part, pair in enumerate(pairs(b.add(codes, b.mul(at, code.number(size))))):
                    for n, single in enumerate(singles(pair)):
                        q = b.sitofp(single, VECTOR)
                        w = b.fmul(steps[part], q) if signed else code.fma(steps[part], q, least[part])
                        row = b.add(to, b.mul(b.add(b.mul(at, code.number(2)), code.number(n)), stride))
                        code.store(_to_bfloat16(code, w), b.add(row, code.number(2 * LANES * part)))

    @intrinsic
    def write_group(_context, codes, scales, to, stride):
        return procedure(4, write)

    return write_group


_write_4, _write_8, _write_signed = (
    _write_group(4, signed=False),
    _write_group(8, signed=False),
    _write_group(8, signed=True),
)


def dequantise(data):
    """Write a matrix (N, K) as its transpose (K, N) in bfloat16. Every thread runs this function."""
    job = carray(data, FIELDS)
    fetch_add(job[DequantiseJob.COUNTERS])
    N, K, bits = job[DequantiseJob.N], job[DequantiseJob.K], job[DequantiseJob.BITS]
    groups, panels = K // GROUP, N // PANEL
    while True:
        first = fetch_add(job[DequantiseJob.COUNTERS] + LINE) * _PANELS
        if first >= panels:
            break
        for g in range(groups):
            for panel in range(first, min(panels, first + _PANELS)):
                codes = job[DequantiseJob.CODES] + (panel * K + g * GROUP) * PANEL * bits // 8
                scales = job[DequantiseJob.SCALES] + 4 * (panel * groups + g) * PANEL
                to = job[DequantiseJob.TO] + 2 * (g * GROUP * N + panel * PANEL)
                if bits == 4:
                    _write_4(codes, scales, to, 2 * N)
                elif job[DequantiseJob.SIGNED]:
                    _write_signed(codes, scales, to, 2 * N)
                else:
                    _write_8(codes, scales, to, 2 * N)
