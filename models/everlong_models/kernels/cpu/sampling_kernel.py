"""What tokens are drawn with on a CPU, for numba to compile: by PyTorch's operations, as `sampling` has them, it takes a tenth of a
small model's step and more (docs/lab-notes.md), most of it to put probabilities in order. Here they stay where they are: which are too
small is found by counting, digit by digit of their bits. Shared out as in `kernels`, by rows. V tokens of a vocabulary.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numba import carray, uint64

from everlong_models.kernels.cpu.decode_step import FIELDS, LINE, _compiled, _floats, _summing
from everlong_models.kernels.cpu.simd import GROUP, LANES, address, double_pointer, greatest, int_pointer, take, weigh

_DIGIT = 10
"""Bits that are counted by at once: three times as many are all that a float32 up to 1 has."""
COUNTS = 2 << _DIGIT
"""What a thread counts in, in float32."""


class SampleJob(IntEnum):
    """What tokens are drawn of: sizes and addresses. `OWN`, `OWN_SIZE` and `COUNTERS` as in `kernels.DecodeJob`."""

    ROWS = 0
    OWN = 2
    OWN_SIZE = 3
    COUNTERS = 4
    SCORES = 5  # float32 (B, V)
    V = 6
    HOW = 7  # float64 (B, 4): temperature, top_k, top_p, min_p
    SEEDS = 8  # int64 (B, 2): a row's seed, and how many tokens it has drawn
    LEFT = 9  # float32 (B, V and what fills up the last `GROUP`): the probabilities that are left, by the likeliest's
    IDS = 10  # int64, as many: whose they are
    DRAWN = 11  # int64 (B, 2): a token, and how many were left; at temperature 0 nobody counts them


@_compiled
def _likeliest(scores, p):
    """The first of the greatest, and how great it is. p: a copy of the scores, -∞ for what is no number, and what fills it up."""
    V = len(scores)
    for i in range(V):
        p[i] = scores[i] if scores[i] == scores[i] else np.float32(-np.inf)  # what is no number is not itself
    for i in range(V, len(p)):
        p[i] = -np.inf
    most = greatest(address(p), len(p) // LANES)
    for i in range(V):
        if p[i] == most:
            return i, most
    return 0, most


@_summing
def _sum(p):
    total = 0.0
    for i in range(len(p)):
        total += p[i]
    return total


@_compiled
def _pack(p, ids, least):
    """All of `p` above `least`, one behind the other, and their `ids`; how many there are."""
    count = 0
    for first in range(0, len(p), GROUP):
        if greatest(address(p) + 4 * first, GROUP // LANES) > least:
            for i in range(first, first + GROUP):
                if p[i] > least:
                    p[count], ids[count] = p[i], i
                    count += 1
    return count


@_compiled
def _cut(p, by_mass, limit, counts):
    """The bits of the one of `p` that is reached when they are added up, the greatest first, until there is `limit` of them; and how much
    all greater ones are. `by_mass`: what is added up is what they are, else how many."""
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


@_compiled
def _keep(p, ids, cut, before, limit, least, likeliest):
    """`_pack` again: what is greater than the `cut`, and of its equals the first, until there is `limit`; nothing below `least`."""
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


@_compiled
def _leave(scores, how, p, ids, counts):
    """What temperature, top_k, top_p and min_p leave of exp(scores), by its greatest, in `p`, with `ids`: how many there are, and the
    likeliest."""
    temperature, top_k, top_p, min_p = how[0], how[1], how[2], how[3]
    likeliest, most = _likeliest(scores, p)
    temperature = max(np.float32(temperature), np.finfo(np.float32).tiny)
    for i in range(len(p)):
        p[i] = (p[i] - most) / temperature
    weigh(address(p), np.float32(0), len(p) // LANES)
    whole = _sum(p)
    # What is smaller would stay only if there were more of them: all together they are less than what top_p leaves out.
    least = 0.0 if top_k else max(min_p, (1 - top_p) * whole / len(scores)) / 2
    count = _pack(p, ids, np.float32(least))
    if top_k:
        cut, _ = _cut(p[:count], False, top_k, counts)
        count = _keep(p[:count], ids, cut, 0.0, np.inf, 0.0, likeliest)
        whole = _sum(p[:count])
    cut, before = 0, 0.0
    if top_p < 1:
        cut, before = _cut(p[:count], True, top_p * whole, counts)
    return _keep(p[:count], ids, cut, before, top_p * whole if top_p < 1 else np.inf, min_p, likeliest), likeliest


@_compiled
def _mixed(x):
    """As `sampling._mixed`."""
    x = (x ^ x >> uint64(30)) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> uint64(27)) * uint64(0x94D049BB133111EB)
    return x ^ x >> uint64(31)


_GOLDEN = 0x9E3779B97F4A7C15


@_compiled
def _race(p, ids, seed, drawn, likeliest):
    """As `sampling._draw`: the one whose share of a number of its own from Exp(1) is the greatest."""
    state = _mixed(_mixed(uint64(seed)) + uint64(drawn) * uint64(_GOLDEN))
    first, most = likeliest, 0.0
    for i in range(len(p)):
        uniform = (np.float64(_mixed(state + uint64(ids[i] + 1) * uint64(_GOLDEN)) >> uint64(12)) + 0.5) * 2.0**-52
        if p[i] > most * uniform:  # or it cannot be the greatest, since −log(1 − u) is no less than u
            share = p[i] / -math.log1p(-uniform)
            if share > most:
                first, most = ids[i], share
    return first


def sample(data):
    """A token for each row."""
    job = carray(data, FIELDS)
    me, B, V = take(job[SampleJob.COUNTERS]), job[SampleJob.ROWS], job[SampleJob.V]
    wide = (V + GROUP - 1) // GROUP * GROUP
    counts = carray(double_pointer(job[SampleJob.OWN] + 4 * me * job[SampleJob.OWN_SIZE]), 1 << _DIGIT)
    scores, left = _floats(job[SampleJob.SCORES], B, V), _floats(job[SampleJob.LEFT], B, wide)
    how, seeds = carray(double_pointer(job[SampleJob.HOW]), (B, 4)), carray(int_pointer(job[SampleJob.SEEDS]), (B, 2))
    ids, drawn = carray(int_pointer(job[SampleJob.IDS]), (B, wide)), carray(int_pointer(job[SampleJob.DRAWN]), (B, 2))
    while True:
        row = take(job[SampleJob.COUNTERS] + LINE)
        if row >= B:
            break
        if how[row, 0] == 0:
            drawn[row, 0], drawn[row, 1] = _likeliest(scores[row], left[row])[0], 0
        else:
            count, likeliest = _leave(scores[row], how[row], left[row], ids[row], counts)
            drawn[row, 0] = _race(left[row, :count], ids[row], seeds[row, 0], seeds[row, 1], likeliest)
            drawn[row, 1] = count
