"""How weights become `QuantisedMatrix` on a CPU, for numba to compile: by PyTorch's operations it is a third of what laying out a model
takes (docs/lab-notes.md). Shared out as in `kernels`, by panels.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import carray

from everlong_models.kernels.cpu.decode_step import FIELDS, LINE, _compiled, _floats
from everlong_models.kernels.cpu.simd import (
    GROUP,
    LANES,
    PANEL,
    address,
    byte_pointer,
    ends,
    int_pointer,
    keep,
    kept,
    take,
)


class QuantiseJob(IntEnum):
    """What is brought onto grids: sizes and addresses. `OWN`, `OWN_SIZE` and `COUNTERS` as in `kernels.DecodeJob`."""

    N = 0  # a multiple of `PANEL`
    OWN = 2
    OWN_SIZE = 3
    COUNTERS = 4
    WEIGHT = 5  # float32 (N, K)
    K = 6
    BITS = 7
    # uint8: of 8 bits (N / PANEL, K / 2, 2, LANES, 2), the panel's halves, and of each output two k; of 4 both halves in a byte,
    # the second one's in the high four: (N / PANEL, K / 2, LANES, 2)
    CODES = 8
    SCALES = 9  # float16 (N / PANEL, K / GROUP, 2, PANEL): step and least weight
    TOLERANCE = 10  # float32 (1,): how far a weight may lie off its grid, in steps
    OFF = 11  # int64 (1,): 1 as soon as one lies further off, after which nothing more is done; nobody looks where this is 0


@_compiled
def _round(weights, least, step, top, tolerance, codes):
    """Codes of a group, up to `top`; whether all weights, as numbers, were that near to their grid."""
    near = 0
    for i in range(GROUP):
        exact = (weights[i] - least) / step
        code = min(max(np.rint(exact), np.float32(0)), top)  # in 16 bits the least may be more than it was
        near += abs(exact - code) <= tolerance
        codes[i] = np.uint8(code)
    return near == GROUP


@_compiled
def _in_16_bits(numbers, to):
    """A panel's, stored so; they are what is left of them."""
    keep(address(numbers), to, PANEL // LANES)
    kept(to, address(numbers), PANEL // LANES)


def quantise_groups(data):
    """Codes and scales of all groups, each on a grid of 2^bits places from its least to its greatest weight, as near as 16 bits have the
    least one and a step."""
    job = carray(data, FIELDS)
    me, N, K, bits = take(job[QuantiseJob.COUNTERS]), job[QuantiseJob.N], job[QuantiseJob.K], job[QuantiseJob.BITS]
    weight, codes = (
        _floats(job[QuantiseJob.WEIGHT], N, K),
        carray(byte_pointer(job[QuantiseJob.CODES]), N * K * bits // 8),
    )
    tolerance, off = _floats(job[QuantiseJob.TOLERANCE], 1, 1)[0, 0], carray(int_pointer(job[QuantiseJob.OFF]), 1)
    own, top = job[QuantiseJob.OWN] + 4 * me * job[QuantiseJob.OWN_SIZE], np.float32(2**bits - 1)
    scales, found = _floats(own, 2, PANEL), carray(byte_pointer(own + 8 * PANEL), (PANEL, GROUP))
    steps, least = scales
    while True:
        part = take(job[QuantiseJob.COUNTERS] + LINE)
        if part * PANEL >= N or (job[QuantiseJob.OFF] and off[0]):
            break
        for g in range(K // GROUP):
            weights = weight[part * PANEL : (part + 1) * PANEL, g * GROUP : (g + 1) * GROUP]
            stored = job[QuantiseJob.SCALES] + 4 * (part * (K // GROUP) + g) * PANEL
            for n in range(PANEL):
                ends(address(weights[n]), address(least[n:]), address(steps[n:]))
            _in_16_bits(least, stored + 2 * PANEL)
            for n in range(PANEL):
                steps[n] = (steps[n] - least[n]) / top
            _in_16_bits(steps, stored)
            for n in range(PANEL):
                step = steps[n] if steps[n] > 0 else np.float32(1)
                if not _round(weights[n], least[n], step, top, tolerance, found[n]) and job[QuantiseJob.OFF]:
                    off[0] = 1
            at = (part * K + g * GROUP) * PANEL * bits // 8
            for k in range(GROUP):
                place = at + k // 2 * PANEL * bits // 4 + k % 2
                for n in range(LANES):
                    if bits == 4:
                        codes[place + 2 * n] = found[n, k] | found[n + LANES, k] << 4
                    else:
                        codes[place + 2 * n] = found[n, k]
                        codes[place + 2 * (n + LANES)] = found[n + LANES, k]
