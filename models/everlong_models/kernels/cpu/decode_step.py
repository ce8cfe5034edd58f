"""What decoding computes on a CPU, for numba to compile: products with `QuantisedMatrix` matrices, and a whole step of a Llama.

PyTorch's operations take a third of a step to be called, and its products with four bits are half as fast as these
(docs/lab-notes.md). So `team` has all threads run one function from its beginning to its end, `step`: they take parts of each
phase until none is left, and within a step nobody waits for a thread that has not begun, whose processor may be at other work.

What weights are multiplied by has sixteen bits, and so have keys and values; all else is float32. An output is computed by one
thread, in one order of summation, whatever rows or threads there are beside it: the same to the bit. Arrays come as addresses, in
tables of int64. All that is compiled stands here, in `dense`, `drawing`, `grids` and `lanes`: by these, `team` knows what is stored of
another version. B rows, D width, H query heads and G key heads of dimension d, F the MLP's width.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import carray, njit, types

from everlong_models.kernels.cpu.simd import (
    GROUP,
    LANES,
    PANEL,
    address,
    dots_4,
    dots_8,
    float_pointer,
    halves,
    int_pointer,
    keep,
    mix_2,
    mix_more,
    scores_1,
    scores_4,
    seen,
    silu,
    take,
    update,
    weigh,
)

_BLOCK = 32
"""Outputs that a thread computes, at least, before it asks for more."""
_NEAR = 64
"""Positions whose keys, or values, stay in the nearest cache while all heads of a group look at them."""
LINE = 128
"""Bytes between two counters: two of a processor's lines, which it may fetch together."""


class Matrix(IntEnum):
    """A `QuantisedMatrix` matrix as a row of a table: sizes, and addresses of float32, of codes and of float16 scales; 0 is none."""

    BITS = 0
    N = 1
    K = 2
    CODES = 3
    SCALES = 4
    BIAS = 5
    A = 6  # (rank, K)
    B = 7  # (N / PANEL, rank, PANEL)
    RANK = 8


class Layer(IntEnum):
    """A layer as rows of a table, each a `Matrix`; in the last one `N` and `K` are the addresses of its norms' weights (D,)."""

    QKV = 0
    O = 1  # noqa: E741 - as papers call it
    GATE = 2
    UP = 3
    DOWN = 4
    NORMS = 5


class DecodeJob(IntEnum):
    """What a step, or a product, is of: sizes, addresses, and the strides of keys and values in bytes."""

    ROWS = 0
    TABLE = 1  # int64: a `Matrix`, or (layers, 6, 9)
    OWN = 2  # room of each thread by itself
    OWN_SIZE = 3  # of one thread, in float32
    COUNTERS = (
        4  # int64: how many threads have begun; then of each phase, in `LINE`s, the next part and how many are done
    )
    WIDE = 5  # the widest input of a matrix
    RANK = 6  # the largest of an update
    X = 7  # float32 (B, D): a product's input; the embeddings, which become the final hidden states
    Y = 8  # (B, N): a product's output; a layer's keys, values and queries (B, (H + 2 G) d)
    LAYERS = 9
    WIDTH = 10
    HEADS = 11
    KV_HEADS = 12
    HEAD_DIM = 13
    INNER = 14
    MIXED = 15  # (B, H d)
    GATE = 16  # (B, F)
    UP = 17  # (B, F)
    OUT = 18  # (B, D)
    AT = 19  # int64 (B,)
    COS = 20  # float32 (C, d), of all positions
    SIN = 21  # the same, the first half negative
    KV = 22  # float16 (B, layers, 2, G, C, d)
    KV_ROW = 23
    KV_LAYER = 24
    KV_KIND = 25
    KV_HEAD = 26
    KV_POSITION = 27
    CONTEXT = 28  # positions that the longest row looks at
    EPS = 29  # float32 (1,)
    TOGETHER = 30  # heads of a part: all of a group, which look at the same keys, or one
    NORM = 31  # float32 (D,): the last norm's weight
    SCALE = 32  # float32 (1,): the attention's


_compiled = njit(error_model="numpy")
"""What is divided by 0 is infinite, or no number, as with PyTorch. An error would leave a part undone, for which all wait."""
_summing = njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
"""How a sum is ordered is left to the compiler; once compiled, it is the same for every row."""


@_summing
def _dot(x, y):
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@_summing
def _weigh(x, count):
    """Of the first of x: x ← exp(x − max x) in place; the sum. What lies behind them is lost, up to a multiple of `LANES`."""
    most = x[0]
    for i in range(1, count):
        most = max(most, x[i])
    weigh(address(x), most, (count + LANES - 1) // LANES)
    total = np.float32(0)
    for i in range(count):
        total += x[i]
    return total


@_compiled
def _floats(address, rows, columns):
    return carray(float_pointer(address), (rows, columns))


@_compiled
def _halved(x, halved, sums):
    """`x` (B, K) in 16 bits, and for each group (B, K/32, 2) its scale and its sum."""
    for m in range(x.shape[0]):
        K = x.shape[1]
        halves(address(x) + 4 * m * K, halved + 2 * m * K, address(sums) + 8 * m * (K // GROUP), K // GROUP)


@_compiled
def _reduced(matrix, x, reduced):
    """x Aᵀ (B, rank)."""
    a = _floats(matrix[Matrix.A], matrix[Matrix.RANK], x.shape[1])
    for m in range(x.shape[0]):
        for r in range(a.shape[0]):
            reduced[m, r] = _dot(x[m], a[r])


def _dots(six, four, two, one):
    """`lanes` has one for so many rows."""

    @_compiled
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


_dots_4, _dots_8 = _dots(*dots_4), _dots(*dots_8)


@_compiled
def _product(matrix, rows, halved, sums, reduced, y, start, end):
    """The outputs `start` … `end` of y (B, N) ← x Wᵀ + x Aᵀ Bᵀ + b. `halved`, `sums`: as `_halved` has them; `reduced`: x Aᵀ."""
    N, K, bits, rank = matrix[Matrix.N], matrix[Matrix.K], matrix[Matrix.BITS], matrix[Matrix.RANK]
    groups = K // GROUP
    for n in range(start, end, PANEL):
        codes, scales, m = matrix[Matrix.CODES] + n * K * bits // 8, matrix[Matrix.SCALES] + 4 * n * groups, 0
        while m < rows:
            left = rows - m
            many = 6 if left >= 6 and left != 8 else 4 if left >= 4 else 2 if left >= 2 else 1
            to = (
                codes, scales, halved + 2 * m * K, address(sums) + 8 * m * groups, address(y) + 4 * (m * N + n),
                groups, K // 2, 2 * groups, N,
            )  # fmt: skip
            if bits == 4:
                _dots_4(many, *to)
            else:
                _dots_8(many, *to)
            m += many
    if rank:
        for m in range(rows):
            for n in range(start, end, PANEL):
                update(
                    address(reduced) + 4 * m * rank, matrix[Matrix.B] + 4 * n * rank, address(y) + 4 * (m * N + n), rank
                )
    if matrix[Matrix.BIAS]:
        bias = _floats(matrix[Matrix.BIAS], 1, N)[0]
        for m in range(rows):
            for n in range(start, end):
                y[m, n] += bias[n]


@_summing
def _normed(h, weight, eps, out):
    """RMS norm of `h` (B, D)."""
    rows, D = h.shape
    for m in range(rows):
        scale = np.float32(1) / np.sqrt(_dot(h[m], h[m]) / np.float32(D) + eps)
        for i in range(D):
            out[m, i] = h[m, i] * scale * weight[i]


@_compiled
def _turned(x, cos, sin, scale, out):
    """One head's rotary positions, times `scale`."""
    half = len(cos) // 2
    for i in range(half):
        out[i] = (x[i] * cos[i] + x[i + half] * sin[i]) * scale
        out[i + half] = (x[i + half] * cos[i + half] + x[i] * sin[i + half]) * scale


def _of_heads(one, two, three):
    """`lanes` has one for so many heads."""

    @_compiled
    def of_heads(heads, *to):
        if heads == 3:
            three(*to)
        elif heads == 2:
            two(*to)
        else:
            one(*to)

    return of_heads


_scores_1, _scores_4, _mix_2, _mix_more = (
    _of_heads(*scores_1),
    _of_heads(*scores_4),
    _of_heads(*mix_2),
    _of_heads(*mix_more),
)


@_compiled
def _attend(job, own, layer, part):
    """Attention of some heads of one row, all of one group. Whoever has the group's first head stores the new key and value."""
    B, H, G, d, many = (
        job[DecodeJob.ROWS],
        job[DecodeJob.HEADS],
        job[DecodeJob.KV_HEADS],
        job[DecodeJob.HEAD_DIM],
        job[DecodeJob.TOGETHER],
    )
    row, head, blocks, wide = part * many // H, part * many % H, d // LANES, job[DecodeJob.CONTEXT] + LANES
    group = head // (H // G)
    at = carray(int_pointer(job[DecodeJob.AT]), B)[row]
    cos, sin = _floats(job[DecodeJob.COS] + 4 * at * d, 1, d)[0], _floats(job[DecodeJob.SIN] + 4 * at * d, 1, d)[0]
    heads = _floats(job[DecodeJob.Y] + 4 * row * (H + 2 * G) * d, H + 2 * G, d)
    mixed = _floats(job[DecodeJob.MIXED] + 4 * part * many * d, many, d)
    queries, key = _floats(own, many, d), _floats(own + 4 * many * d, 1, d)[0]
    scores = _floats(own + 4 * (many + 1) * d, many, wide)
    scale = _floats(job[DecodeJob.SCALE], 1, 1)[0, 0]
    for n in range(many):
        _turned(heads[head + n], cos, sin, scale, queries[n])
    _turned(heads[H + group], cos, sin, np.float32(1), key)
    value = heads[H + G + group]
    keys = (
        job[DecodeJob.KV]
        + row * job[DecodeJob.KV_ROW]
        + layer * job[DecodeJob.KV_LAYER]
        + group * job[DecodeJob.KV_HEAD]
    )
    values, stride = keys + job[DecodeJob.KV_KIND], job[DecodeJob.KV_POSITION]
    if head % (H // G) == 0:
        keep(address(key), keys + at * stride, blocks)
        keep(address(value), values + at * stride, blocks)
    for first in range(0, at, _NEAR):
        fours, ones = divmod(min(_NEAR, at - first), 4)
        n = 0
        while n < many:
            some = min(3, many - n)
            query, to = address(queries) + 4 * n * d, address(scores) + 4 * (n * wide + first)
            _scores_4(some, query, d, keys + first * stride, stride, fours, blocks, to, wide)
            _scores_1(some, query, d, keys + (first + 4 * fours) * stride, stride, ones, blocks, to + 16 * fours, wide)
            n += some
    for n in range(many):
        scores[n, at] = _dot(queries[n], key)
        total = _weigh(scores[n], at + 1)
        last = scores[n, at] / total
        for i in range(at):
            scores[n, i] /= total
        for i in range(d):
            mixed[n, i] = last * value[i]
    for first in range(0, at, _NEAR):
        count, n = min(_NEAR, at - first), 0
        while n < many:
            some, done = min(3, many - n), 0
            most = (8 if some == 1 else 4) * LANES
            while done < d:
                weights, place = address(scores) + 4 * (n * wide + first), values + first * stride + 2 * done
                to = address(mixed) + 4 * (n * d + done)
                if done + most <= d:
                    _mix_more(some, weights, wide, place, stride, count, to, d)
                    done += most
                else:
                    _mix_2(some, weights, wide, place, stride, count, to, d)
                    done += 2 * LANES
            n += some


@_compiled
def _act(gate, up, start, end):
    """gate ← silu(gate) · up, of a multiple of `LANES`."""
    for m in range(gate.shape[0]):
        silu(address(gate) + 4 * (m * gate.shape[1] + start), (end - start) // LANES)
        for i in range(start, end):
            gate[m, i] *= up[m, i]


@_compiled
def _input(job, own, phase):
    """What the matrices of a phase are multiplied by (B, K), the same in 16 bits with its groups' scales and sums, and what updates
    make of it."""
    B, D, F, wide, rank = (
        job[DecodeJob.ROWS],
        job[DecodeJob.WIDTH],
        job[DecodeJob.INNER],
        job[DecodeJob.WIDE],
        job[DecodeJob.RANK],
    )
    x = _floats(own, B, D)
    if phase == Layer.O:
        x = _floats(job[DecodeJob.MIXED], B, job[DecodeJob.HEADS] * job[DecodeJob.HEAD_DIM])
    elif phase == Layer.DOWN:
        x = _floats(job[DecodeJob.GATE], B, F)
    halved = own + 4 * B * wide
    sums = halved + 2 * B * wide
    reduced = sums + 8 * B * (wide // GROUP)
    return x, halved, _floats(sums, B, x.shape[1] // GROUP * 2), (reduced, reduced + 4 * B * rank)


@_compiled
def _prepare(job, own, layers, layer, phase):
    """Makes `_input`."""
    x, halved, sums, reduced = _input(job, own, phase)
    if phase in (Layer.QKV, Layer.GATE):
        B, D = x.shape
        weight = layers[layer, Layer.NORMS, Matrix.N if phase == Layer.QKV else Matrix.K]
        _normed(_floats(job[DecodeJob.X], B, D), _floats(weight, 1, D)[0], _floats(job[DecodeJob.EPS], 1, 1)[0, 0], x)
    _halved(x, halved, sums)
    for n in range(2 if phase == Layer.GATE else 1):
        matrix = layers[layer, phase + n]
        _reduced(matrix, x, _floats(reduced[n], x.shape[0], matrix[Matrix.RANK]))


@_compiled
def _compute(job, own, layers, layer, phase, start, end):
    """A part of a phase: of the outputs of its matrices, and what they are for."""
    x, halved, sums, reduced = _input(job, own, phase)
    B, F, N = x.shape[0], job[DecodeJob.INNER], layers[layer, phase, Matrix.N]
    out = _floats(
        job[DecodeJob.Y] if phase == Layer.QKV else job[DecodeJob.GATE] if phase == Layer.GATE else job[DecodeJob.OUT],
        B,
        N,
    )
    up = _floats(job[DecodeJob.UP], B, F)
    for n in range(2 if phase == Layer.GATE else 1):
        matrix = layers[layer, phase + n]
        _product(matrix, B, halved, sums, _floats(reduced[n], B, matrix[Matrix.RANK]), up if n else out, start, end)
    if phase == Layer.GATE:
        _act(out, up, start, end)
    elif phase != Layer.QKV:
        h = _floats(job[DecodeJob.X], B, N)
        for m in range(B):
            for i in range(start, end):
                h[m, i] += out[m, i]


@_compiled
def _wait(done, parts):
    """Until all parts are done: by whom they were taken, is computing them."""
    looked = 0
    while seen(done) < parts:
        looked += 1
        if looked % 1000 == 0:  # or the one that computes may wait for this processor
            _yield()


@_compiled
def _size(N):
    """Outputs of a part: of 128 parts, or more than it takes to be worth being taken; whole panels."""
    return max(_BLOCK, N // 128 // PANEL * PANEL)


_yield = types.ExternalFunction("sched_yield", types.int32())
SIGNATURE = types.void(types.CPointer(types.int64))
"""Of all that is compiled: it takes a `DecodeJob`, or what `dense.Dense` says."""
FIELDS, _PARTS, _COLUMNS = len(DecodeJob), len(Layer), len(Matrix)
_ATTEND = Layer.NORMS
"""The phase between `QKV` and `O`, which has no matrix."""


def step(data):
    """Every layer and the last norm for one position a row, by whoever comes: each thread takes parts until none is left of a phase.
    Who comes late, since its processor had other work, finds them done."""
    job = carray(data, FIELDS)
    me = take(job[DecodeJob.COUNTERS])
    own = job[DecodeJob.OWN] + 4 * me * job[DecodeJob.OWN_SIZE]
    layers = carray(int_pointer(job[DecodeJob.TABLE]), (job[DecodeJob.LAYERS], _PARTS, _COLUMNS))
    next, done = job[DecodeJob.COUNTERS] + LINE, job[DecodeJob.COUNTERS] + 2 * LINE
    for layer in range(job[DecodeJob.LAYERS]):
        for phase in (Layer.QKV, _ATTEND, Layer.O, Layer.GATE, Layer.DOWN):
            N = (
                layers[layer, phase, Matrix.N]
                if phase != _ATTEND
                else job[DecodeJob.ROWS] * job[DecodeJob.HEADS] // job[DecodeJob.TOGETHER]
            )
            size = _size(N) if phase != _ATTEND else 1
            parts, prepared = (N + size - 1) // size, False
            while True:
                part = take(next)
                if part >= parts:
                    break
                if phase == _ATTEND:
                    _attend(job, own, layer, part)
                else:
                    if not prepared:
                        _prepare(job, own, layers, layer, phase)
                        prepared = True
                    _compute(job, own, layers, layer, phase, part * size, min(N, (part + 1) * size))
                take(done)
            _wait(done, parts)
            next, done = next + 2 * LINE, done + 2 * LINE
    D, weight = job[DecodeJob.WIDTH], _floats(job[DecodeJob.NORM], 1, job[DecodeJob.WIDTH])[0]
    while True:
        row = take(next)
        if row >= job[DecodeJob.ROWS]:
            break
        h = _floats(job[DecodeJob.X] + 4 * row * D, 1, D)
        _normed(h, weight, _floats(job[DecodeJob.EPS], 1, 1)[0, 0], h)


def multiply(data):
    """One product, likewise."""
    job = carray(data, FIELDS)
    me, matrix = take(job[DecodeJob.COUNTERS]), carray(int_pointer(job[DecodeJob.TABLE]), _COLUMNS)
    B, N, K, size = job[DecodeJob.ROWS], matrix[Matrix.N], matrix[Matrix.K], _size(matrix[Matrix.N])
    own = job[DecodeJob.OWN] + 4 * me * job[DecodeJob.OWN_SIZE]
    x, y, halved = _floats(job[DecodeJob.X], B, K), _floats(job[DecodeJob.Y], B, N), own
    sums = _floats(own + 2 * B * K, B, K // GROUP * 2)
    reduced, prepared = _floats(own + 2 * B * K + 8 * B * (K // GROUP), B, matrix[Matrix.RANK]), False
    while True:
        part = take(job[DecodeJob.COUNTERS] + LINE)
        if part * size >= N:
            break
        if not prepared:
            _halved(x, halved, sums)
            _reduced(matrix, x, reduced)
            prepared = True
        _product(matrix, B, halved, sums, reduced, y, part * size, min(N, (part + 1) * size))
