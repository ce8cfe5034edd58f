"""The numba kernel of a mixture of experts with quantised weights, and the phases that a decode step shares with it.

    M(x) = Σ w_e D_e (act(G_e x) · U_e x)  over the k experts e with the largest p_e,    p = softmax(R x),    w = p, or p / Σ p

A *pair* is a row and one of its experts. The pairs are put in the order of their experts, so that the weights of an expert are read once for
all of its rows. A row's result depends on no other row, to the bit: one thread computes each output, and a row's sum is in the order of
its probabilities.

Shapes: B rows, D width, E experts, k chosen for each row, P = B k pairs, F inner width.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from everlong_models.kernels.cpu.job import (
    EXPERT_FIELDS,
    FIELDS,
    LINE,
    MATRIX_FIELDS,
    DecodeJob,
    Detail,
    Experts,
    Layer,
)
from everlong_models.kernels.cpu.matrix_product import ROWS, part_size, product, quantise_input
from everlong_models.kernels.cpu.primitives import (
    compiled,
    dot,
    fetch_add,
    floats,
    gate_columns,
    int_pointer,
    normed,
    softmax_weights,
    wait,
)
from everlong_models.kernels.cpu.simd import GROUP, LANES

SCORE, CHOOSE, ORDER, ENTER, GATE, LEAVE, DOWN, SUM = range(8)
"""The phases: scores of all experts, the best of each row, the pairs in order, their inputs in 16 bits, G and U, the inputs of D, D, the sums."""
PHASES = 8
_SCORES = 16
"""Experts whose scores a part computes."""
_TABLE = 3
_PAIR_ROWS, _PLACES, _FIRSTS, _USED, _WEIGHTS, _ALL_SCORES, _INPUTS, _SUMS, _GATES, _UPS, _OUTPUTS = range(11)
"""What `_memory` returns, in this order."""


@compiled
def _ints(address, count):
    """Return the int64 array (count,) at `address`."""
    return carray(int_pointer(address), count)


@compiled
def _memory(job, experts):
    """Return the addresses of what the threads share.

    Integers: each pair's row in order (P,), each pair's place in this order (B, k), each expert's first pair (E + 1,), the experts that have
    pairs (E,), their number (1,). Then float32: weights (B, k), scores (B, E), inputs in 16 bits (P, max(D, F)) with their scales and sums, gate
    (P, F), up (P, F), outputs (P, D).
    """
    B, D, E, F = job[DecodeJob.ROWS], job[DecodeJob.WIDTH], experts[Experts.COUNT], experts[Experts.INNER]
    P, wide = B * experts[Experts.CHOSEN], max(D, F)
    rows = job[DecodeJob.PAIRS]
    places = rows + 8 * P
    firsts = places + 8 * P
    used = firsts + 8 * (E + 1)
    weights = used + 8 * (E + 1)
    scores = weights + 4 * P
    quantised = scores + 4 * B * (E + -E % LANES)
    sums = quantised + 2 * P * wide
    gate = sums + 8 * P * (wide // GROUP)
    up = gate + 4 * P * F
    return rows, places, firsts, used, weights, scores, quantised, sums, gate, up, up + 4 * P * F


def memory_size(table: np.ndarray, rows: int, width: int) -> int:
    """Return the size of this memory in float32 values, for a table of `Experts`."""
    count, chosen, inner = (int(table[field]) for field in (Experts.COUNT, Experts.CHOSEN, Experts.INNER))
    pairs, wide = rows * chosen, max(width, inner)
    integers = 2 * (2 * pairs + 2 * (count + 1))
    inputs = pairs * wide // 2 + 2 * pairs * (wide // GROUP)
    return integers + pairs + rows * (count + -count % LANES) + inputs + pairs * (2 * inner + width) + LANES


@compiled
def parts(job, experts, phase):
    """Return the number of parts of a phase."""
    B, E, k = job[DecodeJob.ROWS], experts[Experts.COUNT], experts[Experts.CHOSEN]
    if phase == SCORE:
        return B * ((E + _SCORES - 1) // _SCORES)
    if phase == ORDER:
        return 1
    if phase in (ENTER, LEAVE):
        return B * k
    if phase in (GATE, DOWN):
        N = experts[Experts.INNER] if phase == GATE else job[DecodeJob.WIDTH]
        size = part_size(N)
        # The most that there can be. The number of experts in use is not read here: a thread that starts late would find that of a later layer.
        return min(B * k, E) * ((N + size - 1) // size)
    return B


@compiled
def _input(job, norm, row, out):
    """out (D,) ← a row of the input, normed if `norm` is the address of a weight."""
    D = job[DecodeJob.WIDTH]
    x = floats(job[DecodeJob.X] + 4 * row * D, 1, D)
    if norm:
        normed(x, floats(norm, 1, D)[0], floats(job[DecodeJob.EPS], 1, 1)[0, 0], out)
    else:
        for i in range(D):
            out[0, i] = x[0, i]


@compiled
def _score(job, own, experts, norm, part):
    """Compute the scores of some experts for one row."""
    D, E = job[DecodeJob.WIDTH], experts[Experts.COUNT]
    blocks = (E + _SCORES - 1) // _SCORES
    row, first, wide = part // blocks, part % blocks * _SCORES, E + -E % LANES
    x, router = floats(own, 1, D), floats(experts[Experts.ROUTER], E, D)
    _input(job, norm, row, x)
    scores = floats(_memory(job, experts)[_ALL_SCORES] + 4 * row * wide, 1, wide)[0]
    for e in range(first, min(E, first + _SCORES)):
        scores[e] = dot(x[0], router[e])


@compiled
def _choose(job, experts, row):
    """Choose the experts of a row, best first: store their numbers as its places for now, and their weights."""
    E, k = experts[Experts.COUNT], experts[Experts.CHOSEN]
    wide, memory = E + -E % LANES, _memory(job, experts)
    scores = floats(memory[_ALL_SCORES] + 4 * row * wide, 1, wide)[0]
    chosen, weights = _ints(memory[_PLACES] + 8 * row * k, k), floats(memory[_WEIGHTS] + 4 * row * k, 1, k)[0]
    total, some = softmax_weights(scores, E), np.float32(0)
    for n in range(k):
        best = -1
        for e in range(E):
            if scores[e] != -1 and (best < 0 or scores[e] > scores[best]):
                best = e
        chosen[n], weights[n] = best, scores[best]
        some += scores[best]
        scores[best] = -1
    by = some if experts[Experts.NORMALISED] else total
    for n in range(k):
        weights[n] /= by


@compiled
def _order(job, experts):
    """Put the pairs in the order of their experts, those of an expert in the order of the rows."""
    E, k, B = experts[Experts.COUNT], experts[Experts.CHOSEN], job[DecodeJob.ROWS]
    memory = _memory(job, experts)
    rows, places = _ints(memory[_PAIR_ROWS], B * k), _ints(memory[_PLACES], B * k)
    firsts, used = _ints(memory[_FIRSTS], E + 1), _ints(memory[_USED], E + 1)
    for e in range(E + 1):
        firsts[e] = 0
    for n in range(B * k):
        firsts[places[n] + 1] += 1
    many = 0
    for e in range(E):
        if firsts[e + 1]:
            used[many] = e
            many += 1
        firsts[e + 1] += firsts[e]
    used[E] = many
    for n in range(B * k):
        e = places[n]
        places[n] = firsts[e]
        rows[firsts[e]] = n // k
        firsts[e] += 1
    for e in range(E, 0, -1):  # each is now where the next begins
        firsts[e] = firsts[e - 1]
    firsts[0] = 0


@compiled
def _enter(job, own, experts, norm, phase, pair):
    """Quantise the input of a pair: of G and U, or of D."""
    D, F, memory = job[DecodeJob.WIDTH], experts[Experts.INNER], _memory(job, experts)
    K = D if phase == ENTER else F
    if phase == ENTER:
        x = floats(own, 1, D)
        _input(job, norm, _ints(memory[_PAIR_ROWS], pair + 1)[pair], x)
    else:
        x = floats(memory[_GATES] + 4 * pair * F, 1, F)
    sums = floats(memory[_SUMS] + 8 * pair * (K // GROUP), 1, K // GROUP * 2)
    quantise_input(x, memory[_INPUTS] + 2 * pair * K, sums)


@compiled
def _multiply(job, experts, phase, part):
    """Compute some outputs of an expert for all of its rows: of G and U, with the activation, or of D."""
    D, E, F, memory = job[DecodeJob.WIDTH], experts[Experts.COUNT], experts[Experts.INNER], _memory(job, experts)
    K, N = (D, F) if phase == GATE else (F, D)
    size = part_size(N)
    blocks = (N + size - 1) // size
    firsts, used = _ints(memory[_FIRSTS], E + 1), _ints(memory[_USED], E + 1)
    if part // blocks >= used[E]:
        return
    e, start = used[part // blocks], part % blocks * size
    end = min(N, start + size)
    matrices = carray(int_pointer(experts[Experts.MATRICES]), (E, _TABLE, MATRIX_FIELDS))
    first, last = firsts[e], firsts[e + 1]
    while first < last:
        many = min(ROWS, last - first)
        quantised = memory[_INPUTS] + 2 * first * K
        sums = floats(memory[_SUMS] + 8 * first * (K // GROUP), many, K // GROUP * 2)
        if phase == GATE:
            gate, up = memory[_GATES] + 4 * first * F, memory[_UPS] + 4 * first * F
            product(matrices[e, 0], many, quantised, sums, sums, gate, F, start, end)
            product(matrices[e, 1], many, quantised, sums, sums, up, F, start, end)
            gate_columns(job[DecodeJob.GELU], floats(gate, many, F), floats(up, many, F), start, end)
        else:
            product(matrices[e, 2], many, quantised, sums, sums, memory[_OUTPUTS] + 4 * first * D, D, start, end)
        first += many


@compiled
def _sum(job, own, experts, normed_after, row):
    """Add the outputs of a row's experts to the residual stream; store them in `OUT` if a norm follows, or without a residual stream."""
    D, k, memory = job[DecodeJob.WIDTH], experts[Experts.CHOSEN], _memory(job, experts)
    places, weights = _ints(memory[_PLACES] + 8 * row * k, k), floats(memory[_WEIGHTS] + 4 * row * k, 1, k)[0]
    total = floats(own, 1, D)[0]
    for i in range(D):
        total[i] = np.float32(0)
    for n in range(k):
        out = floats(memory[_OUTPUTS] + 4 * places[n] * D, 1, D)[0]
        for i in range(D):
            total[i] += weights[n] * out[i]
    if normed_after or not job[DecodeJob.RESIDUAL]:
        out = floats(job[DecodeJob.OUT] + 4 * row * D, 1, D)[0]
        for i in range(D):
            out[i] = total[i]
    else:
        h, factor = floats(job[DecodeJob.X] + 4 * row * D, 1, D)[0], floats(job[DecodeJob.RESIDUAL], 1, 1)[0, 0]
        for i in range(D):
            h[i] += total[i] * factor


@compiled
def compute(job, own, experts, norm, normed_after, phase, part):
    """Compute a part of a phase. `norm`: address of the weight of the norm of the input, or 0; `normed_after`: whether the result has a norm."""
    if phase == SCORE:
        _score(job, own, experts, norm, part)
    elif phase == CHOOSE:
        _choose(job, experts, part)
    elif phase == ORDER:
        _order(job, experts)
    elif phase in (ENTER, LEAVE):
        _enter(job, own, experts, norm, phase, part)
    elif phase in (GATE, DOWN):
        _multiply(job, experts, phase, part)
    else:
        _sum(job, own, experts, normed_after, part)


@compiled
def _of_layer(layers, layer):
    """Return a layer's table of `Experts`."""
    return carray(int_pointer(layers[layer, Layer.DETAILS, Detail.EXPERTS]), EXPERT_FIELDS)


@compiled
def layer_parts(job, layers, layer, phase):
    """Return the number of parts of a phase of a decode step; 0 in a layer without experts."""
    return parts(job, _of_layer(layers, layer), phase) if layers[layer, Layer.DETAILS, Detail.EXPERTS] else 0


@compiled
def compute_layer(job, own, layers, layer, phase, part):
    """Compute a part of a phase of a decode step."""
    details = layers[layer, Layer.DETAILS]
    compute(job, own, _of_layer(layers, layer), details[Detail.BETWEEN], details[Detail.AFTER_MLP] != 0, phase, part)


def mixture(data):
    """Compute y (B, D) for x (B, D). Every thread runs this function."""
    job = carray(data, FIELDS)
    own = job[DecodeJob.SCRATCH] + 4 * fetch_add(job[DecodeJob.COUNTERS]) * job[DecodeJob.SCRATCH_SIZE]
    experts = carray(int_pointer(job[DecodeJob.TABLE]), EXPERT_FIELDS)
    next_part, done = job[DecodeJob.COUNTERS] + LINE, job[DecodeJob.COUNTERS] + 2 * LINE
    for phase in range(PHASES):
        count = parts(job, experts, phase)
        while True:
            part = fetch_add(next_part)
            if part >= count:
                break
            compute(job, own, experts, 0, False, phase, part)
            fetch_add(done)
        wait(done, count)
        next_part, done = next_part + 2 * LINE, done + 2 * LINE
