"""Causal attention of a prefill, with the fastest products of the machine.

Shapes: B rows, n queries of T positions, G key heads with R query heads each, d head dimension. Queries are scaled already. `window`: how
many keys a query sees, its own included; None: all before it. `cap`: a score s becomes cap · tanh(s / cap) (Gemma 2).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.blocks import BLOCK
from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.simd import PANEL
from everlong_models.kernels.linear import has_onednn, has_simd_kernels, matmul

# Up to this many positions, one call per row and head costs more than the upper triangle that it skips.
SHORT = 64

Attend = Callable[[Tensor, Tensor, Tensor, int | None, float | None], Tensor]
"""The type of `causal`."""


def causal_mask(positions: Tensor, keys: int, window: int | None = None) -> Tensor:
    """Return which of `keys` keys a query at `positions` (B, T) sees: true up to its own position, (B, T, keys)."""
    slots, at = torch.arange(keys, device=positions.device), positions[:, :, None]
    seen = slots <= at
    return seen if window is None else seen & (slots > at - window)


def additive_mask(visible: Tensor, dtype: torch.dtype, hidden: float) -> Tensor:
    """Return `visible` as numbers to add to scores: 0 where true, `hidden` where false."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, hidden)


def masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, cap: float | None = None) -> Tensor:
    """Return attention (B, n, G·R·d) of the last n queries (B, n, G, R, d) over stored keys and values (B, G, C, d).

    `mask` (1 or B, T, C) is added to the scores. The R heads that share keys become rows of one matrix, so that keys are not copied for
    them.
    """
    n, R = queries.shape[1], queries.shape[3]
    mask = mask[:, -n:].repeat_interleave(R, dim=1)[:, None]
    rows = queries.transpose(1, 2).flatten(2, 3)
    if cap is None:
        mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=1.0)
    else:
        mixed = (_capped(rows @ keys.mT, cap) + mask).softmax(-1) @ values
    return mixed.unflatten(2, (n, R)).transpose(1, 2).flatten(2)


def causal(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None = None, cap: float | None = None
) -> Tensor:
    """Return causal attention (B, n, G·R·d) of the last n queries (B, n, G, R, d) over keys and values (B, G, T, d)."""
    n, d, T = queries.shape[1], queries.shape[4], keys.shape[2]
    window = None if window is None or window >= T else window
    if has_simd_kernels(queries) and d % PANEL == 0:
        return thread_pool.attend(queries, keys, values, window, cap)
    if T > SHORT and has_onednn(queries):
        return _in_blocks(queries, keys, values, window, cap)
    if window is not None or cap is not None:
        visible = causal_mask(torch.arange(T - n, T, device=keys.device)[None], T, window)
        return masked(queries, keys, values, additive_mask(visible, queries.dtype, -torch.inf), cap)
    mask = None if n == T else causal_mask(torch.arange(T - n, T, device=keys.device)[None], T)[0]
    mixed = F.scaled_dot_product_attention(
        *(queries.flatten(2, 3).transpose(1, 2), keys, values),
        attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=True,
    )  # fmt: skip
    return mixed.transpose(1, 2).flatten(2)


def _in_blocks(queries: Tensor, keys: Tensor, values: Tensor, window: int | None, cap: float | None) -> Tensor:
    """Compute `causal` with one product for each block of queries and key head.

    The R heads that share keys become rows of one matrix; a block of queries sees only the keys from the start of its first query's window
    up to its own end.
    """
    B, n, G, R, d = queries.shape
    T = keys.shape[2]
    queries = queries.transpose(1, 2).contiguous()
    out = queries.new_empty(B, n, G, R * d)
    block = min(n, BLOCK)
    none = queries.new_full((block, block), -torch.inf)
    future, past = (mask.repeat_interleave(R, dim=0) for mask in (none.triu(1), none.tril(-1)))
    for row in range(B):
        for q, k, v, o in zip(queries[row], keys[row], values[row], out[row].unbind(1), strict=True):
            for start in range(0, n, block):
                size = min(block, n - start)
                seen = T - n + start + size
                first = 0 if window is None else seen - size + 1 - window
                more = max(0, -first)  # so many queries see the first key, too
                first = max(0, first)
                scores = matmul(q[start : start + size].view(-1, d), k[first:seen])
                if cap is not None:
                    scores = _capped(scores, cap)
                scores[:, seen - first - size :] += future[: size * R, :size]
                if window is not None and more < size:
                    scores[more * R :, : size - more] += past[: (size - more) * R, : size - more]
                o[start : start + size] = matmul(scores.softmax(-1), v[first:seen].t()).view(size, R * d)
    return out.flatten(2)


def _capped(scores: Tensor, cap: float) -> Tensor:
    return scores.div_(cap).tanh_().mul_(cap)
