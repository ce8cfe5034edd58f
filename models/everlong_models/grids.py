"""How weights become `Quantized` on a CPU, for numba to compile: by PyTorch's operations it is a third of what laying out a model
takes (docs/lab-notes.md). Shared out as in `kernels`, by panels.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import carray

from everlong_models.kernels import FIELDS, LINE, _compiled, _floats
from everlong_models.lanes import GROUP, LANES, PANEL, address, byte_pointer, ends, float_pointer, int_pointer, take


class Grid(IntEnum):
    """What is brought onto grids: sizes and addresses. `OWN`, `OWN_SIZE` and `COUNTERS` as in `kernels.Job`."""

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
    SCALES = 9  # float32 (N / PANEL, K / GROUP, 2, PANEL): step and least weight
    TOLERANCE = 10  # float32 (1,): how far a weight may lie off its grid, in steps
    OFF = 11  # int64 (1,): 1 as soon as one lies further off, after which nothing more is done; nobody looks where this is 0


@_compiled
def _round(weights, least, step, tolerance, codes):
    """Codes of a group; whether all weights, as numbers, were that near to their grid."""
    near = 0
    for i in range(GROUP):
        exact = (weights[i] - least) / step
        code = np.rint(exact)
        near += abs(exact - code) <= tolerance
        codes[i] = np.uint8(code)
    return near == GROUP


def onto_grids(data):
    """Codes and scales of all groups, each on a grid of 2^bits places from its least to its greatest weight."""
    job = carray(data, FIELDS)
    me, N, K, bits = take(job[Grid.COUNTERS]), job[Grid.N], job[Grid.K], job[Grid.BITS]
    weight, codes = _floats(job[Grid.WEIGHT], N, K), carray(byte_pointer(job[Grid.CODES]), N * K * bits // 8)
    scales = carray(float_pointer(job[Grid.SCALES]), (N // PANEL, K // GROUP, 2, PANEL))
    tolerance, off = _floats(job[Grid.TOLERANCE], 1, 1)[0, 0], carray(int_pointer(job[Grid.OFF]), 1)
    found = carray(byte_pointer(job[Grid.OWN] + 4 * me * job[Grid.OWN_SIZE]), (PANEL, GROUP))
    while True:
        part = take(job[Grid.COUNTERS] + LINE)
        if part * PANEL >= N or (job[Grid.OFF] and off[0]):
            break
        for g in range(K // GROUP):
            for n in range(PANEL):
                weights = weight[part * PANEL + n, g * GROUP : (g + 1) * GROUP]
                pair = job[Grid.SCALES] + 4 * (((part * (K // GROUP) + g) * 2) * PANEL + n)
                ends(address(weights), pair + 4 * PANEL, pair)
                least = scales[part, g, 1, n]
                d = (scales[part, g, 0, n] - least) / np.float32(2**bits - 1)
                scales[part, g, 0, n] = d
                if not _round(weights, least, d if d > 0 else np.float32(1), tolerance, found[n]) and job[Grid.OFF]:
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
