"""The numba kernel that quantises a matrix to four or eight bits.

With PyTorch's operations this takes a third of the time to prepare a model (docs/research/lab-notes.md). Threads take panels of rows, as in
`decode_step`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import carray

from everlong_models.kernels.cpu.job import FIELDS, LINE
from everlong_models.kernels.cpu.primitives import address, byte_pointer, compiled, fetch_add, floats, int_pointer
from everlong_models.kernels.cpu.simd import GROUP, LANES, PANEL, load_float16, min_max, store_float16


class QuantiseJob(IntEnum):
    """The fields of a quantisation job: sizes and addresses. `SCRATCH`, `SCRATCH_SIZE` and `COUNTERS` as in `DecodeJob`."""

    N = 0  # a multiple of `PANEL`
    SCRATCH = 2
    SCRATCH_SIZE = 3
    COUNTERS = 4
    WEIGHT = 5  # float32 (N, K)
    K = 6
    BITS = 7
    # uint8. 8 bits: (N / PANEL, K / 2, 2, LANES, 2), i.e. panel, pair of k, half of the panel, output, k of the pair.
    # 4 bits: (N / PANEL, K / 2, LANES, 2), both halves of the panel in one byte, the second half in the high four bits.
    CODES = 8
    SCALES = 9  # float16 (N / PANEL, K / GROUP, 2, PANEL): step and minimum
    TOLERANCE = 10  # float32 (1,): how far a weight may be off its grid, in steps
    OFF_GRID = 11  # int64 (1,): set to 1 at the first weight that is further off, which ends the job. 0: no check


@compiled
def _round(weights, least, step, top, tolerance, codes):
    """Store the codes (0 … `top`) of a group. Return whether each weight is a number within `tolerance` steps of its grid."""
    near = 0
    for i in range(GROUP):
        exact = (weights[i] - least) / step
        code = min(max(np.rint(exact), np.float32(0)), top)  # rounding to float16 may have raised the minimum
        near += abs(exact - code) <= tolerance
        codes[i] = np.uint8(code)
    return near == GROUP


@compiled
def _round_to_float16(numbers, to):
    """Store a panel's values as float16, and replace them by the rounded values."""
    store_float16(address(numbers), to, PANEL // LANES)
    load_float16(to, address(numbers), PANEL // LANES)


def quantise_groups(data):
    """Compute codes and scales of all groups. Each group's grid has 2^bits values from its minimum to its maximum, with the minimum and
    the step rounded to float16."""
    job = carray(data, FIELDS)
    me, N, K, bits = fetch_add(job[QuantiseJob.COUNTERS]), job[QuantiseJob.N], job[QuantiseJob.K], job[QuantiseJob.BITS]
    weight, codes = (
        floats(job[QuantiseJob.WEIGHT], N, K),
        carray(byte_pointer(job[QuantiseJob.CODES]), N * K * bits // 8),
    )
    tolerance, off = floats(job[QuantiseJob.TOLERANCE], 1, 1)[0, 0], carray(int_pointer(job[QuantiseJob.OFF_GRID]), 1)
    own, top = job[QuantiseJob.SCRATCH] + 4 * me * job[QuantiseJob.SCRATCH_SIZE], np.float32(2**bits - 1)
    scales, group_codes = floats(own, 2, PANEL), carray(byte_pointer(own + 8 * PANEL), (PANEL, GROUP))
    steps, least = scales
    while True:
        part = fetch_add(job[QuantiseJob.COUNTERS] + LINE)
        if part * PANEL >= N or (job[QuantiseJob.OFF_GRID] and off[0]):
            break
        for g in range(K // GROUP):
            weights = weight[part * PANEL : (part + 1) * PANEL, g * GROUP : (g + 1) * GROUP]
            stored = job[QuantiseJob.SCALES] + 4 * (part * (K // GROUP) + g) * PANEL
            for n in range(PANEL):
                min_max(address(weights[n]), address(least[n:]), address(steps[n:]))
            _round_to_float16(least, stored + 2 * PANEL)
            for n in range(PANEL):
                steps[n] = (steps[n] - least[n]) / top
            _round_to_float16(steps, stored)
            for n in range(PANEL):
                step = steps[n] if steps[n] > 0 else np.float32(1)
                if not _round(weights[n], least[n], step, top, tolerance, group_codes[n]) and job[QuantiseJob.OFF_GRID]:
                    off[0] = 1
            at = (part * K + g * GROUP) * PANEL * bits // 8
            for k in range(GROUP):
                place = at + k // 2 * PANEL * bits // 4 + k % 2
                for n in range(LANES):
                    if bits == 4:
                        codes[place + 2 * n] = group_codes[n, k] | group_codes[n + LANES, k] << 4
                    else:
                        codes[place + 2 * n] = group_codes[n, k]
                        codes[place + 2 * (n + LANES)] = group_codes[n + LANES, k]
