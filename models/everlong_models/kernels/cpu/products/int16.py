"""Integer dot products: SIMD intrinsics that quantise activations to 16 bits and multiply them with quantised weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from everlong_models.kernels.cpu.simd import (
    FLOAT,
    GROUP,
    INT32,
    INTS,
    LANES,
    PAIRS_8,
    PAIRS_16,
    PANEL,
    SHORTS,
    VECTOR,
    procedure,
)


@intrinsic
def quantise_16(_context, x, to, scales, groups):
    """Quantise `x` to int16 in groups of 32: x ≈ s · to, with integers up to ±32,767.

    Stores to `scales` the scale s and the sum of x for each group. If the largest magnitude of a group is at most 2^-100, or infinite,
    s is 0.
    """

    def write(code, x, to, scales, groups):
        b = code.builder
        absolute, nearest = (code.function(f"llvm.{name}.v8f32", VECTOR, VECTOR) for name in ("fabs", "rint"))
        none, most_of_16 = ir.Constant(FLOAT, 0.0), ir.Constant(FLOAT, 32767.0)
        with code.loop(groups) as group:
            first = b.mul(group.index, code.number(GROUP))
            lanes = [code.load(code.offset(x, first, LANES * n), VECTOR) for n in range(GROUP // LANES)]
            sizes = [b.call(absolute, [part]) for part in lanes]
            one, other = (b.select(b.fcmp_ordered(">", *two), *two) for two in (sizes[:2], sizes[2:]))
            most = b.select(b.fcmp_ordered(">", one, other), one, other)
            parts = [b.extract_element(most, ir.Constant(INT32, n)) for n in range(LANES)]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [b.select(b.fcmp_ordered(">", *two), *two) for two in pairs]
            within = b.and_(
                b.fcmp_ordered(">", parts[0], ir.Constant(FLOAT, 2.0**-100)),
                b.fcmp_ordered("<", parts[0], ir.Constant(FLOAT, math.inf)),
            )
            step = b.select(within, b.fdiv(parts[0], most_of_16), none)
            times = code.spread(b.select(within, b.fdiv(most_of_16, parts[0]), none))
            for n, part in enumerate(lanes):
                # NaN may become any integer: the group's sum is NaN anyway.
                whole = b.fptosi(b.call(nearest, [b.fmul(part, times)]), INTS)
                at = b.add(to, b.mul(b.add(first, code.number(LANES * n)), code.number(2)))
                code.store(b.trunc(whole, SHORTS), at)
            pair = code.offset(scales, b.mul(group.index, code.number(2)))
            code.store(step, pair)
            code.store(code.sum(b.fadd(b.fadd(*lanes[:2]), b.fadd(*lanes[2:]))), code.offset(pair, 1))

    return procedure(4, write)


_WIDE, _WIDE_INTS, _WIDE_INDEX = (ir.VectorType(of, count) for of, count in ((FLOAT, 16), (INT32, 16), (INT32, 32)))
_WIDE_HALVES, _WIDE_8, _WIDE_16 = ir.VectorType(ir.HalfType(), 16), *(ir.VectorType(ir.IntType(n), 32) for n in (8, 16))
_AHEAD = 2048
"""Prefetch distance in bytes of codes. The processor's own prefetcher stops at the end of a page."""


def _dots(bits: int, rows: int, *, signed: bool = False) -> Any:
    """Make the intrinsic for products of `rows` rows with one panel of quantised weights.

        y[m, n] ← Σ_g d[g, n] s[m, g] Σ_k q[g, k, n] x[m, g, k] + c[g, n] t[m, g]

    for `rows` rows m and `PANEL` outputs n; `quantise_16` produces x, s and t. The sum over a group is an integer sum, without
    rounding. With `signed` codes there is no c, and each half of a group has its own d. Strides count units of four bytes.

    An output's operations and their order do not depend on the number of rows. Panels are read in memory order, because one row is
    bound by memory bandwidth.
    """
    narrow, wide = _narrow(bits, rows, signed=signed), _wide(bits, rows, signed=signed)

    def write(code, *arguments):
        (wide if code.has_vnni else narrow)(code, *arguments)

    @intrinsic
    def dots(_context, codes, scales, x, sums, y, groups, x_stride, sums_stride, y_stride):
        return procedure(9, write)

    return dots


def _narrow(bits: int, rows: int, *, signed: bool) -> Callable[..., None]:
    """Return the function that emits the LLVM code of `_dots` with vectors of `LANES` numbers."""
    size, wide, halves = _panel_size(bits), PANEL // LANES, 2 if signed else 1

    def write(code, codes, scales, x, sums, y, groups, x_stride, sums_stride, y_stride):
        def weights(address: ir.Value) -> list[ir.Value]:
            """Load a panel's codes for two consecutive k, as vectors of eight outputs with the two k interleaved.

            With four bits, a byte holds a code of the first eight outputs in its low half and one of the second eight in its high half.
            """
            vectors = []
            for part in range(size // (2 * LANES)):
                extend = b.sext if signed else b.zext
                whole = extend(code.load(b.add(address, code.number(2 * LANES * part)), PAIRS_8), PAIRS_16)
                vectors += [whole] if bits == 8 else [whole, code.high(whole)]
            return vectors

        def summed(inner: list[ir.Value], part: int) -> ir.Value:
            """Return the integer sums of one vector of outputs.

            With four bits, the low codes were multiplied as whole bytes: subtract 16 times the sum of the high codes.
            """
            sums = b.load(inner[part])
            if bits == 8 or part % 2:
                return sums
            return b.sub(sums, b.shl(b.load(inner[part + 1]), ir.Constant(INTS, [4] * LANES)))

        b = code.builder
        x_rows = [code.offset(x, b.mul(code.number(m), x_stride)) for m in range(rows)]
        sums_rows = [code.offset(sums, b.mul(code.number(m), sums_stride)) for m in range(rows)]
        totals = [code.totals(VECTOR, wide) for _ in range(rows)]
        with code.loop(groups) as group:
            first = b.mul(group.index, code.number(GROUP // 2))
            ahead = b.add(codes, b.add(b.mul(first, code.number(size)), code.number(_AHEAD)))
            for line in range(GROUP // 2 * size // 64):
                code.fetch(b.add(ahead, code.number(64 * line)))
            scale = b.mul(group.index, code.number(2 * PANEL))
            for half in range(halves):
                inner = [code.totals(INTS, wide) for _ in range(rows)]
                with code.loop(code.number(GROUP // 2 // halves)) as k:
                    at = b.add(b.add(first, code.number(GROUP // 2 // halves * half)), k.index)
                    q = weights(b.add(codes, b.mul(at, code.number(size))))
                    for m in range(rows):
                        two = code.spread(code.load(code.offset(x_rows[m], at), INT32), INTS)
                        for part, total in zip(q, inner[m], strict=True):
                            b.store(b.add(b.load(total), code.pairs(part, b.bitcast(two, PAIRS_16))), total)
                for m in range(rows):
                    pair = code.offset(sums_rows[m], b.mul(group.index, code.number(2)))
                    step, sum = (code.spread(code.load(code.offset(pair, n))) for n in range(2))
                    for part in range(wide):
                        d, c = (
                            code.half(scales, b.add(scale, code.number(PANEL * n + LANES * part))) for n in (half, 1)
                        )
                        code.add(b.fmul(d, step), b.sitofp(summed(inner[m], part), VECTOR), totals[m][part])
                        if not signed:
                            code.add(c, sum, totals[m][part])
        for m, row in enumerate(totals):
            for n, total in enumerate(row):
                code.store(b.load(total), code.offset(y, b.mul(code.number(m), y_stride), LANES * n))

    return write


def _wide(bits: int, rows: int, *, signed: bool) -> Callable[..., None]:
    """Return the function that emits the LLVM code of `_dots` with AVX-512 VNNI.

    One vector holds a panel, and one instruction multiplies and adds. The results are those of `_narrow` to the bit: integer sums are exact, and the operations
    on float32 and their order are the same.
    """
    size, halves = _panel_size(bits), 2 if signed else 1

    def write(code, codes, scales, x, sums, y, groups, x_stride, sums_stride, y_stride):
        def weights(address: ir.Value) -> ir.Value:
            """Load a panel's codes for two consecutive k, with the two k interleaved."""
            stored = code.load(address, _WIDE_8 if bits == 8 else PAIRS_8)
            if bits == 8:
                return (b.sext if signed else b.zext)(stored, _WIDE_16)
            half = b.zext(stored, PAIRS_16)
            both = b.shuffle_vector(half, half, ir.Constant(_WIDE_INDEX, list(range(16)) * 2))
            shifted = b.lshr(both, ir.Constant(_WIDE_16, [0] * 16 + [4] * 16))
            return b.and_(shifted, ir.Constant(_WIDE_16, [15] * 32))

        b = code.builder
        add_pairs = code.function("llvm.x86.avx512.vpdpwssd.512", _WIDE_INTS, _WIDE_INTS, _WIDE_INTS, _WIDE_INTS)
        x_rows = [code.offset(x, b.mul(code.number(m), x_stride)) for m in range(rows)]
        sums_rows = [code.offset(sums, b.mul(code.number(m), sums_stride)) for m in range(rows)]
        totals = code.totals(_WIDE, rows)
        with code.loop(groups) as group:
            first = b.mul(group.index, code.number(GROUP // 2))
            ahead = b.add(codes, b.add(b.mul(first, code.number(size)), code.number(_AHEAD)))
            for line in range(GROUP // 2 * size // 64):
                code.fetch(b.add(ahead, code.number(64 * line)))
            scale = b.add(scales, b.mul(group.index, code.number(4 * PANEL)))
            grid = [b.fpext(code.load(b.add(scale, code.number(2 * PANEL * n)), _WIDE_HALVES), _WIDE) for n in range(2)]
            for half in range(halves):
                inner = [ir.Constant(_WIDE_INTS, [0] * PANEL)] * rows
                for k in range(GROUP // 2 // halves):
                    at = b.add(first, code.number(GROUP // 2 // halves * half + k))
                    q = b.bitcast(weights(b.add(codes, b.mul(at, code.number(size)))), _WIDE_INTS)
                    for m in range(rows):
                        two = code.spread(code.load(code.offset(x_rows[m], at), INT32), _WIDE_INTS)
                        inner[m] = b.call(add_pairs, [inner[m], q, two])
                for m in range(rows):
                    pair = code.offset(sums_rows[m], b.mul(group.index, code.number(2)))
                    step, sum = (code.spread(code.load(code.offset(pair, n)), _WIDE) for n in range(2))
                    code.add(b.fmul(grid[half], step), b.sitofp(inner[m], _WIDE), totals[m])
                    if not signed:
                        code.add(grid[1], sum, totals[m])
        for m, total in enumerate(totals):
            code.store(b.load(total), code.offset(y, b.mul(code.number(m), y_stride)))

    return write


def _panel_size(bits: int) -> int:
    """Return the bytes of a panel's weights for two consecutive k."""
    return 2 * PANEL * bits // 8


# For six, four, two rows and one row.
dots_4, dots_8 = ([_dots(bits, rows) for rows in (6, 4, 2, 1)] for bits in (4, 8))
dots_signed = [_dots(8, rows, signed=True) for rows in (6, 4, 2, 1)]
