"""The tables that the numba kernels take as arguments: sizes and addresses, as rows of int64."""

from __future__ import annotations

from enum import IntEnum

from numba import types

LINE = 128
"""Bytes between two counters: two cache lines, because a processor may fetch them in pairs."""


class Matrix(IntEnum):
    """The fields of a `QuantisedMatrix` in a table: sizes, and addresses of codes, float16 scales and float32 arrays. Address 0: none."""

    BITS = 0
    N = 1
    K = 2
    CODES = 3
    SCALES = 4
    BIAS = 5
    A = 6  # (rank, K)
    B = 7  # (N / PANEL, rank, PANEL)
    RANK = 8
    SIGNED = 9  # 1: codes are int8, and the two float16 of a group are the steps of its halves; 0: they are its step and its minimum


class Layer(IntEnum):
    """The rows of a layer in a table. Each is a `Matrix`, but `NORMS`: its `N` and `K` are the addresses of the norms' weights (D,), its
    `CODES` and `SCALES` those of the norms over each head of queries and of keys (d,), or 0 without such norms.

    `V`: the values' matrix if its codes are of another kind than those of queries and keys; otherwise zeros, and `QKV` has all three.
    """

    QKV = 0
    O = 1  # noqa: E741 - as papers call it
    GATE = 2
    UP = 3
    DOWN = 4
    NORMS = 5
    V = 6


class DecodeJob(IntEnum):
    """The fields of a decode step or a product: sizes, addresses, and the strides of keys and values in bytes."""

    ROWS = 0
    TABLE = 1  # int64: a `Matrix`, or (layers, 7, 10)
    SCRATCH = 2  # scratch memory, one slice for each thread
    SCRATCH_SIZE = 3  # of one thread's slice, in float32 values
    COUNTERS = 4  # int64, `LINE` bytes apart: threads that have started; then for each phase, the next part and the number of parts done
    WIDEST = 5  # width of the widest input of a matrix
    RANK = 6  # largest rank of a low-rank update
    X = 7  # float32 (B, D): a product's input; or the embeddings, overwritten by the final hidden states
    Y = 8  # (B, N): a product's output; a layer's keys, values and queries (B, (H + 2 G) d)
    LAYERS = 9
    WIDTH = 10
    HEADS = 11
    KV_HEADS = 12
    HEAD_DIM = 13
    MLP_WIDTH = 14
    MIXED = 15  # (B, H d)
    GATE = 16  # (B, F)
    UP = 17  # (B, F)
    OUT = 18  # (B, D)
    POSITIONS = 19  # int64 (B,)
    COS = 20  # float32 (C, d), for all positions
    SIN = 21  # the same, the first half negated
    KV = 22  # float16 (B, layers, 2, G, C, d)
    KV_ROW = 23
    KV_LAYER = 24
    KV_KIND = 25
    KV_HEAD = 26
    KV_POSITION = 27
    CONTEXT = 28  # number of positions that the longest row attends to
    EPS = 29  # float32 (1,)
    HEADS_PER_PART = 30  # query heads in a part: all of a group, which share keys, or one
    NORM = 31  # float32 (D,): weight of the last norm
    SCALE = 32  # float32 (1,): scale of the attention


FIELDS, LAYER_ROWS, MATRIX_FIELDS = len(DecodeJob), len(Layer), len(Matrix)
"""Sizes of the tables: of a job (no other job has more fields than `DecodeJob`), a layer, and a matrix."""
SIGNATURE = types.void(types.CPointer(types.int64))
"""The signature of every compiled function: its argument is a table of `DecodeJob`, `PrefillJob`, `QuantiseJob` or `SampleJob`."""
