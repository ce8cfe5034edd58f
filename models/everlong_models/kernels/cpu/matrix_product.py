"""The numba kernel for one product with a `QuantisedMatrix`, and the functions that a decode step shares with it."""

from __future__ import annotations

from numba import carray

from everlong_models.kernels.cpu.job import FIELDS, LINE, MATRIX_FIELDS, DecodeJob, Matrix
from everlong_models.kernels.cpu.primitives import address, compiled, compiled_as, dot, fetch_add, floats, int_pointer
from everlong_models.kernels.cpu.products.float32 import add_low_rank
from everlong_models.kernels.cpu.products.int16 import dots_4, dots_8, dots_signed, quantise_16
from everlong_models.kernels.cpu.simd import GROUP, PANEL

_BLOCK = 32
"""Least number of outputs in a part that a thread takes."""
ROWS = 96
"""Rows to multiply at once, so that their 16-bit copies stay in the cache."""


@compiled
def quantise_input(x, quantised, sums):
    """Quantise `x` (B, K) to 16 bits. Store the scale and the sum of each group in `sums` (B, K/32, 2)."""
    for m in range(x.shape[0]):
        K = x.shape[1]
        quantise_16(address(x) + 4 * m * K, quantised + 2 * m * K, address(sums) + 8 * m * (K // GROUP), K // GROUP)


@compiled
def low_rank_input(matrix, x, reduced):
    """Compute x Aᵀ (B, rank) of a low-rank update."""
    a = floats(matrix[Matrix.A], matrix[Matrix.RANK], x.shape[1])
    for m in range(x.shape[0]):
        for r in range(a.shape[0]):
            reduced[m, r] = dot(x[m], a[r])


def _dots(name, six, four, two, one):
    """Make a function that calls the `simd` intrinsic for a number of rows."""

    @compiled_as(name)
    def dots(rows, *to):
        if rows == 6:
            six(*to)
        elif rows == 4:
            four(*to)
        elif rows == 2:
            two(*to)
        else:
            one(*to)

    return dots


_dots_4, _dots_8, _dots_signed = _dots("4", *dots_4), _dots("8", *dots_8), _dots("signed", *dots_signed)


@compiled
def product(matrix, rows, quantised, sums, reduced, y, stride, start, end):
    """Compute the outputs `start` … `end` of y ← x Wᵀ + x Aᵀ Bᵀ + b, at the address `y`; `stride`: from row to row.

    `quantised` and `sums` are results of `quantise_input`; `reduced` is x Aᵀ.
    """
    N, K, bits, rank = matrix[Matrix.N], matrix[Matrix.K], matrix[Matrix.BITS], matrix[Matrix.RANK]
    groups = K // GROUP
    for n in range(start, end, PANEL):
        codes, scales, m = matrix[Matrix.CODES] + n * K * bits // 8, matrix[Matrix.SCALES] + 4 * n * groups, 0
        while m < rows:
            left = rows - m
            many = 6 if left >= 6 and left != 8 else 4 if left >= 4 else 2 if left >= 2 else 1
            to = (
                codes, scales, quantised + 2 * m * K, address(sums) + 8 * m * groups, y + 4 * (m * stride + n),
                groups, K // 2, 2 * groups, stride,
            )  # fmt: skip
            if bits == 4:
                _dots_4(many, *to)
            elif matrix[Matrix.SIGNED]:
                _dots_signed(many, *to)
            else:
                _dots_8(many, *to)
            m += many
    if rank:
        for m in range(rows):
            for n in range(start, end, PANEL):
                to = y + 4 * (m * stride + n)
                add_low_rank(address(reduced) + 4 * m * rank, matrix[Matrix.B] + 4 * n * rank, to, rank)
    if matrix[Matrix.BIAS]:
        bias = floats(matrix[Matrix.BIAS], 1, N)[0]
        for m in range(rows):
            out = floats(y + 4 * m * stride, 1, N)[0]
            for n in range(start, end):
                out[n] += bias[n]


@compiled
def part_size(N):
    """Return the number of outputs in a part: whole panels, at most about 128 parts, and at least `_BLOCK` outputs."""
    return max(_BLOCK, N // 128 // PANEL * PANEL)


def multiply(data):
    """Compute one product. Every thread runs this function."""
    job = carray(data, FIELDS)
    me, matrix = fetch_add(job[DecodeJob.COUNTERS]), carray(int_pointer(job[DecodeJob.TABLE]), MATRIX_FIELDS)
    B, N, K, size = job[DecodeJob.ROWS], matrix[Matrix.N], matrix[Matrix.K], part_size(matrix[Matrix.N])
    own = job[DecodeJob.SCRATCH] + 4 * me * job[DecodeJob.SCRATCH_SIZE]
    x, y, quantised = floats(job[DecodeJob.X], B, K), floats(job[DecodeJob.Y], B, N), own
    sums = floats(own + 2 * B * K, B, K // GROUP * 2)
    reduced, prepared = floats(own + 2 * B * K + 8 * B * (K // GROUP), B, matrix[Matrix.RANK]), False
    while True:
        part = fetch_add(job[DecodeJob.COUNTERS] + LINE)
        if part * size >= N:
            break
        if not prepared:
            quantise_input(x, quantised, sums)
            low_rank_input(matrix, x, reduced)
            prepared = True
        product(matrix, B, quantised, sums, reduced, address(y), N, part * size, min(N, (part + 1) * size))
