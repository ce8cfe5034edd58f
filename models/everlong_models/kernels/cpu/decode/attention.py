"""The attention of a decode step, with the norms and rotary positions of queries and keys, as functions of its numba kernels."""

from __future__ import annotations

import numpy as np
from numba import carray

from everlong_models.kernels.cpu.job import DecodeJob, Detail, Layer
from everlong_models.kernels.cpu.primitives import (
    address,
    compiled,
    compiled_sum,
    dot,
    floats,
    int_pointer,
    softmax_weights,
)
from everlong_models.kernels.cpu.products.float32 import mix_2, mix_more, scores_1, scores_4
from everlong_models.kernels.cpu.simd import LANES, soft_cap, store_float16

_POSITIONS_IN_CACHE = 64
"""Positions whose keys (or values) stay in the L1 cache while all heads of a group read them."""


@compiled
def _rotated(x, cos, sin, scale, out):
    """out ← one head times `scale`, its first numbers rotated to their position. `out` may be `x`."""
    half = len(cos) // 2
    for i in range(2 * half, len(x)):
        out[i] = x[i] * scale
    for i in range(half):
        a, b = x[i], x[i + half]
        out[i] = (a * cos[i] + b * sin[i]) * scale
        out[i + half] = (b * cos[i + half] + a * sin[i + half]) * scale


@compiled_sum
def _norm_factor(x, eps):
    """Return what the RMS norm multiplies `x` by."""
    return np.float32(1) / np.sqrt(dot(x, x) / np.float32(len(x)) + eps)


@compiled_sum
def _weighted(x, factor, weight, out):
    """out ← `x` (d,) times a factor and a weight (d,)."""
    for i in range(len(x)):
        out[i] = x[i] * factor * weight[i]


@compiled
def _norm_heads(job, details, row, head, group, queries, key):
    """queries ← heads `head` … of a row, key ← its key head `group`, with their RMS norms."""
    H, G, d = job[DecodeJob.HEADS], job[DecodeJob.KV_HEADS], job[DecodeJob.HEAD_DIM]
    place, eps = job[DecodeJob.Y] + 4 * row * (H + 2 * G) * d, floats(job[DecodeJob.EPS], 1, 1)[0, 0]
    heads, whole = floats(place, H + G, d), details[Detail.WHOLE]
    factor = _norm_factor(floats(place, 1, H * d)[0], eps) if whole else np.float32(0)
    weights = floats(details[Detail.QUERIES], H if whole else 1, d)
    for n in range(len(queries)):
        x = heads[head + n]
        _weighted(x, factor if whole else _norm_factor(x, eps), weights[(head + n) * whole], queries[n])
    x, weights = heads[H + group], floats(details[Detail.KEYS], G if whole else 1, d)
    factor = _norm_factor(floats(place + 4 * H * d, 1, G * d)[0], eps) if whole else _norm_factor(x, eps)
    _weighted(x, factor, weights[group * whole], key)


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
            _rotated(queries[n], cos, sin, scale, queries[n])
        _rotated(key, cos, sin, np.float32(1), key)
    else:
        for n in range(len(queries)):
            _rotated(heads[head + n], cos, sin, scale, queries[n])
        _rotated(heads[H + group], cos, sin, np.float32(1), key)


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
def store(job, own, layers, layer, part):
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
def attend(job, own, layers, layer, part):
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
            scores_4(some, query, d, keys + first * stride, stride, fours, blocks, to, wide)
            scores_1(some, query, d, keys + (first + 4 * fours) * stride, stride, ones, blocks, to + 16 * fours, wide)
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
                    mix_more(some, weights, wide, place, stride, count, to, d)
                    done += most
                else:
                    mix_2(some, weights, wide, place, stride, count, to, d)
                    done += 2 * LANES
            n += some
