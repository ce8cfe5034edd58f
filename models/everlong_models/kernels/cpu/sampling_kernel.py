"""The numba kernel that samples tokens on a CPU.

With PyTorch's operations, as in `generate.sampling`, sampling takes a tenth or more of a small model's decode step
(docs/research/lab-notes.md), mostly for sorting probabilities. This kernel does not sort: it finds thresholds by counting, digit by digit of
the probabilities' bits (a radix selection). Threads take rows, as in `decode_step`. V: the vocabulary's size.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numba import carray, uint64

from everlong_models.kernels.cpu.job import FIELDS, LINE
from everlong_models.kernels.cpu.primitives import (
    address,
    compiled,
    compiled_sum,
    double_pointer,
    fetch_add,
    floats,
    int_pointer,
)
from everlong_models.kernels.cpu.simd import GROUP, LANES, exp_shifted, maximum

_DIGIT = 10
"""Bits of a radix digit. Three digits cover all bits that a float32 from 0 to 1 uses."""
COUNTS = 2 << _DIGIT
"""Size of a thread's counters, in float32 values."""


class SampleJob(IntEnum):
    """The fields of a sampling job: sizes and addresses. `SCRATCH`, `SCRATCH_SIZE` and `COUNTERS` as in `DecodeJob`."""

    ROWS = 0
    SCRATCH = 2
    SCRATCH_SIZE = 3
    COUNTERS = 4
    SCORES = 5  # float32 (B, V)
    V = 6
    PARAMETERS = 7  # float64 (B, 4): temperature, top_k, top_p, min_p
    SEEDS = 8  # int64 (B, 2): a row's seed, and the number of tokens it has sampled
    PROBABILITIES = 9  # float32 (B, V padded to `GROUP`): the remaining probabilities, divided by the largest
    IDS = 10  # int64, the same shape: the tokens of these probabilities
    SAMPLED = 11  # int64 (B, 2): the sampled token, and parameters many tokens remained (0 at temperature 0)


@compiled
def _argmax(scores, p):
    """Return the index of the first maximum, and the maximum. p ← a copy of the scores, with −∞ for NaN and for padding."""
    V = len(scores)
    for i in range(V):
        p[i] = scores[i] if scores[i] == scores[i] else np.float32(-np.inf)  # NaN differs from itself
    for i in range(V, len(p)):
        p[i] = -np.inf
    most = maximum(address(p), len(p) // LANES)
    for i in range(V):
        if p[i] == most:
            return i, most
    return 0, most


@compiled_sum
def _sum(p):
    total = 0.0
    for i in range(len(p)):
        total += p[i]
    return total


@compiled
def _pack(p, ids, least):
    """Move all of `p` above `least` to the front, and store their `ids`. Return their number."""
    count = 0
    for first in range(0, len(p), GROUP):
        if maximum(address(p) + 4 * first, GROUP // LANES) > least:
            for i in range(first, first + GROUP):
                if p[i] > least:
                    p[count], ids[count] = p[i], i
                    count += 1
    return count


@compiled
def _threshold(p, by_mass, limit, counts):
    """Find the value at which the sum over `p`, in descending order, reaches `limit`.

    `by_mass`: sum the values; otherwise count them. Return the bits of that value, and the sum over all greater values.
    """
    bits, cut, before = p.view(np.int32), 0, 0.0
    for shift in (2 * _DIGIT, _DIGIT, 0):
        for n in range(len(counts)):
            counts[n] = 0
        for i in range(len(p)):
            if bits[i] >> (shift + _DIGIT) == cut:
                counts[bits[i] >> shift & ((1 << _DIGIT) - 1)] += p[i] if by_mass else np.float32(1)
        digit = (1 << _DIGIT) - 1
        while digit and before + counts[digit] < limit:
            before += counts[digit]
            digit -= 1
        cut = cut << _DIGIT | digit
    return cut, before


@compiled
def _keep_above(p, ids, cut, before, limit, least, likeliest):
    """Move to the front all of `p` above the threshold `cut`, and of its equals the first, until the sum reaches `limit`.

    Drops values below `least`, but never the `likeliest`. Return the number of values kept.
    """
    bits, count = p.view(np.int32), 0
    for i in range(len(p)):
        stays = bits[i] > cut
        if bits[i] == cut:
            stays = before < limit
            before += p[i]
        if ids[i] == likeliest or (stays and p[i] >= least):
            p[count], ids[count] = p[i], ids[i]
            count += 1
    return count


@compiled
def _filter(scores, parameters, p, ids, counts):
    """Apply temperature, top_k, top_p and min_p to `scores`.

    Store the remaining probabilities, divided by the largest, in `p` and their tokens in `ids`. Return their number, and the likeliest token.
    """
    temperature, top_k, top_p, min_p = parameters[0], parameters[1], parameters[2], parameters[3]
    likeliest, most = _argmax(scores, p)
    temperature = max(np.float32(temperature), np.finfo(np.float32).tiny)
    for i in range(len(p)):
        p[i] = (p[i] - most) / temperature
    exp_shifted(address(p), np.float32(0), len(p) // LANES)
    whole = _sum(p)
    # A quick first cut: all smaller probabilities together are less than the share that top_p drops.
    least = 0.0 if top_k else max(min_p, (1 - top_p) * whole / len(scores)) / 2
    count = _pack(p, ids, np.float32(least))
    if top_k:
        cut, _ = _threshold(p[:count], False, top_k, counts)
        count = _keep_above(p[:count], ids, cut, 0.0, np.inf, 0.0, likeliest)
        whole = _sum(p[:count])
    cut, before = 0, 0.0
    if top_p < 1:
        cut, before = _threshold(p[:count], True, top_p * whole, counts)
    return _keep_above(p[:count], ids, cut, before, top_p * whole if top_p < 1 else np.inf, min_p, likeliest), likeliest


@compiled
def _splitmix(x):
    """Return 64 random bits, as `splitmix.splitmix64`."""
    x = (x ^ x >> uint64(30)) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> uint64(27)) * uint64(0x94D049BB133111EB)
    return x ^ x >> uint64(31)


_GOLDEN = 0x9E3779B97F4A7C15


@compiled
def _exponential_race(p, ids, seed, sampled, likeliest):
    """Return the token with the largest p / Exp(1), an exponential race as in `sampling.sample_from_logits`."""
    state = _splitmix(_splitmix(uint64(seed)) + uint64(sampled) * uint64(_GOLDEN))
    first, most = likeliest, 0.0
    for i in range(len(p)):
        uniform = (np.float64(_splitmix(state + uint64(ids[i] + 1) * uint64(_GOLDEN)) >> uint64(12)) + 0.5) * 2.0**-52
        if p[i] > most * uniform:  # otherwise it cannot win, because −log(1 − u) ≥ u
            share = p[i] / -math.log1p(-uniform)
            if share > most:
                first, most = ids[i], share
    return first


def sample(data):
    """Sample a token for each row. Every thread runs this function."""
    job = carray(data, FIELDS)
    me, B, V = fetch_add(job[SampleJob.COUNTERS]), job[SampleJob.ROWS], job[SampleJob.V]
    wide = (V + GROUP - 1) // GROUP * GROUP
    counts = carray(double_pointer(job[SampleJob.SCRATCH] + 4 * me * job[SampleJob.SCRATCH_SIZE]), 1 << _DIGIT)
    scores, probabilities = floats(job[SampleJob.SCORES], B, V), floats(job[SampleJob.PROBABILITIES], B, wide)
    parameters, seeds = (
        carray(double_pointer(job[SampleJob.PARAMETERS]), (B, 4)),
        carray(int_pointer(job[SampleJob.SEEDS]), (B, 2)),
    )
    ids, sampled = (
        carray(int_pointer(job[SampleJob.IDS]), (B, wide)),
        carray(int_pointer(job[SampleJob.SAMPLED]), (B, 2)),
    )
    while True:
        row = fetch_add(job[SampleJob.COUNTERS] + LINE)
        if row >= B:
            break
        if parameters[row, 0] == 0:
            sampled[row, 0], sampled[row, 1] = _argmax(scores[row], probabilities[row])[0], 0
        else:
            count, likeliest = _filter(scores[row], parameters[row], probabilities[row], ids[row], counts)
            sampled[row, 0] = _exponential_race(
                probabilities[row, :count], ids[row], seeds[row, 0], seeds[row, 1], likeliest
            )
            sampled[row, 1] = count
