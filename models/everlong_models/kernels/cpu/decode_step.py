"""The numba kernel for a whole decode step of a decoder on a CPU.

Calling PyTorch's operations takes a third of a decode step, and its four-bit products run at half the speed of these
(docs/research/lab-notes.md). So `thread_pool` runs one function, `step`, on all threads from beginning to end. Threads take parts of each
phase until none is left. Within a step no thread waits for a thread that has not started, whose core may be busy elsewhere.

Activations that are multiplied by weights have 16 bits, and so do keys and values; everything else is float32. One thread computes
each output, in a fixed order of summation, so results do not depend on other rows or on the number of threads, to the bit.

Arrays are passed as addresses, in tables of int64. All compiled code is in the modules of this folder that `thread_pool.compiled`
lists: it hashes their source to recognise stored machine code of another version.

Shapes: B rows, T of which may be successive positions of one cache; D width, H query heads and G key heads of dimension d, F the MLP's width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray

from everlong_models.kernels.cpu import experts
from everlong_models.kernels.cpu.float_products import mix_2, mix_more, scores_1, scores_4
from everlong_models.kernels.cpu.job import (
    FIELDS,
    LAYER_ROWS,
    LINE,
    MATRIX_FIELDS,
    DecodeJob,
    Detail,
    Layer,
    Matrix,
)
from everlong_models.kernels.cpu.matrix_product import low_rank_input, part_size, product, quantise_input
from everlong_models.kernels.cpu.primitives import (
    address,
    compiled,
    compiled_as,
    dot,
    fetch_add,
    floats,
    gate_columns,
    int_pointer,
    norm_factor,
    normed,
    rotated,
    softmax_weights,
    wait,
    weighted,
)
from everlong_models.kernels.cpu.simd import GROUP, LANES, soft_cap, store_float16

_POSITIONS_IN_CACHE = 64
"""Positions whose keys (or values) stay in the L1 cache while all heads of a group read them."""
_STORE, _ATTEND, _ADD_ATTENTION, _ADD_MLP = range(len(Layer), len(Layer) + 4)
"""Phases without a matrix. The first stores the keys and values of rows that attend to each other's. The last two add to the residual stream
what attention and MLP computed, if it is normalised first."""
_EXPERTS = _ADD_MLP + 1
"""The first phase of a mixture of experts. A layer has these phases, or `GATE` and `DOWN`."""
_BEFORE_MLP, _MLP = (int(Layer.QKV), _STORE, _ATTEND, int(Layer.O), _ADD_ATTENTION), (int(Layer.GATE), int(Layer.DOWN))
_PHASES = (*_BEFORE_MLP, *_MLP, _ADD_MLP)
_PHASES_WITH_EXPERTS = (*_BEFORE_MLP, *_MLP, *range(_EXPERTS, _EXPERTS + experts.PHASES), _ADD_MLP)
PHASES, EXPERT_PHASES = len(_PHASES), len(_PHASES_WITH_EXPERTS) - len(_MLP)
"""The number of phases of a layer without experts, and with them."""


def _of_heads(name, one, two, three):
    """Make a function that calls the `simd` intrinsic for a number of heads."""

    @compiled_as(name)
    def of_heads(heads, *to):
        if heads == 3:
            three(*to)
        elif heads == 2:
            two(*to)
        else:
            one(*to)

    return of_heads


_scores_1, _scores_4, _mix_2, _mix_more = (
    _of_heads("scores_1", *scores_1),
    _of_heads("scores_4", *scores_4),
    _of_heads("mix_2", *mix_2),
    _of_heads("mix_more", *mix_more),
)


@compiled
def _norm_heads(job, details, row, head, group, queries, key):
    """queries ← heads `head` … of a row, key ← its key head `group`, with their RMS norms."""
    H, G, d = job[DecodeJob.HEADS], job[DecodeJob.KV_HEADS], job[DecodeJob.HEAD_DIM]
    place, eps = job[DecodeJob.Y] + 4 * row * (H + 2 * G) * d, floats(job[DecodeJob.EPS], 1, 1)[0, 0]
    heads, whole = floats(place, H + G, d), details[Detail.WHOLE]
    factor = norm_factor(floats(place, 1, H * d)[0], eps) if whole else np.float32(0)
    weights = floats(details[Detail.QUERIES], H if whole else 1, d)
    for n in range(len(queries)):
        x = heads[head + n]
        weighted(x, factor if whole else norm_factor(x, eps), weights[(head + n) * whole], queries[n])
    x, weights = heads[H + group], floats(details[Detail.KEYS], G if whole else 1, d)
    factor = norm_factor(floats(place + 4 * H * d, 1, G * d)[0], eps) if whole else norm_factor(x, eps)
    weighted(x, factor, weights[group * whole], key)


@compiled
def _turn_heads(job, details, row, at, head, queries, key):
    """queries ← heads `head` … of a row, key ← their key: with their norms, if the layer has any, rotated, the queries scaled."""
    H, G, d, r = job[DecodeJob.HEADS], job[DecodeJob.KV_HEADS], job[DecodeJob.HEAD_DIM], job[DecodeJob.ROTARY]
    heads, group = floats(job[DecodeJob.Y] + 4 * row * (H + 2 * G) * d, H + G, d), head // (H // G)
    offset = details[Detail.ROTATION] * job[DecodeJob.ROTATION_SIZE] + 4 * at * r
    cos, sin = floats(job[DecodeJob.COS] + offset, 1, r)[0], floats(job[DecodeJob.SIN] + offset, 1, r)[0]
    scale = floats(job[DecodeJob.SCALE], 1, 1)[0, 0]
    if details[Detail.QUERIES]:
        _norm_heads(job, details, row, head, group, queries, key)
        for n in range(len(queries)):
            rotated(queries[n], cos, sin, scale, queries[n])
        rotated(key, cos, sin, np.float32(1), key)
    else:
        for n in range(len(queries)):
            rotated(heads[head + n], cos, sin, scale, queries[n])
        rotated(heads[H + group], cos, sin, np.float32(1), key)


@compiled
def _places(job, row, layer, group):
    """Return the addresses of the keys and of the values of a group in a layer, in the cache that a row continues."""
    keys = (
        job[DecodeJob.KV]
        + row // job[DecodeJob.STEPS] * job[DecodeJob.KV_ROW]
        + layer * job[DecodeJob.KV_LAYER]
        + group * job[DecodeJob.KV_HEAD]
    )
    return keys, keys + job[DecodeJob.KV_KIND]


@compiled
def _store(job, own, layers, layer, part):
    """Store the new key and value of a part: one group, of one row."""
    H, G, d = job[DecodeJob.HEADS], job[DecodeJob.KV_HEADS], job[DecodeJob.HEAD_DIM]
    row, group = divmod(part, G)
    at = carray(int_pointer(job[DecodeJob.POSITIONS]), job[DecodeJob.ROWS])[row]
    key, no_queries = floats(own, 1, d)[0], floats(own, 0, d)
    _turn_heads(job, layers[layer, Layer.DETAILS], row, at, group * (H // G), no_queries, key)
    value = floats(job[DecodeJob.Y] + 4 * (row * (H + 2 * G) + H + G + group) * d, 1, d)[0]
    keys, values = _places(job, row, layer, group)
    store_float16(address(key), keys + at * job[DecodeJob.KV_POSITION], d // LANES)
    store_float16(address(value), values + at * job[DecodeJob.KV_POSITION], d // LANES)


@compiled
def _weigh(job, scores, count):
    """Turn the scores of one query into weights, in place: capped, if the model does, exponentiated. Return their sum."""
    if job[DecodeJob.CAP]:
        soft_cap(address(scores), floats(job[DecodeJob.CAP], 1, 1)[0, 0], (count + LANES - 1) // LANES)
    return softmax_weights(scores, count)


@compiled
def _attend(job, own, layers, layer, part):
    """Compute the attention of a part: heads of one group, of one row. The part with the group's first head stores the new key and value,
    unless the phase before did."""
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
    mixed = floats(job[DecodeJob.MIXED] + 4 * part * many * d, many, d)
    queries, key = floats(own, many, d), floats(own + 4 * many * d, 1, d)[0]
    scores = floats(own + 4 * (many + 1) * d, many, wide)
    _turn_heads(job, layers[layer, Layer.DETAILS], row, at, head, queries, key)
    value = floats(job[DecodeJob.Y] + 4 * (row * (H + 2 * G) + H + G + group) * d, 1, d)[0]
    (keys, values), stride = _places(job, row, layer, group), job[DecodeJob.KV_POSITION]
    if head % (H // G) == 0 and job[DecodeJob.STEPS] == 1:
        store_float16(address(key), keys + at * stride, blocks)
        store_float16(address(value), values + at * stride, blocks)
    begin = max(0, at + 1 - layers[layer, Layer.DETAILS, Detail.WINDOW])
    keys, values, at = keys + begin * stride, values + begin * stride, at - begin
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
        scores[n, at] = dot(queries[n], key)
        total = _weigh(job, scores[n], at + 1)
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


@compiled
def _phase_input(job, own, phase):
    """Return the buffers for a phase's input: x (B, K), its 16-bit copy, the groups' scales and sums, and x Aᵀ of two updates."""
    B, D, F, wide, rank = (
        job[DecodeJob.ROWS],
        job[DecodeJob.WIDTH],
        job[DecodeJob.MLP_WIDTH],
        job[DecodeJob.WIDEST],
        job[DecodeJob.RANK],
    )
    x = floats(own, B, D)
    if phase == Layer.O:
        x = floats(job[DecodeJob.MIXED], B, job[DecodeJob.HEADS] * job[DecodeJob.HEAD_DIM])
    elif phase == Layer.DOWN:
        x = floats(job[DecodeJob.GATE], B, F)
    quantised = own + 4 * B * wide
    sums = quantised + 2 * B * wide
    reduced = sums + 8 * B * (wide // GROUP)
    return x, quantised, floats(sums, B, x.shape[1] // GROUP * 2), (reduced, reduced + 4 * B * rank)


@compiled
def _prepare_input(job, own, layers, layer, phase):
    """Fill the buffers of `_phase_input`."""
    x, quantised, sums, reduced = _phase_input(job, own, phase)
    if phase in (Layer.QKV, Layer.GATE):
        B, D = x.shape
        h, weight = (
            floats(job[DecodeJob.X], B, D),
            layers[layer, Layer.DETAILS, Detail.BEFORE if phase == Layer.QKV else Detail.BETWEEN],
        )
        if weight:
            normed(h, floats(weight, 1, D)[0], floats(job[DecodeJob.EPS], 1, 1)[0, 0], x)
        else:
            for m in range(B):  # `x[:] = h` takes numba four seconds more: it compiles the message of an error, too
                for i in range(D):
                    x[m, i] = h[m, i]
    quantise_input(x, quantised, sums)
    for n in range(2 if phase in (Layer.QKV, Layer.GATE) else 1):
        matrix = layers[layer, Layer.V if n and phase == Layer.QKV else phase + n]
        low_rank_input(matrix, x, floats(reduced[n], x.shape[0], matrix[Matrix.RANK]))


@compiled
def _outputs(layers, layer, phase):
    """Return the number of a phase's outputs."""
    return layers[layer, phase, Matrix.N] + (layers[layer, Layer.V, Matrix.N] if phase == Layer.QKV else 0)


@compiled
def _compute_part(job, own, layers, layer, phase, start, end):
    """Compute outputs `start` … `end` of a phase's matrices, and apply them: the MLP's gate, or the residual sum."""
    x, quantised, sums, reduced = _phase_input(job, own, phase)
    B, F, N = x.shape[0], job[DecodeJob.MLP_WIDTH], _outputs(layers, layer, phase)
    out = floats(
        job[DecodeJob.Y] if phase == Layer.QKV else job[DecodeJob.GATE] if phase == Layer.GATE else job[DecodeJob.OUT],
        B,
        N,
    )
    up = floats(job[DecodeJob.UP], B, F)
    for n in range(2 if phase in (Layer.QKV, Layer.GATE) else 1):
        values = n > 0 and phase == Layer.QKV  # `V` has no outputs if `QKV` has all
        matrix, first = layers[layer, Layer.V if values else phase + n], layers[layer, phase, Matrix.N] if values else 0
        to, low_rank = up if n > 0 and not values else out, floats(reduced[n], B, matrix[Matrix.RANK])
        rows = max(start - first, 0), min(end - first, matrix[Matrix.N])
        product(matrix, B, quantised, sums, low_rank, address(to) + 4 * first, to.shape[1], *rows)
    if phase == Layer.GATE:
        gate_columns(job[DecodeJob.GELU], out, up, start, end)
    elif phase != Layer.QKV and not _norm_after(layers, layer, phase):
        h, factor = floats(job[DecodeJob.X], B, N), floats(job[DecodeJob.RESIDUAL], 1, 1)[0, 0]
        for m in range(B):
            for i in range(start, end):
                h[m, i] += out[m, i] * factor


@compiled
def _norm_after(layers, layer, phase):
    """Return the address of the weight of the norm of what `O` or `DOWN` computes; 0 without one."""
    attention = phase == Layer.O or phase == _ADD_ATTENTION  # noqa: PLR1714 - numba compiles no tuple of both types
    return layers[layer, Layer.DETAILS, Detail.AFTER_ATTENTION if attention else Detail.AFTER_MLP]


@compiled
def _add_normed(job, weight, row):
    """Add the norm of a row of `OUT` to the residual stream."""
    D = job[DecodeJob.WIDTH]
    out = floats(job[DecodeJob.OUT] + 4 * row * D, 1, D)
    normed(out, floats(weight, 1, D)[0], floats(job[DecodeJob.EPS], 1, 1)[0, 0], out)
    h = floats(job[DecodeJob.X] + 4 * row * D, 1, D)[0]
    for i in range(D):
        h[i] += out[0, i]


@compiled
def _parts(job, layers, layer, phase):
    """Return the number of parts of a phase, and the number of outputs of a part."""
    if phase == _STORE:
        return job[DecodeJob.ROWS] * job[DecodeJob.KV_HEADS] if job[DecodeJob.STEPS] > 1 else 0, 1
    if phase == _ATTEND:
        return job[DecodeJob.ROWS] * job[DecodeJob.HEADS] // job[DecodeJob.HEADS_PER_PART], 1
    if phase >= _ADD_ATTENTION:
        return job[DecodeJob.ROWS] if _norm_after(layers, layer, phase) else 0, 1
    if phase in (Layer.GATE, Layer.DOWN) and layers[layer, Layer.DETAILS, Detail.EXPERTS]:
        return 0, 1
    N = _outputs(layers, layer, phase)
    size = part_size(N)
    return (N + size - 1) // size, size


@compiled
def _last_norm(job, next_part):
    D, weight = job[DecodeJob.WIDTH], floats(job[DecodeJob.NORM], 1, job[DecodeJob.WIDTH])[0]
    while True:
        row = fetch_add(next_part)
        if row >= job[DecodeJob.ROWS]:
            break
        h = floats(job[DecodeJob.X] + 4 * row * D, 1, D)
        normed(h, weight, floats(job[DecodeJob.EPS], 1, 1)[0, 0], h)


def _step(name: str, *, with_experts: bool) -> Callable[[Any], None]:
    """Make the kernel that computes all layers and the last norm, for one position per row. Every thread runs it.

    Each thread takes parts of a phase until none is left. A thread that starts late finds earlier phases done. There are two kernels, since
    experts take six seconds to compile.
    """
    phases = _PHASES_WITH_EXPERTS if with_experts else _PHASES

    def step(data):  # noqa: PLR0912 - a kernel: one branch for each phase
        job = carray(data, FIELDS)
        me = fetch_add(job[DecodeJob.COUNTERS])
        own = job[DecodeJob.SCRATCH] + 4 * me * job[DecodeJob.SCRATCH_SIZE]
        layers = carray(int_pointer(job[DecodeJob.TABLE]), (job[DecodeJob.LAYERS], LAYER_ROWS, MATRIX_FIELDS))
        next_part, done = job[DecodeJob.COUNTERS] + LINE, job[DecodeJob.COUNTERS] + 2 * LINE
        for layer in range(job[DecodeJob.LAYERS]):
            for phase in phases:
                parts, size, prepared = 0, 1, False
                if with_experts and phase >= _EXPERTS:
                    parts = experts.layer_parts(job, layers, layer, phase - _EXPERTS)
                else:
                    parts, size = _parts(job, layers, layer, phase)
                if not parts:
                    continue
                while True:
                    part = fetch_add(next_part)
                    if part >= parts:
                        break
                    if with_experts and phase >= _EXPERTS:
                        experts.compute_layer(job, own, layers, layer, phase - _EXPERTS, part)
                    elif phase == _STORE:
                        _store(job, own, layers, layer, part)
                    elif phase == _ATTEND:
                        _attend(job, own, layers, layer, part)
                    elif phase >= _ADD_ATTENTION:
                        _add_normed(job, _norm_after(layers, layer, phase), part)
                    else:
                        if not prepared:
                            _prepare_input(job, own, layers, layer, phase)
                            prepared = True
                        end = min(_outputs(layers, layer, phase), (part + 1) * size)
                        _compute_part(job, own, layers, layer, phase, part * size, end)
                    fetch_add(done)
                wait(done, parts)
                next_part, done = next_part + 2 * LINE, done + 2 * LINE
        _last_norm(job, next_part)

    step.__name__ = name
    return step


step, step_with_experts = _step("step", with_experts=False), _step("step_with_experts", with_experts=True)
