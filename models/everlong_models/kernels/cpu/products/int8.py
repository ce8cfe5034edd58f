"""The numba kernel for products of many rows with a `QuantisedMatrix`: prefill, with activations in 8 bits.

    y ← x̂ Ŵᵀ,    Ŵ = d · q + c in groups of 32 along a row,    x̂ = s · a in the same groups, with integers a up to ±127

d, q and c are the step, the code and the minimum of a weight; s and a are the scale and the integer of an activation.

llama.cpp rounds activations like this for its formats with blocks of 32. AVX-512 VNNI (`vpdpbusd`) adds four products of bytes in each of 16 lanes, twice as many as the
instruction for bfloat16 does. It takes unsigned weights and signed activations. So the kernel adds 128 to signed codes, and c = -128 d compensates.

Threads take pairs of panels, as in `decode_step`. Each writes the codes of its pair as bytes to its own scratch memory, and multiplies all rows of
a block by them. A row's result does not depend on the other rows, to the bit.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

from llvmlite import ir
from numba import carray
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from everlong_models.kernels.cpu.job import FIELDS, LINE
from everlong_models.kernels.cpu.primitives import compiled, fetch_add, wait
from everlong_models.kernels.cpu.simd import BYTE, FLOAT, GROUP, INT32, PANEL, Code, pointer, procedure, supports_vnni

TILE = 6
"""Rows that are multiplied together. With two panels, their sums fill the registers of AVX-512."""
PANELS = 2
"""Panels that a thread multiplies by together."""
_ROWS = 64 * TILE
"""Rows in a block, which one thread multiplies by a pair of panels. Their bytes fit a core's L2 cache, up to a width of some thousands."""
_QUANTISED = 16
"""Rows that a thread quantises at a time."""
_QUAD = 4
"""Products that one lane adds in one instruction."""
_MOST = 127.0
_BIAS = 128.0
"""Added to signed codes to make them unsigned."""
_VECTOR, _INTS, _HALVES = (ir.VectorType(of, PANEL) for of in (FLOAT, INT32, ir.HalfType()))


class Int8Job(IntEnum):
    """The fields of a product: sizes and addresses. `SCRATCH`, `SCRATCH_SIZE` and `COUNTERS` as in `DecodeJob`; the matrix as in `Matrix`."""

    ROWS = 0
    SCRATCH = 2
    SCRATCH_SIZE = 3
    COUNTERS = 4
    N = 5
    K = 6
    BITS = 7
    SIGNED = 8
    CODES = 9
    SCALES = 10
    X = 11  # float32 (B, K)
    Y = 12  # float32 (B', N'): B rounded up to whole tiles, N to whole pairs of panels
    QUANTISED = 13  # int8 (B', K), shared by the threads
    SUMS = 14  # float32 (B', sections, 2): a section's scale s, and the sum of x̂. A section is a group, or with signed codes half a group


def has_int8() -> bool:
    """Return whether numba's target has the instructions of this kernel."""
    return supports_vnni(cpu_target.target_context.codegen().magic_tuple()[2])


def scratch_size(inputs: int, *, signed: bool) -> int:
    """Return how many float32 values of scratch memory a thread needs for a matrix with `inputs` inputs."""
    return PANELS * PANEL * (inputs // _QUAD + 2 * inputs // section_size(signed=signed))


def section_size(*, signed: bool) -> int:
    """Return the number of inputs in a *section*, whose weights share one step."""
    return GROUP // 2 if signed else GROUP


def _store(code: Code, value: ir.Value, address: ir.Value) -> None:
    code.builder.store(value, pointer(code.builder, address, value.type), align=1)


def _quantising(halves: int) -> Any:
    """Make the intrinsic that quantises `groups` groups of x to int8. It stores s and the sum of x̂ for each section: a group (`halves` = 1) or half of one (2).

    If the largest magnitude of a group is at most 2^-100, or infinite, s is 0. NaN and infinity make the sum NaN.
    """

    def write(code, x, to, sums, groups):
        b, width = code.builder, ir.VectorType(BYTE, PANEL)
        absolute = code.function("llvm.fabs.v16f32", _VECTOR, _VECTOR)
        nearest = code.function("llvm.rint.v16f32", _VECTOR, _VECTOR)
        largest = code.function("llvm.vector.reduce.fmax.v16f32", FLOAT, _VECTOR)
        total = code.function("llvm.vector.reduce.add.v16i32", INT32, _INTS)
        sum_of = code.function("llvm.vector.reduce.fadd.v16f32", FLOAT, FLOAT, _VECTOR)
        none, most = FLOAT(0.0), FLOAT(_MOST)
        with code.loop(groups) as group:
            first = b.mul(group.index, code.number(GROUP))
            parts = [code.load(code.offset(x, first, PANEL * n), _VECTOR) for n in range(2)]
            sizes = [b.call(absolute, [part]) for part in parts]
            size = b.call(largest, [b.select(b.fcmp_ordered(">", *sizes), *sizes)])
            within = b.and_(b.fcmp_ordered(">", size, FLOAT(2.0**-100)), b.fcmp_ordered("<", size, FLOAT(math.inf)))
            step = b.select(within, b.fdiv(size, most), none)
            times = code.spread(b.select(within, b.fdiv(most, size), none), _VECTOR)
            whole = [b.fptosi(b.call(nearest, [b.fmul(part, times)]), _INTS) for part in parts]
            for n, numbers in enumerate(whole):
                _store(code, b.trunc(numbers, width), b.add(b.add(to, first), code.number(PANEL * n)))
            zeros = [b.fmul(part, ir.Constant(_VECTOR, [0.0] * PANEL)) for part in parts]
            unusable = b.call(sum_of, [none, b.fadd(*zeros)])  # 0, or NaN
            for n, numbers in enumerate(whole if halves > 1 else [b.add(*whole)]):
                pair = code.offset(sums, b.mul(group.index, code.number(2 * halves)), 2 * n)
                _store(code, step, pair)
                sum_ = b.fmul(step, b.sitofp(b.call(total, [numbers]), FLOAT))
                _store(code, b.fadd(sum_, unusable), code.offset(pair, 1))

    @intrinsic
    def quantise(_context, x, to, sums, groups):
        return procedure(4, write)

    return quantise


def _unpacking(bits: int) -> Any:
    """Make the intrinsic that writes the codes of one panel (K, PANEL) as bytes (K / 4, PANEL, 4).

    `flip`: the bits to invert in each code. 128 turns signed codes into unsigned ones, 0 changes nothing. Codes of 4 bits ignore it.
    """
    shorts = ir.IntType(16)

    def interleaved(code: Code, pairs: ir.Value, other: ir.Value, count: int) -> ir.Value:
        order = [n + half * count for n in range(count) for half in range(2)]
        return code.builder.shuffle_vector(pairs, other, ir.Constant(ir.VectorType(INT32, 2 * count), order))

    def write(code, codes, to, quads, flip):
        b = code.builder
        flipped = ir.VectorType(BYTE, 2 * PANEL)
        mask = b.insert_element(ir.Constant(flipped, ir.Undefined), b.trunc(flip, BYTE), INT32(0))
        mask = b.shuffle_vector(mask, mask, ir.Constant(ir.VectorType(INT32, 2 * PANEL), [0] * 2 * PANEL))
        with code.loop(quads) as quad:
            place = b.add(to, b.mul(quad.index, code.number(_QUAD * PANEL)))
            if bits == 4:
                both = code.load(b.add(codes, b.mul(quad.index, code.number(2 * PANEL))), flipped)
                low = b.and_(both, ir.Constant(flipped, [15] * 2 * PANEL))
                high = b.lshr(both, ir.Constant(flipped, [4] * 2 * PANEL))
                for n, part in enumerate((low, high)):
                    pairs = b.bitcast(part, ir.VectorType(shorts, PANEL))
                    first, second = (
                        b.shuffle_vector(
                            pairs, pairs, ir.Constant(ir.VectorType(INT32, 8), list(range(8 * h, 8 * h + 8)))
                        )
                        for h in range(2)
                    )
                    _store(code, interleaved(code, first, second, 8), b.add(place, code.number(2 * PANEL * n)))
            else:
                at = b.add(codes, b.mul(quad.index, code.number(_QUAD * PANEL)))
                first, second = (
                    b.bitcast(
                        b.xor(code.load(b.add(at, code.number(2 * PANEL * h)), flipped), mask),
                        ir.VectorType(shorts, PANEL),
                    )
                    for h in range(2)
                )
                _store(code, interleaved(code, first, second, PANEL), place)

    @intrinsic
    def unpack(_context, codes, to, quads, flip):
        return procedure(4, write)

    return unpack


def _unpacking_scales(*, signed: bool) -> Any:
    """Make the intrinsic that writes d and c of one panel as float32 (sections, 2, PANEL)."""

    def write(code, scales, to, groups):
        b = code.builder
        with code.loop(groups) as group:
            at = b.add(scales, b.mul(group.index, code.number(4 * PANEL)))
            first, second = (
                b.fpext(code.load(b.add(at, code.number(2 * PANEL * n)), _HALVES), _VECTOR) for n in range(2)
            )
            bias = ir.Constant(_VECTOR, [-_BIAS] * PANEL)
            numbers = [first, b.fmul(first, bias), second, b.fmul(second, bias)] if signed else [first, second]
            for n, number in enumerate(numbers):
                _store(code, number, code.offset(to, b.mul(group.index, code.number(len(numbers) * PANEL)), n * PANEL))

    @intrinsic
    def unpack_scales(_context, scales, to, groups):
        return procedure(3, write)

    return unpack_scales


def _tile(quads: int) -> Any:
    """Make the intrinsic for the product of `TILE` rows and `PANELS` panels, with sections of `quads` times four inputs.

        y[m, n] ← Σ_g d[g, n] s[m, g] Σ_k q[g, k, n] a[m, g, k] + c[g, n] t[m, g]

    t is the sum of x̂ in the section. All strides and sizes count bytes.
    """

    def write(code, w, scales, x, sums, y, sections, x_stride, sums_stride, y_stride):
        b = code.builder
        add_quads = code.function("llvm.x86.avx512.vpdpbusd.512", _INTS, _INTS, _INTS, _INTS)
        totals = [code.totals(_VECTOR, PANELS) for _ in range(TILE)]
        size = code.number(quads * _QUAD * PANEL)
        x_rows, sums_rows = (
            [b.add(start, b.mul(code.number(m), stride)) for m in range(TILE)]
            for start, stride in ((x, x_stride), (sums, sums_stride))
        )
        panels = [b.add(w, b.mul(code.number(n), b.mul(sections, size))) for n in range(PANELS)]
        scale_panels = [b.add(scales, b.mul(code.number(8 * PANEL * n), sections)) for n in range(PANELS)]
        with code.loop(sections) as section:
            first = b.mul(section.index, code.number(quads * _QUAD))
            inner = [[ir.Constant(_INTS, [0] * PANEL)] * PANELS for _ in range(TILE)]
            for k in range(quads):
                at = b.add(b.mul(section.index, size), code.number(_QUAD * PANEL * k))
                q = [code.load(b.add(panel, at), _INTS) for panel in panels]
                for m in range(TILE):
                    four = code.load(b.add(b.add(x_rows[m], first), code.number(_QUAD * k)), INT32)
                    a = code.spread(four, _INTS)
                    inner[m] = [b.call(add_quads, [total, codes, a]) for total, codes in zip(inner[m], q, strict=True)]
            at = b.mul(section.index, code.number(8 * PANEL))
            grid = [
                tuple(code.load(b.add(b.add(panel, at), code.number(4 * PANEL * n)), _VECTOR) for n in range(2))
                for panel in scale_panels
            ]
            for m in range(TILE):
                pair = b.add(sums_rows[m], b.mul(section.index, code.number(8)))
                s, t = (code.spread(code.load(code.offset(pair, n), FLOAT), _VECTOR) for n in range(2))
                for (d, c), whole, total in zip(grid, inner[m], totals[m], strict=True):
                    code.add(b.fmul(d, s), b.sitofp(whole, _VECTOR), total)
                    code.add(c, t, total)
        for m, row in enumerate(totals):
            for n, total in enumerate(row):
                _store(
                    code, b.load(total), b.add(y, b.add(b.mul(code.number(m), y_stride), code.number(4 * PANEL * n)))
                )

    @intrinsic
    def tile(_context, w, scales, x, sums, y, sections, x_stride, sums_stride, y_stride):
        return procedure(9, write)

    return tile


_quantise, _quantise_halves = _quantising(1), _quantising(2)
_unpack_4, _unpack_8 = _unpacking(4), _unpacking(8)
_unpack_scales, _unpack_signed_scales = _unpacking_scales(signed=False), _unpacking_scales(signed=True)
_tile_groups, _tile_halves = _tile(GROUP // _QUAD), _tile(GROUP // 2 // _QUAD)


@compiled
def _quantise_rows(job, first, last):
    """Quantise the rows `first` … `last` of x."""
    K, signed = job[Int8Job.K], job[Int8Job.SIGNED]
    groups = K // GROUP
    for m in range(first, last):
        to = (job[Int8Job.X] + 4 * m * K, job[Int8Job.QUANTISED] + m * K)
        if signed:
            _quantise_halves(*to, job[Int8Job.SUMS] + 16 * m * groups, groups)
        else:
            _quantise(*to, job[Int8Job.SUMS] + 8 * m * groups, groups)


@compiled
def _unpack_pair(job, panel, codes, scales):
    """Write the codes and the scales of a pair of panels to scratch memory."""
    K, N, bits, signed = job[Int8Job.K], job[Int8Job.N], job[Int8Job.BITS], job[Int8Job.SIGNED]
    groups = K // GROUP
    for n in range(min(PANELS, N // PANEL - panel)):
        stored = job[Int8Job.CODES] + (panel + n) * PANEL * K * bits // 8
        steps = job[Int8Job.SCALES] + 4 * (panel + n) * PANEL * groups
        if bits == 4:
            _unpack_4(stored, codes + n * PANEL * K, K // _QUAD, 0)
        else:
            _unpack_8(stored, codes + n * PANEL * K, K // _QUAD, 128 if signed else 0)
        if signed:
            _unpack_signed_scales(steps, scales + 16 * n * PANEL * groups, groups)
        else:
            _unpack_scales(steps, scales + 8 * n * PANEL * groups, groups)


def multiply_int8(data):
    """Compute one product. Every thread runs this function."""
    job = carray(data, FIELDS)
    own = job[Int8Job.SCRATCH] + 4 * fetch_add(job[Int8Job.COUNTERS]) * job[Int8Job.SCRATCH_SIZE]
    B, N, K, signed = job[Int8Job.ROWS], job[Int8Job.N], job[Int8Job.K], job[Int8Job.SIGNED]
    next_part, done = job[Int8Job.COUNTERS] + LINE, job[Int8Job.COUNTERS] + 2 * LINE
    blocks = (B + _QUANTISED - 1) // _QUANTISED
    while True:
        part = fetch_add(next_part)
        if part >= blocks:
            break
        _quantise_rows(job, part * _QUANTISED, min(B, (part + 1) * _QUANTISED))
        fetch_add(done)
    wait(done, blocks)
    next_part = next_part + 2 * LINE
    pairs = (N // PANEL + PANELS - 1) // PANELS
    sections, wide = K // GROUP * (2 if signed else 1), 4 * PANELS * PANEL * pairs
    scales = own + PANELS * PANEL * K
    while True:
        part = fetch_add(next_part)
        first, pair = part // pairs * _ROWS, part % pairs
        if first >= B:
            break
        _unpack_pair(job, PANELS * pair, own, scales)
        for m in range(first, min(B, first + _ROWS), TILE):
            x, sums = job[Int8Job.QUANTISED] + m * K, job[Int8Job.SUMS] + 8 * m * sections
            y = job[Int8Job.Y] + m * wide + 4 * PANELS * PANEL * pair
            if signed:
                _tile_halves(own, scales, x, sums, y, sections, K, 8 * sections, wide)
            else:
                _tile_groups(own, scales, x, sums, y, sections, K, 8 * sections, wide)
