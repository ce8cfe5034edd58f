"""What a decode step does before its first layer and after its last one, as functions of its numba kernels."""

from __future__ import annotations

import numpy as np
from numba import carray

from everlong_models.kernels.cpu.job import DecodeJob
from everlong_models.kernels.cpu.primitives import compiled, compiled_sum, fetch_add, floats, int_pointer, normed, wait


@compiled_sum
def _centre(x):
    """x ← x minus its mean."""
    mean = np.float32(0)
    for i in range(len(x)):
        mean += x[i]
    mean /= np.float32(len(x))
    for i in range(len(x)):
        x[i] -= mean


@compiled
def _place(job, row):
    """Add the learned position to the embedding of a row, and centre it: then a layer norm is an RMS norm."""
    D = job[DecodeJob.WIDTH]
    h = floats(job[DecodeJob.X] + 4 * row * D, 1, D)[0]
    if job[DecodeJob.LEARNED]:
        at = carray(int_pointer(job[DecodeJob.POSITIONS]), job[DecodeJob.ROWS])[row]
        learned = floats(job[DecodeJob.LEARNED] + 4 * at * D, 1, D)[0]
        for i in range(D):
            h[i] += learned[i]
    _centre(h)


@compiled
def begin(_job, _next_part, _done):
    """Do nothing before the first layer. Return the number of phases that this takes."""
    return 0


@compiled
def begin_centred(job, next_part, done):
    """Prepare the rows for layers with layer norms. Return the number of phases that this takes."""
    while True:
        row = fetch_add(next_part)
        if row >= job[DecodeJob.ROWS]:
            break
        _place(job, row)
        fetch_add(done)
    wait(done, job[DecodeJob.ROWS])
    return 1


@compiled
def end(job, next_part):
    """Apply the last norm, an RMS norm."""
    D, weight = job[DecodeJob.WIDTH], floats(job[DecodeJob.NORM], 1, job[DecodeJob.WIDTH])[0]
    while True:
        row = fetch_add(next_part)
        if row >= job[DecodeJob.ROWS]:
            break
        h = floats(job[DecodeJob.X] + 4 * row * D, 1, D)
        normed(h, weight, floats(job[DecodeJob.EPS], 1, 1)[0, 0], h)


@compiled
def end_centred(job, next_part):
    """Apply the last norm, a layer norm of rows with mean 0."""
    D = job[DecodeJob.WIDTH]
    weight, bias = floats(job[DecodeJob.NORM], 1, D)[0], floats(job[DecodeJob.NORM_BIAS], 1, D)[0]
    while True:
        row = fetch_add(next_part)
        if row >= job[DecodeJob.ROWS]:
            break
        h = floats(job[DecodeJob.X] + 4 * row * D, 1, D)
        normed(h, weight, floats(job[DecodeJob.EPS], 1, 1)[0, 0], h)
        for i in range(D):
            h[0, i] += bias[i]
