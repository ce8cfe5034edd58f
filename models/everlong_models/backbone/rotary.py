"""Rotary positions (RoPE, Su et al. 2021): evict positions from a KV cache without encoding the rest again.

A key at position p is R(p θ) k: each frequency θ rotates one plane of the head. Scores with a query at q depend on
R((p − q) θ) alone. So moving a key down by c positions is a rotation by R(−c θ).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def evict(kv: Tensor, frequencies: Sequence[Tensor | None], start: int, count: int, end: int) -> None:
    """Remove the positions [start, start + count) from `kv` (B, layers, 2, G, C, d), which is filled up to `end`, in place.

    Later positions move down by `count`, rotated as if computed there; zeros follow them. `frequencies`: of each layer, θ (r/2,), in
    radians per position, for the first r numbers of a head; None for a layer without rotation.
    """
    by = torch.tensor([[-count]], device=kv.device)
    for layer, each in enumerate(frequencies):  # one at a time: a copy of all would be as large as the cache
        keys = kv[:, layer, 0, :, start + count : end]
        kv[:, layer, 0, :, start : end - count] = keys.clone() if each is None else turned(keys, each, by)
        kv[:, layer, 1, :, start : end - count] = kv[:, layer, 1, :, start + count : end].clone()
    # Attention weights these positions with 0 until they are written again, so they must be finite.
    kv[..., end - count : end, :] = 0


def turned(keys: Tensor, frequencies: Tensor, by: Tensor) -> Tensor:
    """Return `keys` (B, G, n, d) moved `by` (B or 1, n) positions, in at least float32. Keys moved by 0 keep their bits.

    `frequencies` (r/2,): θ, in radians per position; only the first r numbers of a head are rotated.
    """
    exact = torch.promote_types(keys.dtype, torch.float32)
    angles = (by.double()[..., None] * frequencies.double()).repeat(*[1] * by.dim(), 2)
    cos, sin = (x.to(exact).reshape(-1, 1, *x.shape[-2:]) for x in (angles.cos(), angles.sin()))
    rotating, rest = keys.to(exact).split([cos.shape[-1], keys.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = rotating.chunk(2, dim=-1)
    return torch.cat([rotating * cos + torch.cat([-second, first], dim=-1) * sin, rest], dim=-1)
