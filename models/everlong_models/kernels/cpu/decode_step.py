"""The numba kernels that decode on a CPU: products with `QuantisedMatrix` matrices, and a whole decode step of a Llama.

Calling PyTorch's operations takes a third of a decode step, and its four-bit products run at half the speed of these
(docs/lab-notes.md). So `thread_pool` runs one function, `step`, on all threads from beginning to end. Threads take parts of each
phase until none is left. Within a step no thread waits for a thread that has not started, whose core may be busy elsewhere.

Activations that are multiplied by weights have 16 bits, and so do keys and values; everything else is float32. One thread computes
each output, in a fixed order of summation, so results do not depend on other rows or on the number of threads, to the bit.

Arrays are passed as addresses, in tables of int64. All compiled code is in the modules of this folder that `thread_pool.compiled`
lists: it hashes their source to recognise stored machine code of another version.

Shapes: B rows, D width, H query heads and G key heads of dimension d, F the MLP's width.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import carray, njit, types

from everlong_models.kernels.cpu.simd import (
    GROUP,
    LANES,
    PANEL,
    add_low_rank,
    address,
    dots_4,
    dots_8,
    exp_shifted,
    fetch_add,
    float_pointer,
    int_pointer,
    load_acquire,
    mix_2,
    mix_more,
    quantise_16,
    scores_1,
    scores_4,
    silu,
    store_float16,
)

_BLOCK = 32
"""Least number of outputs in a part that a thread takes."""
_POSITIONS_IN_CACHE = 64
"""Positions whose keys (or values) stay in the L1 cache while all heads of a group read them."""
LINE = 128
"""Bytes between two counters: two cache lines, because a processor may fetch them in pairs."""


class Matrix(IntEnum):
    """The fields of a `QuantisedMatrix` in a table: sizes, and addresses of codes, float16 scales and float32 arrays. Address 0: none."""

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
    """The rows of a layer in a table. Each is a `Matrix`, but `NORMS`: its `N` and `K` are the addresses of the norms' weights (D,)."""

    QKV = 0
    O = 1  # noqa: E741 - as papers call it
    GATE = 2
    UP = 3
    DOWN = 4
    NORMS = 5


class DecodeJob(IntEnum):
    """The fields of a decode step or a product: sizes, addresses, and the strides of keys and values in bytes."""

    ROWS = 0
    TABLE = 1  # int64: a `Matrix`, or (layers, 6, 9)
    SCRATCH = 2  # scratch memory, one slice for each thread
    SCRATCH_SIZE = 3  # of one thread's slice, in float32 values
    COUNTERS = 4  # int64, `LINE` bytes apart: threads that have started; then for each phase, the next part and the number of parts done
    WIDEST = 5  # width of the widest input of a matrix
    RANK = 6  # largest rank of a low-rank update
    X = 7  # float32 (B, D): a product's input; or the embeddings, overwritten by the final hidden states
    Y = 8  # (B, N): a product's output; a layer's keys, values and queries (B, (H + 2 G) d)
    LAYERS = 9
    WIDTH = 10
    HEADS = 11
    KV_HEADS = 12
    HEAD_DIM = 13
    MLP_WIDTH = 14
    MIXED = 15  # (B, H d)
    GATE = 16  # (B, F)
    UP = 17  # (B, F)
    OUT = 18  # (B, D)
    POSITIONS = 19  # int64 (B,)
    COS = 20  # float32 (C, d), for all positions
    SIN = 21  # the same, the first half negated
    KV = 22  # float16 (B, layers, 2, G, C, d)
    KV_ROW = 23
    KV_LAYER = 24
    KV_KIND = 25
    KV_HEAD = 26
    KV_POSITION = 27
    CONTEXT = 28  # number of positions that the longest row attends to
    EPS = 29  # float32 (1,)
    HEADS_PER_PART = 30  # query heads in a part: all of a group, which share keys, or one
    NORM = 31  # float32 (D,): weight of the last norm
    SCALE = 32  # float32 (1,): scale of the attention


_compiled = njit(error_model="numpy")
"""Division by zero gives ∞ or NaN, as in PyTorch. An exception would leave a part undone, and all threads would wait for it."""
_summing = njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
"""The compiler may reorder a sum. The compiled order is the same for every row."""


@_summing
def _dot(x, y):
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@_summing
def _softmax_weights(x, count):
    """x[:count] ← exp(x − max x) in place. Return the sum.

    Overwrites x beyond `count`, up to a multiple of `LANES`.
    """
    most = x[0]
    for i in range(1, count):
        most = max(most, x[i])
    exp_shifted(address(x), most, (count + LANES - 1) // LANES)
    total = np.float32(0)
    for i in range(count):
        total += x[i]
    return total


@_compiled
def _floats(address, rows, columns):
    return carray(float_pointer(address), (rows, columns))


@_compiled
def _quantise_input(x, quantised, sums):
    """Quantise `x` (B, K) to 16 bits. Store the scale and the sum of each group in `sums` (B, K/32, 2)."""
    for m in range(x.shape[0]):
        K = x.shape[1]
        quantise_16(address(x) + 4 * m * K, quantised + 2 * m * K, address(sums) + 8 * m * (K // GROUP), K // GROUP)


@_compiled
def _low_rank_input(matrix, x, reduced):
    """Compute x Aᵀ (B, rank) of a low-rank update."""
    a = _floats(matrix[Matrix.A], matrix[Matrix.RANK], x.shape[1])
    for m in range(x.shape[0]):
        for r in range(a.shape[0]):
            reduced[m, r] = _dot(x[m], a[r])


def _dots(six, four, two, one):
    """Make a function that calls the `simd` intrinsic for a number of rows."""

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
def _product(matrix, rows, quantised, sums, reduced, y, start, end):
    """Compute the outputs `start` … `end` of y (B, N) ← x Wᵀ + x Aᵀ Bᵀ + b.

    `quantised` and `sums` are results of `_quantise_input`; `reduced` is x Aᵀ.
    """
    N, K, bits, rank = matrix[Matrix.N], matrix[Matrix.K], matrix[Matrix.BITS], matrix[Matrix.RANK]
    groups = K // GROUP
    for n in range(start, end, PANEL):
        codes, scales, m = matrix[Matrix.CODES] + n * K * bits // 8, matrix[Matrix.SCALES] + 4 * n * groups, 0
        while m < rows:
            left = rows - m
            many = 6 if left >= 6 and left != 8 else 4 if left >= 4 else 2 if left >= 2 else 1
            to = (
                codes, scales, quantised + 2 * m * K, address(sums) + 8 * m * groups, address(y) + 4 * (m * N + n),
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
                add_low_rank(
                    address(reduced) + 4 * m * rank, matrix[Matrix.B] + 4 * n * rank, address(y) + 4 * (m * N + n), rank
                )
    if matrix[Matrix.BIAS]:
        bias = _floats(matrix[Matrix.BIAS], 1, N)[0]
        for m in range(rows):
            for n in range(start, end):
                y[m, n] += bias[n]


@_summing
def _normed(h, weight, eps, out):
    """out ← the RMS norm of `h` (B, D)."""
    rows, D = h.shape
    for m in range(rows):
        scale = np.float32(1) / np.sqrt(_dot(h[m], h[m]) / np.float32(D) + eps)
        for i in range(D):
            out[m, i] = h[m, i] * scale * weight[i]


@_compiled
def _rotated(x, cos, sin, scale, out):
    """out ← one head with its rotary position applied, times `scale`."""
    half = len(cos) // 2
    for i in range(half):
        out[i] = (x[i] * cos[i] + x[i + half] * sin[i]) * scale
        out[i + half] = (x[i + half] * cos[i + half] + x[i] * sin[i + half]) * scale


def _of_heads(one, two, three):
    """Make a function that calls the `simd` intrinsic for a number of heads."""

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
    """Compute the attention of a part: heads of one group, of one row. The part with the group's first head stores the new key and value."""
    B, H, G, d, many = (
        job[DecodeJob.ROWS],
        job[DecodeJob.HEADS],
        job[DecodeJob.KV_HEADS],
        job[DecodeJob.HEAD_DIM],
        job[DecodeJob.HEADS_PER_PART],
    )
    row, head, blocks, wide = part * many // H, part * many % H, d // LANES, job[DecodeJob.CONTEXT] + LANES
    group = head // (H // G)
    at = carray(int_pointer(job[DecodeJob.POSITIONS]), B)[row]
    cos, sin = _floats(job[DecodeJob.COS] + 4 * at * d, 1, d)[0], _floats(job[DecodeJob.SIN] + 4 * at * d, 1, d)[0]
    heads = _floats(job[DecodeJob.Y] + 4 * row * (H + 2 * G) * d, H + 2 * G, d)
    mixed = _floats(job[DecodeJob.MIXED] + 4 * part * many * d, many, d)
    queries, key = _floats(own, many, d), _floats(own + 4 * many * d, 1, d)[0]
    scores = _floats(own + 4 * (many + 1) * d, many, wide)
    scale = _floats(job[DecodeJob.SCALE], 1, 1)[0, 0]
    for n in range(many):
        _rotated(heads[head + n], cos, sin, scale, queries[n])
    _rotated(heads[H + group], cos, sin, np.float32(1), key)
    value = heads[H + G + group]
    keys = (
        job[DecodeJob.KV]
        + row * job[DecodeJob.KV_ROW]
        + layer * job[DecodeJob.KV_LAYER]
        + group * job[DecodeJob.KV_HEAD]
    )
    values, stride = keys + job[DecodeJob.KV_KIND], job[DecodeJob.KV_POSITION]
    if head % (H // G) == 0:
        store_float16(address(key), keys + at * stride, blocks)
        store_float16(address(value), values + at * stride, blocks)
    for first in range(0, at, _POSITIONS_IN_CACHE):
        fours, ones = divmod(min(_POSITIONS_IN_CACHE, at - first), 4)
        n = 0
        while n < many:
            some = min(3, many - n)
            query, to = address(queries) + 4 * n * d, address(scores) + 4 * (n * wide + first)
            _scores_4(some, query, d, keys + first * stride, stride, fours, blocks, to, wide)
            _scores_1(some, query, d, keys + (first + 4 * fours) * stride, stride, ones, blocks, to + 16 * fours, wide)
            n += some
    for n in range(many):
        scores[n, at] = _dot(queries[n], key)
        total = _softmax_weights(scores[n], at + 1)
        last = scores[n, at] / total
        for i in range(at):
            scores[n, i] /= total
        for i in range(d):
            mixed[n, i] = last * value[i]
    for first in range(0, at, _POSITIONS_IN_CACHE):
        count, n = min(_POSITIONS_IN_CACHE, at - first), 0
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
def _silu_gate(gate, up, start, end):
    """gate ← silu(gate) · up, for the columns `start` … `end`; their number is a multiple of `LANES`."""
    for m in range(gate.shape[0]):
        silu(address(gate) + 4 * (m * gate.shape[1] + start), (end - start) // LANES)
        for i in range(start, end):
            gate[m, i] *= up[m, i]


@_compiled
def _phase_input(job, own, phase):
    """Return the buffers for a phase's input: x (B, K), its 16-bit copy, the groups' scales and sums, and x Aᵀ of two updates."""
    B, D, F, wide, rank = (
        job[DecodeJob.ROWS],
        job[DecodeJob.WIDTH],
        job[DecodeJob.MLP_WIDTH],
        job[DecodeJob.WIDEST],
        job[DecodeJob.RANK],
    )
    x = _floats(own, B, D)
    if phase == Layer.O:
        x = _floats(job[DecodeJob.MIXED], B, job[DecodeJob.HEADS] * job[DecodeJob.HEAD_DIM])
    elif phase == Layer.DOWN:
        x = _floats(job[DecodeJob.GATE], B, F)
    quantised = own + 4 * B * wide
    sums = quantised + 2 * B * wide
    reduced = sums + 8 * B * (wide // GROUP)
    return x, quantised, _floats(sums, B, x.shape[1] // GROUP * 2), (reduced, reduced + 4 * B * rank)


@_compiled
def _prepare_input(job, own, layers, layer, phase):
    """Fill the buffers of `_phase_input`."""
    x, quantised, sums, reduced = _phase_input(job, own, phase)
    if phase in (Layer.QKV, Layer.GATE):
        B, D = x.shape
        weight = layers[layer, Layer.NORMS, Matrix.N if phase == Layer.QKV else Matrix.K]
        _normed(_floats(job[DecodeJob.X], B, D), _floats(weight, 1, D)[0], _floats(job[DecodeJob.EPS], 1, 1)[0, 0], x)
    _quantise_input(x, quantised, sums)
    for n in range(2 if phase == Layer.GATE else 1):
        matrix = layers[layer, phase + n]
        _low_rank_input(matrix, x, _floats(reduced[n], x.shape[0], matrix[Matrix.RANK]))


@_compiled
def _compute_part(job, own, layers, layer, phase, start, end):
    """Compute outputs `start` … `end` of a phase's matrices, and apply them: the MLP's gate, or the residual sum."""
    x, quantised, sums, reduced = _phase_input(job, own, phase)
    B, F, N = x.shape[0], job[DecodeJob.MLP_WIDTH], layers[layer, phase, Matrix.N]
    out = _floats(
        job[DecodeJob.Y] if phase == Layer.QKV else job[DecodeJob.GATE] if phase == Layer.GATE else job[DecodeJob.OUT],
        B,
        N,
    )
    up = _floats(job[DecodeJob.UP], B, F)
    for n in range(2 if phase == Layer.GATE else 1):
        matrix = layers[layer, phase + n]
        _product(matrix, B, quantised, sums, _floats(reduced[n], B, matrix[Matrix.RANK]), up if n else out, start, end)
    if phase == Layer.GATE:
        _silu_gate(out, up, start, end)
    elif phase != Layer.QKV:
        h = _floats(job[DecodeJob.X], B, N)
        for m in range(B):
            for i in range(start, end):
                h[m, i] += out[m, i]


@_compiled
def _wait(done, parts):
    """Wait until all parts are done. Every part has been taken by a running thread, so this does not deadlock."""
    polls = 0
    while load_acquire(done) < parts:
        polls += 1
        if polls % 1000 == 0:  # the thread that computes the part may be waiting for this core
            _yield()


@_compiled
def _part_size(N):
    """Return the number of outputs in a part: whole panels, at most about 128 parts, and at least `_BLOCK` outputs."""
    return max(_BLOCK, N // 128 // PANEL * PANEL)


_yield = types.ExternalFunction("sched_yield", types.int32())
SIGNATURE = types.void(types.CPointer(types.int64))
"""The signature of every compiled function: its argument is a table of `DecodeJob`, `PrefillJob`, `QuantiseJob` or `SampleJob`."""
FIELDS, _PARTS, _COLUMNS = len(DecodeJob), len(Layer), len(Matrix)
_ATTEND = Layer.NORMS
"""The attention phase, between `QKV` and `O`. It has no matrix, so it reuses the number of `NORMS`."""


def step(data):
    """Compute all layers and the last norm, for one position per row. Every thread runs this function.

    Each thread takes parts of a phase until none is left. A thread that starts late finds earlier phases done.
    """
    job = carray(data, FIELDS)
    me = fetch_add(job[DecodeJob.COUNTERS])
    own = job[DecodeJob.SCRATCH] + 4 * me * job[DecodeJob.SCRATCH_SIZE]
    layers = carray(int_pointer(job[DecodeJob.TABLE]), (job[DecodeJob.LAYERS], _PARTS, _COLUMNS))
    next_part, done = job[DecodeJob.COUNTERS] + LINE, job[DecodeJob.COUNTERS] + 2 * LINE
    for layer in range(job[DecodeJob.LAYERS]):
        for phase in (Layer.QKV, _ATTEND, Layer.O, Layer.GATE, Layer.DOWN):
            N = (
                layers[layer, phase, Matrix.N]
                if phase != _ATTEND
                else job[DecodeJob.ROWS] * job[DecodeJob.HEADS] // job[DecodeJob.HEADS_PER_PART]
            )
            size = _part_size(N) if phase != _ATTEND else 1
            parts, prepared = (N + size - 1) // size, False
            while True:
                part = fetch_add(next_part)
                if part >= parts:
                    break
                if phase == _ATTEND:
                    _attend(job, own, layer, part)
                else:
                    if not prepared:
                        _prepare_input(job, own, layers, layer, phase)
                        prepared = True
                    _compute_part(job, own, layers, layer, phase, part * size, min(N, (part + 1) * size))
                fetch_add(done)
            _wait(done, parts)
            next_part, done = next_part + 2 * LINE, done + 2 * LINE
    D, weight = job[DecodeJob.WIDTH], _floats(job[DecodeJob.NORM], 1, job[DecodeJob.WIDTH])[0]
    while True:
        row = fetch_add(next_part)
        if row >= job[DecodeJob.ROWS]:
            break
        h = _floats(job[DecodeJob.X] + 4 * row * D, 1, D)
        _normed(h, weight, _floats(job[DecodeJob.EPS], 1, 1)[0, 0], h)


def multiply(data):
    """Compute one product. Every thread runs this function."""
    job = carray(data, FIELDS)
    me, matrix = fetch_add(job[DecodeJob.COUNTERS]), carray(int_pointer(job[DecodeJob.TABLE]), _COLUMNS)
    B, N, K, size = job[DecodeJob.ROWS], matrix[Matrix.N], matrix[Matrix.K], _part_size(matrix[Matrix.N])
    own = job[DecodeJob.SCRATCH] + 4 * me * job[DecodeJob.SCRATCH_SIZE]
    x, y, quantised = _floats(job[DecodeJob.X], B, K), _floats(job[DecodeJob.Y], B, N), own
    sums = _floats(own + 2 * B * K, B, K // GROUP * 2)
    reduced, prepared = _floats(own + 2 * B * K + 8 * B * (K // GROUP), B, matrix[Matrix.RANK]), False
    while True:
        part = fetch_add(job[DecodeJob.COUNTERS] + LINE)
        if part * size >= N:
            break
        if not prepared:
            _quantise_input(x, quantised, sums)
            _low_rank_input(matrix, x, reduced)
            prepared = True
        _product(matrix, B, quantised, sums, reduced, y, part * size, min(N, (part + 1) * size))
