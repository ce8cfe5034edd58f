"""A Triton kernel for mixtures of experts: one product of many rows, each with the matrix of an expert of its own.

A *pair* is a row and one of its k experts, numbered row · k + place. Pairs are sorted by expert. A program computes a tile of the product for a
block of successive pairs of one expert. So the matrix of an expert is read once for each block, and not at all if no row chose the expert. Rows are
read, and results written, where they are: nothing is copied into the order of experts.

How many blocks there are is known only on the device. The grid has as many programs as the worst case needs, which depends only on the number of
pairs, so that CUDA graphs can capture a call; programs without a block return at once. (PyTorch's `grouped_mm` waits for the device, except in
bfloat16 on an H100 or B200.)

Sums are float32. `layer_kernels` says where Triton is available. The naive twin is `kernels.experts.Experts`.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's builds for CPUs do not include Triton
    triton = None

MANY = 32
"""Pairs for each expert, on average, from which programs compute `_TILES[1]`."""
_TILES = (16, 64), (64, 128)
"""Pairs and columns of a program. Few pairs: small tiles keep more of the GPU busy. Many: large ones read matrices less often. Not measured."""
_STEP_BYTES = 128
"""Bytes of a row that a program multiplies at once."""


if triton is not None:

    @triton.jit
    def _multiply(
        x, weights, out, pairs, ends,
        experts: tl.constexpr, shared: tl.constexpr, width: tl.constexpr, depth: tl.constexpr,
        experts_block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
    ):  # fmt: skip
        block = tl.program_id(0)
        expert = tl.arange(0, experts_block)
        end = tl.load(ends + expert, mask=expert < experts, other=0)
        start = tl.load(ends + expert - 1, mask=(expert > 0) & (expert < experts), other=0)
        blocks = (end - start + rows - 1) // rows
        behind = tl.cumsum(blocks, 0)
        mine = (behind - blocks <= block) & (block < behind)  # true for one expert, or for none
        first = tl.sum(tl.where(mine, start + (block - behind + blocks) * rows, 0))
        last = tl.sum(tl.where(mine, end, 0))
        if first >= last:
            return
        weights += tl.sum(tl.where(mine, expert, 0)).to(tl.int64) * (width * depth)
        place, column, number = (
            first + tl.arange(0, rows),
            tl.program_id(1) * columns + tl.arange(0, columns),
            tl.arange(0, step),
        )
        inside, within = (place < last)[:, None], (column < width)[None, :]
        pair = tl.load(pairs + place, mask=place < last, other=0)[:, None]
        these, those = x + pair // shared * depth + number[None, :], weights + column[None, :] * depth + number[:, None]
        total = tl.zeros([rows, columns], tl.float32)
        for at in range(0, depth, step):
            left = number < depth - at
            a = tl.load(these + at, mask=inside & left[None, :], other=0.0)
            b = tl.load(those + at, mask=within & left[:, None], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        tl.store(out + pair * width + column[None, :], total.to(out.dtype.element_ty), mask=inside & within)


def multiply(x: Tensor, weights: Tensor, pairs: Tensor, ends: Tensor) -> Tensor:
    """Return W_e x (P, N) for each pair of a row of `x` and an expert e, in the order of the pairs' numbers.

    `x` (rows, K): all have P / rows pairs. `weights` (E, N, K). `pairs` (P,): the numbers of the pairs, sorted by expert. `ends` (E,): how many pairs
    have this expert or one before it. All are contiguous.
    """
    assert all(tensor.is_contiguous() for tensor in (x, weights, pairs, ends))
    (experts, width, depth), count = weights.shape, len(pairs)
    rows, columns = _TILES[count >= MANY * experts]
    most = min(experts, count)  # experts that any row can have chosen; each has at most one block that is not full
    out = x.new_empty(count, width)
    with torch.cuda.device_of(x):  # Triton uses the current device, not that of the tensors
        _multiply[(most + (count - most) // rows, triton.cdiv(width, columns))](
            x, weights, out, pairs, ends, experts, count // len(x), width, depth,
            triton.next_power_of_2(experts), rows, columns, _STEP_BYTES // x.itemsize,
        )  # fmt: skip
    return out
