"""The Triton kernels for decode attention of `memories.relative`: one query per row, each key and value read once, in place.

In a memory's cache, the keys of one layer are not contiguous across rows. PyTorch's products would first copy all keys and values, and
need a dozen small kernels more. Here one program handles a part p of a row's keys, and computes its contexts and its log mass

    C_p = Σ_j exp(s_j − m_p) v_j,    m_p = log Σ_j exp(s_j),    s_j = ((q + u)ᵀk_j + a_j)/√d for the visible keys of the part.

A second kernel merges the parts: m = log Σ_p exp(m_p), C = Σ_p exp(m_p − m) C_p. Keys that are not visible are not read.

Sums are float32. `layer_kernels` says where Triton is available. The naive twin is `RelativeAttention.scores` and `mix`.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's builds for CPUs do not include Triton
    triton = None

_TILE = 4096
"""Values of keys in one program: 64 keys for heads of 64. Small parts keep much of a GPU busy even with few rows."""


if triton is not None:

    @triton.jit
    def _attend_part(
        q, u, keys, values, along, at, visible, contexts, masses, scale,
        key_row, key_head, key_step, value_row, value_head, value_step,
        heads: tl.constexpr, count: tl.constexpr, dim: tl.constexpr, parts: tl.constexpr,
        block: tl.constexpr, dim_block: tl.constexpr,
    ):  # fmt: skip
        line = tl.program_id(0).to(tl.int64)  # one head of one row
        part = tl.program_id(1)
        row, head = line // heads, line % heads
        key, number = part * block + tl.arange(0, block), tl.arange(0, dim_block)
        inside = number < dim
        seen = tl.load(visible + row * count + key, mask=key < count, other=0)
        mask = seen[:, None] & inside[None, :]
        # `along` is ordered by falling distance, down to 0 for the query's own key. Skip the distances beyond the first key.
        first = along + line * count + (count - 1 - tl.load(at + row))
        # Issue all loads before the first use of a result.
        these_keys = keys + row * key_row + head * key_head + key[:, None] * key_step + number[None, :]
        these_values = values + row * value_row + head * value_head + key[:, None] * value_step + number[None, :]
        k = tl.load(these_keys, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(these_values, mask=mask, other=0.0).to(tl.float32)
        scores = tl.load(first + key, mask=seen, other=0.0).to(tl.float32)
        query = tl.load(q + line * dim + number, mask=inside, other=0.0).to(tl.float32)
        query += tl.load(u + head * dim + number, mask=inside, other=0.0).to(tl.float32)
        scores += tl.sum(k * query[None, :], axis=1)
        scores = tl.where(seen, scores * scale, float("-inf"))
        # If no key is visible, use a finite maximum: −∞ − (−∞) is NaN. Otherwise the largest weight is 1, so the sum is at least 1.
        most = tl.maximum(tl.max(scores, axis=0), -3.0e38)
        weights = tl.exp(scores - most)
        total = tl.maximum(tl.sum(weights, axis=0), 1.0)
        index = line * parts + part
        tl.store(contexts + index * dim + number, tl.sum(weights[:, None] * v, axis=0) / total, mask=inside)
        tl.store(masses + index, most + tl.log(total))

    @triton.jit
    def _merge_parts(
        contexts, masses, mixed, mass,
        dim: tl.constexpr, parts: tl.constexpr, dim_block: tl.constexpr, parts_block: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        line = tl.program_id(0).to(tl.int64)
        every = tl.arange(0, parts_block)
        each = tl.load(masses + line * parts + every, mask=every < parts, other=float("-inf"))
        most = tl.max(each, axis=0)
        whole = most + tl.log(tl.sum(tl.exp(each - most), axis=0))
        number = tl.arange(0, dim_block)
        inside = number < dim
        context = tl.zeros([dim_block], tl.float32)
        for start in range(0, parts, block):
            part = start + tl.arange(0, block)
            share = tl.exp(tl.load(masses + line * parts + part, mask=part < parts, other=float("-inf")) - whole)
            part_contexts = tl.load(
                contexts + (line * parts + part[:, None]) * dim + number[None, :],
                mask=(part < parts)[:, None] & inside[None, :],
                other=0.0,
            )
            context += tl.sum(share[:, None] * part_contexts, axis=0)
        tl.store(mixed + line * dim + number, context.to(mixed.dtype.element_ty), mask=inside)
        tl.store(mass + line, whole)


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, u: Tensor, along: Tensor, at: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Return contexts (B, 1, H, d), of the values' type, and log masses (B, H, 1, 1), float32. Has no gradients.

    `q` (B, H, 1, d): queries at the positions `at` (B,) of their rows' keys. `keys`, `values` (B, H, K, d): any strides but for the last
    axis. `u` (H, 1, d): as in `Relative`. `along` (B, H, 1, K): products of the query with the distances K − 1 … 0. Neither `q` nor
    `along` is scaled. `visible` (B, 1, K): at least one key in each row, and none after its query.
    """
    B, H, K, d = keys.shape
    assert all(tensor.is_contiguous() for tensor in (q, u, along, visible))
    assert keys.stride(-1) == values.stride(-1) == 1
    assert not (torch.is_grad_enabled() and q.requires_grad), "decode_attention has no gradients"
    # All compile-time integers depend on the model, none on the batch, so one compilation serves any number of rows.
    dim_block: int = triton.next_power_of_2(d)
    block = max(1, _TILE // dim_block)
    parts = triton.cdiv(K, block)
    contexts, masses = (q.new_empty(B, H, parts, n, dtype=torch.float32) for n in (d, 1))
    mixed, mass = values.new_empty(B, 1, H, d), masses.new_empty(B, H, 1, 1)
    with torch.cuda.device_of(q):  # Triton uses the current device, not that of the tensors
        _attend_part[(B * H, parts)](
            q, u, keys, values, along, at, visible, contexts, masses, d**-0.5,
            *keys.stride()[:3], *values.stride()[:3],
            H, K, d, parts, block, dim_block,
        )  # fmt: skip
        parts_block: int = triton.next_power_of_2(parts)
        _merge_parts[(B * H,)](contexts, masses, mixed, mass, d, parts, dim_block, parts_block, min(parts_block, block))
    return mixed, mass
