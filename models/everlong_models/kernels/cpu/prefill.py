"""The numba kernels that prefill on a CPU in float32: products of many rows, and causal attention.

On processors with AVX2, oneDNN and MKL reach three quarters of the speed of these products, and attention by products of single heads
waits for threads longer than it computes (docs/research/lab-notes.md). Everything is built from one product in registers, `simd.tile_6`.

Threads take parts as in `decode_step`. One thread computes each output, in a fixed order of summation, so a result does not depend on
other rows, nor (for finite numbers) on rows after it.

Shapes: B rows, n queries, T keys, G groups of R query heads that share keys of dimension d.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from numba import carray

from everlong_models.kernels.cpu.job import FIELDS, LINE
from everlong_models.kernels.cpu.primitives import (
    address,
    compiled,
    compiled_as,
    dot,
    fetch_add,
    floats,
    softmax_weights,
    wait,
)
from everlong_models.kernels.cpu.products.float32 import tile_1, tile_2, tile_4, tile_6
from everlong_models.kernels.cpu.simd import LANES, PANEL, exact_gelu, gelu, silu, soft_cap

ROWS = 96
"""Rows in a part. With the weights of a part they fit a core's L2 cache."""
COLUMNS = 6 * PANEL
"""Columns in a part."""
QUERIES = 24
"""Queries in a part. The scores of a group's heads fit the L2 cache, too, up to about 1,500 keys."""


class Epilogue(IntEnum):
    """The element-wise operation applied to a product while it is in the cache."""

    NONE = 0
    SILU = 1
    TIMES = 2
    PLUS = 3
    GELU = 4  # tanh form
    EXACT_GELU = 5  # only of `exact_gelu_linear`


class PrefillJob(IntEnum):
    """The fields of a product, a norm or an attention: sizes, addresses of float32, strides in float32 values.

    `SCRATCH`, `SCRATCH_SIZE` and `COUNTERS` as in `DecodeJob`.
    """

    ROWS = 0
    SCRATCH = 2
    SCRATCH_SIZE = 3
    COUNTERS = 4
    X = 5  # (B, K)
    W = 6  # (N / PANEL, K, PANEL); the weight of a norm (K,) or of a norm of heads (HEADS, d), or 0
    BIAS = 7  # (N,), or 0
    OTHER = 8  # (B, N), the second operand of `EPILOGUE`; what is added to a norm (B, K), or 0
    Y = 9  # (B, N)
    K = 10
    N = 11
    EPILOGUE = 12
    QUERIES = 13  # (B, n, G R, d), heads contiguous
    QUERY_ROW = 14
    QUERY_POSITION = 15
    KEYS = 16  # (B, G, T, d), positions contiguous; the same for values
    VALUES = 17
    KEY_ROW = 18
    KEY_GROUP = 19
    MIXED = 20  # (B, n, G R d)
    KEY_PANELS = 21  # scratch for transposed keys: (B, G, T / PANEL, d, PANEL)
    QUERY_COUNT = 22  # n
    KEY_COUNT = 23  # T
    GROUPS = 24
    HEADS = 25  # R
    HEAD_DIM = 26
    EPS = 27  # (1,)
    COS = 28  # (1 or B, n, r)
    SIN = 29  # the same, the first half negated; with one row, `QUERY_ROW` is 0
    ROTARY = 30  # r: the first r numbers of a head are rotated
    TOGETHER = 31  # a norm of heads is over so many first heads together, and over the others; 0: over each head
    WINDOW = 32  # number of keys that a query sees, its own included
    CAP = 33  # (1,): scores s become cap · tanh(s / cap); 0: they stay as they are


@compiled
def _multiply(x, w, y, rows, count, x_stride, w_stride, y_stride):
    """y (rows, PANEL) ← x (rows, count) w (count, PANEL)."""
    m = 0
    while m < rows:
        to = (x + 4 * m * x_stride, w, y + 4 * m * y_stride)
        left = rows - m
        if left >= 6:
            tile_6(*to, count, x_stride, w_stride, y_stride)
            m += 6
        elif left >= 4:
            tile_4(*to, count, x_stride, w_stride, y_stride)
            m += 4
        elif left >= 2:
            tile_2(*to, count, x_stride, w_stride, y_stride)
            m += 2
        else:
            tile_1(*to, count, x_stride, w_stride, y_stride)
            m += 1


@compiled
def _activate(epilogue, to, blocks):
    """Apply an activation to `blocks` vectors at the address `to`."""
    if epilogue == Epilogue.SILU:
        silu(to, blocks)
    else:
        gelu(to, blocks)


@compiled
def _activate_exactly(_epilogue, to, blocks):
    """Apply GELU to `blocks` vectors at the address `to`."""
    exact_gelu(to, blocks)


def _applying(name, activate):
    """Make the function that applies bias and epilogue to the rows first … last and the columns start … end."""

    @compiled_as(name)
    def apply_epilogue(job, y, first, last, start, end):
        B, N, epilogue = job[PrefillJob.ROWS], job[PrefillJob.N], job[PrefillJob.EPILOGUE]
        if job[PrefillJob.BIAS]:
            bias = floats(job[PrefillJob.BIAS], 1, N)[0]
            for m in range(first, last):
                for n in range(start, end):
                    y[m, n] += bias[n]
        if epilogue in (Epilogue.SILU, Epilogue.GELU, Epilogue.EXACT_GELU):
            for m in range(first, last):
                activate(epilogue, job[PrefillJob.Y] + 4 * (m * N + start), (end - start) // LANES)
        elif epilogue == Epilogue.TIMES:
            other = floats(job[PrefillJob.OTHER], B, N)
            for m in range(first, last):
                for n in range(start, end):
                    y[m, n] *= other[m, n]
        elif epilogue == Epilogue.PLUS:
            other = floats(job[PrefillJob.OTHER], B, N)
            for m in range(first, last):
                for n in range(start, end):
                    y[m, n] += other[m, n]

    return apply_epilogue


def _linear(name: str, apply_epilogue: Any) -> Callable[[Any], None]:
    """Make the function y ← epilogue(x Wᵀ + b). Every thread runs it."""

    @compiled_as(name)
    def compute(data):
        job = carray(data, FIELDS)
        fetch_add(job[PrefillJob.COUNTERS])
        B, K, N, x, w = job[PrefillJob.ROWS], job[PrefillJob.K], job[PrefillJob.N], job[PrefillJob.X], job[PrefillJob.W]
        y = floats(job[PrefillJob.Y], B, N)
        blocks = (B + ROWS - 1) // ROWS
        size = (B + blocks - 1) // blocks  # equal sizes, but for the last part; multiples of a six-row tile
        size += -size % 6
        while True:
            part = fetch_add(job[PrefillJob.COUNTERS] + LINE)
            first, start = part % blocks * size, part // blocks * COLUMNS  # consecutive parts share their weights
            if start >= N:
                break
            last, end = min(B, first + size), min(N, start + COLUMNS)
            if first < last:
                for n in range(start, end, PANEL):
                    to = job[PrefillJob.Y] + 4 * (first * N + n)
                    _multiply(x + 4 * first * K, w + 4 * n * K, to, last - first, K, K, PANEL, N)
                apply_epilogue(job, y, first, last, start, end)

    return compute


_with_epilogue, _with_exact_gelu = (
    _linear(name, _applying(name, activate)) for name, activate in (("any", _activate), ("exact", _activate_exactly))
)


def linear(data):
    """Compute y ← epilogue(x Wᵀ + b), for every epilogue but exact GELU. Every thread runs this function, here and below."""
    _with_epilogue(data)


def exact_gelu_linear(data):
    """Compute y ← GELU(x Wᵀ + b). A kernel of its own, so that models without this activation do not compile it."""
    _with_exact_gelu(data)


def norm(data):
    """y (B, K) ← w x / √(mean x² + ε) + other, the RMS norm. Weight and addend may be missing. Every thread runs this function."""
    job = carray(data, FIELDS)
    fetch_add(job[PrefillJob.COUNTERS])
    B, K = job[PrefillJob.ROWS], job[PrefillJob.K]
    x, y, eps = (
        floats(job[PrefillJob.X], B, K),
        floats(job[PrefillJob.Y], B, K),
        floats(job[PrefillJob.EPS], 1, 1)[0, 0],
    )
    while True:
        first = fetch_add(job[PrefillJob.COUNTERS] + LINE) * QUERIES
        if first >= B:
            break
        for m in range(first, min(B, first + QUERIES)):
            scale = np.float32(1) / np.sqrt(dot(x[m], x[m]) / np.float32(K) + eps)
            for i in range(K):
                y[m, i] = x[m, i] * scale
            if job[PrefillJob.W]:
                weight = floats(job[PrefillJob.W], 1, K)[0]
                for i in range(K):
                    y[m, i] *= weight[i]
            if job[PrefillJob.OTHER]:
                other = floats(job[PrefillJob.OTHER] + 4 * m * K, 1, K)[0]
                for i in range(K):
                    y[m, i] += other[i]


@compiled
def _norm_heads(job, place, weights):
    """Normalise one position's heads (HEADS, d) at address `place`, in place."""
    d, count, together = job[PrefillJob.HEAD_DIM], job[PrefillJob.HEADS], job[PrefillJob.TOGETHER]
    eps, head = floats(job[PrefillJob.EPS], 1, 1)[0, 0], 0
    while head < count:
        many = (1 if not together else together if head == 0 else count - together) * d
        x, weight = floats(place + 4 * head * d, 1, many)[0], floats(weights + 4 * head * d, 1, many)[0]
        scale = np.float32(1) / np.sqrt(dot(x, x) / np.float32(many) + eps)
        for i in range(many):
            x[i] = x[i] * scale * weight[i]
        head += many // d


@compiled
def _rotate(x, cos, sin):
    """Apply one head's rotary position in place."""
    half = len(cos) // 2
    for i in range(half):
        a, b = x[i], x[i + half]
        x[i] = a * cos[i] + b * sin[i]
        x[i + half] = b * cos[i + half] + a * sin[i + half]


def rotate(data):
    """Apply norms, if they have a weight, and rotary positions in place to the first `HEADS` heads of x (B, n, K / d, d).

    Every thread runs this function.
    """
    job = carray(data, FIELDS)
    fetch_add(job[PrefillJob.COUNTERS])
    B, n, d, wide = job[PrefillJob.ROWS], job[PrefillJob.QUERY_COUNT], job[PrefillJob.HEAD_DIM], job[PrefillJob.K]
    r = job[PrefillJob.ROTARY]
    while True:
        first = fetch_add(job[PrefillJob.COUNTERS] + LINE) * QUERIES
        if first >= B * n:
            break
        for m in range(first, min(B * n, first + QUERIES)):
            if job[PrefillJob.W]:
                _norm_heads(job, job[PrefillJob.X] + 4 * m * wide, job[PrefillJob.W])
            at = 4 * (m // n * job[PrefillJob.QUERY_ROW] + m % n * r)
            cos, sin = floats(job[PrefillJob.COS] + at, 1, r)[0], floats(job[PrefillJob.SIN] + at, 1, r)[0]
            heads = floats(job[PrefillJob.X] + 4 * m * wide, wide // d, d)
            for head in range(job[PrefillJob.HEADS]):
                _rotate(heads[head], cos, sin)


@compiled
def _transpose_panel(keys, panel, count, d):
    """panel (d, PANEL) ← keys (count, d)ᵀ, padded with zeros."""
    for i in range(d):
        for n in range(count):
            panel[i, n] = keys[n, i]
        for n in range(count, PANEL):
            panel[i, n] = np.float32(0)


@compiled
def _attend_queries(job, scores, b, g, first, size):
    """Compute the attention of one group's heads for `size` queries, starting at query `first`."""
    G, R, d, n, T = (
        job[PrefillJob.GROUPS],
        job[PrefillJob.HEADS],
        job[PrefillJob.HEAD_DIM],
        job[PrefillJob.QUERY_COUNT],
        job[PrefillJob.KEY_COUNT],
    )
    position, wide, panels = job[PrefillJob.QUERY_POSITION], G * R * d, (T + PANEL - 1) // PANEL
    seen, window = T - n + first + size, job[PrefillJob.WINDOW]
    hidden = max(0, seen - size + 1 - window) // PANEL * PANEL  # so many first keys none of these queries sees
    stride = seen + -seen % PANEL
    cap = floats(job[PrefillJob.CAP], 1, 1)[0, 0] if job[PrefillJob.CAP] else np.float32(0)
    rows, sums = floats(scores, R * QUERIES, stride), floats(scores + 4 * R * QUERIES * stride, R, QUERIES)
    values = job[PrefillJob.VALUES] + 4 * (b * job[PrefillJob.KEY_ROW] + g * job[PrefillJob.KEY_GROUP])
    for r in range(R):
        query = job[PrefillJob.QUERIES] + 4 * (b * job[PrefillJob.QUERY_ROW] + first * position + (g * R + r) * d)
        own = scores + 4 * r * QUERIES * stride
        for p in range(hidden // PANEL, stride // PANEL):
            panel = job[PrefillJob.KEY_PANELS] + 4 * ((b * G + g) * panels + p) * d * PANEL
            _multiply(query, panel, own + 4 * p * PANEL, size, d, position, PANEL, stride)
        for i in range(size):
            weights, until = rows[r * QUERIES + i], seen - size + i + 1
            begin = max(0, until - window)
            if job[PrefillJob.CAP]:
                soft_cap(address(weights) + 4 * hidden, cap, (until - hidden + LANES - 1) // LANES)
            for j in range(hidden, begin):
                weights[j] = -np.float32(np.inf)
            sums[r, i] = softmax_weights(weights[hidden:], until - hidden)
            for j in range(until, seen):
                weights[j] = np.float32(0)
    for r in range(R):  # after all scores: the values replace the keys in the cache
        own, to = (
            scores + 4 * r * QUERIES * stride,
            job[PrefillJob.MIXED] + 4 * ((b * n + first) * wide + (g * R + r) * d),
        )
        for c in range(0, d, PANEL):
            _multiply(own + 4 * hidden, values + 4 * (hidden * d + c), to + 4 * c, size, seen - hidden, stride, d, wide)
        for i in range(size):
            out = floats(to + 4 * i * wide, 1, d)[0]
            for j in range(d):
                out[j] /= sums[r, i]


def attend(data):
    """Compute causal attention of the last n queries over T keys and values. The queries are scaled already. Every thread runs this function."""
    job = carray(data, FIELDS)
    scores = job[PrefillJob.SCRATCH] + 4 * fetch_add(job[PrefillJob.COUNTERS]) * job[PrefillJob.SCRATCH_SIZE]
    B, G, d, n, T = (
        job[PrefillJob.ROWS],
        job[PrefillJob.GROUPS],
        job[PrefillJob.HEAD_DIM],
        job[PrefillJob.QUERY_COUNT],
        job[PrefillJob.KEY_COUNT],
    )
    panels, blocks = (T + PANEL - 1) // PANEL, (n + QUERIES - 1) // QUERIES
    next_part, done = job[PrefillJob.COUNTERS] + LINE, job[PrefillJob.COUNTERS] + 2 * LINE
    while True:  # transpose the keys once, for all queries
        part = fetch_add(next_part)
        if part >= B * G * panels:
            break
        b, g, at = part // panels // G, part // panels % G, part % panels * PANEL
        keys, count = (
            job[PrefillJob.KEYS] + 4 * (b * job[PrefillJob.KEY_ROW] + g * job[PrefillJob.KEY_GROUP] + at * d),
            min(PANEL, T - at),
        )
        _transpose_panel(
            floats(keys, count, d), floats(job[PrefillJob.KEY_PANELS] + 4 * part * d * PANEL, d, PANEL), count, d
        )
        fetch_add(done)
    wait(done, B * G * panels)
    next_part = next_part + 2 * LINE
    while True:
        part = fetch_add(next_part)
        if part >= B * G * blocks:
            break
        # Last queries first: they have the most keys, so the longest parts do not run last.
        first = (blocks - 1 - part // (B * G)) * QUERIES
        _attend_queries(job, scores, part % (B * G) // G, part % G, first, min(QUERIES, n - first))
