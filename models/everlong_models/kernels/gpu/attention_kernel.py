"""What a GPU computes for one query a row, as decoding asks: attention of `relative`, its keys and values read once, where they lie.

Of a memory's cache one layer's keys are spread over the rows: PyTorch's products would first copy all of them, and all values, and a dozen
small kernels more surround these. Here each part of a row's keys is looked at by a program of its own, and its contexts and its log mass are

    C_p = Σ_j exp(s_j − m_p) v_j,    m_p = log Σ_j exp(s_j),    s_j = ((q + u)ᵀk_j + a_j)/√d for what is visible of the part,

of which a second kernel makes the whole: m = log Σ_p exp(m_p), C = Σ_p exp(m_p − m) C_p. What is not visible is not read.

In Triton, see `fused`; sums are float32. Its naive twin is `RelativeAttention.scores` and `mix`.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU's build of PyTorch has none
    triton = None

_TILE = 4096
"""Numbers of keys that a program looks at together: of 64 in a head 64 keys, so that few rows, too, are work for much of a GPU."""


if triton is not None:

    @triton.jit
    def _attend_part(
        q, u, keys, values, along, at, visible, contexts, masses, scale,
        key_row, key_head, key_step, value_row, value_head, value_step,
        heads: tl.constexpr, count: tl.constexpr, dim: tl.constexpr, parts: tl.constexpr,
        block: tl.constexpr, dim_block: tl.constexpr,
    ):  # fmt: skip
        line = tl.program_id(0).to(tl.int64)  # a row's head
        part = tl.program_id(1)
        row, head = line // heads, line % heads
        key, number = part * block + tl.arange(0, block), tl.arange(0, dim_block)
        inside = number < dim
        seen = tl.load(visible + row * count + key, mask=key < count, other=0)
        there = seen[:, None] & inside[None, :]
        # Distances fall to 0, the query's own key: the products of all that is not ahead of it are the last ones.
        first = along + line * count + (count - 1 - tl.load(at + row))
        # All is on its way before anything is waited for.
        these_keys = keys + row * key_row + head * key_head + key[:, None] * key_step + number[None, :]
        these_values = values + row * value_row + head * value_head + key[:, None] * value_step + number[None, :]
        k = tl.load(these_keys, mask=there, other=0.0).to(tl.float32)
        v = tl.load(these_values, mask=there, other=0.0).to(tl.float32)
        scores = tl.load(first + key, mask=seen, other=0.0).to(tl.float32)
        query = tl.load(q + line * dim + number, mask=inside, other=0.0).to(tl.float32)
        query += tl.load(u + head * dim + number, mask=inside, other=0.0).to(tl.float32)
        scores += tl.sum(k * query[None, :], axis=1)
        scores = tl.where(seen, scores * scale, float("-inf"))
        # Where nothing is seen: a number, since −∞ from −∞ is none. Elsewhere the largest weighs 1, so all of them no less.
        most = tl.maximum(tl.max(scores, axis=0), -3.0e38)
        weights = tl.exp(scores - most)
        total = tl.maximum(tl.sum(weights, axis=0), 1.0)
        place = line * parts + part
        tl.store(contexts + place * dim + number, tl.sum(weights[:, None] * v, axis=0) / total, mask=inside)
        tl.store(masses + place, most + tl.log(total))

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
            found = tl.load(
                contexts + (line * parts + part[:, None]) * dim + number[None, :],
                mask=(part < parts)[:, None] & inside[None, :],
                other=0.0,
            )
            context += tl.sum(share[:, None] * found, axis=0)
        tl.store(mixed + line * dim + number, context.to(mixed.dtype.element_ty), mask=inside)
        tl.store(mass + line, whole)


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, u: Tensor, along: Tensor, at: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Contexts (B, 1, H, d), of the values' type, and log masses (B, H, 1, 1), float32, of queries `q` (B, H, 1, d), the ones at positions
    `at` (B,) of their rows' keys. `keys` and `values` (B, H, K, d), of whatever strides but the last. `u` (H, 1, d) as in `Relative`, `along`
    (B, H, 1, K) the products of a query with every distance K − 1 … 0, neither of them scaled. `visible` (B, 1, K): something in each row,
    and nothing ahead of its query."""
    B, H, K, d = keys.shape
    assert all(tensor.is_contiguous() for tensor in (q, u, along, visible))
    assert keys.stride(-1) == values.stride(-1) == 1
    assert not (torch.is_grad_enabled() and q.requires_grad), "it has no gradients"
    # All integers are the model's, none the batch's: what was compiled once is for however many rows.
    dim_block: int = triton.next_power_of_2(d)
    block = max(1, _TILE // dim_block)
    parts = triton.cdiv(K, block)
    contexts, masses = (q.new_empty(B, H, parts, n, dtype=torch.float32) for n in (d, 1))
    mixed, mass = values.new_empty(B, 1, H, d), masses.new_empty(B, H, 1, 1)
    with torch.cuda.device_of(q):  # Triton asks what the current device is, not the tensors'
        _attend_part[(B * H, parts)](
            q, u, keys, values, along, at, visible, contexts, masses, d**-0.5,
            *keys.stride()[:3], *values.stride()[:3],
            H, K, d, parts, block, dim_block,
        )  # fmt: skip
        parts_block: int = triton.next_power_of_2(parts)
        _merge_parts[(B * H,)](contexts, masses, mixed, mass, d, parts, dim_block, parts_block, min(parts_block, block))
    return mixed, mass
