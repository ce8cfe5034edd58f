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


class Detail(IntEnum):
    """The fields of a layer's row `DETAILS`. The first six are addresses of the weights of RMS norms, float32; address 0: no such norm."""

    BEFORE = 0  # (D,): of the layer's input, before attention
    BETWEEN = 1  # (D,): of the input of the MLP
    AFTER_ATTENTION = 2  # (D,): of what attention adds to the residual stream
    AFTER_MLP = 3  # (D,): of what the MLP adds
    QUERIES = 4  # (d,): of each head; or (H d,): of all heads together
    KEYS = 5  # (d,) or (G d,)
    WHOLE = 6  # 1: the norms of queries and of keys are over all heads together
    WINDOW = 7  # number of positions that a query sees, its own included
    ROTATION = 8  # which of the tables of `COS` and `SIN`
    EXPERTS = 9  # address of a table of `Experts`: the MLP is a mixture of experts; 0: it is `GATE`, `UP` and `DOWN`


class Experts(IntEnum):
    """The fields of a layer's mixture of experts: sizes and addresses."""

    COUNT = 0  # E
    CHOSEN = 1  # k: how many of them compute a row
    NORMALISED = 2  # 1: the weights of the chosen ones sum to 1; 0: they are probabilities among all experts
    INNER = 3  # F
    ROUTER = 4  # float32 (E, D)
    MATRICES = 5  # (E, 3, `Matrix`): gate, up and down


class Layer(IntEnum):
    """The rows of a layer in a table. Each is a `Matrix`, but `DETAILS`, which has the fields of `Detail`.

    `GATE`: an MLP without a gate has the matrix before its activation here, and no `UP`.
    `V`: the values' matrix if its codes are of another kind than those of queries and keys; otherwise zeros, and `QKV` has all three.
    """

    QKV = 0
    O = 1  # noqa: E741 - as papers call it
    GATE = 2
    UP = 3
    DOWN = 4
    DETAILS = 5
    V = 6


class DecodeJob(IntEnum):
    """The fields of a decode step or a product: sizes, addresses, and the strides of keys and values in bytes."""

    ROWS = 0
    TABLE = 1  # int64: a `Matrix`, `Experts`, or (layers, 7, 10)
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
    COS = 20  # float32 (tables, C, r), for all positions; the first r numbers of a head are rotated
    SIN = 21  # the same, the first half negated
    KV = 22  # float16 (B / T, layers, 2, G, C, d)
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
    ROTARY = 33  # r
    ROTATION_SIZE = 34  # bytes of one table of `COS`
    GELU = 35  # 1: the MLP's gate, or the MLP without a gate, is GELU (tanh); 0: SiLU, or without a gate exact GELU
    RESIDUAL = 36  # float32 (1,): factor of what attention and MLP add to the residual stream
    CAP = 37  # float32 (1,): scores s become cap · tanh(s / cap); 0: they stay as they are
    PAIRS = 38  # memory that the threads share for mixtures of experts (`experts.memory_size`)
    NORM_BIAS = 39  # float32 (D,): bias of the last norm, a layer norm
    LEARNED = 40  # float32 (positions, D): learned positions, which are added to the embeddings; 0: none
    STEPS = 41  # T: number of rows, one after the other, that are successive positions of one row of `KV`


FIELDS, LAYER_ROWS, MATRIX_FIELDS, EXPERT_FIELDS = len(DecodeJob), len(Layer), len(Matrix), len(Experts)
"""Sizes of the tables: of a job (no other job has more fields than `DecodeJob`), a layer, a matrix, and a mixture of experts."""
SIGNATURE = types.void(types.CPointer(types.int64))
"""The signature of every compiled function: its argument is a table of one kind of job, such as `DecodeJob`."""
