"""Rotary positions (RoPE, Su et al. 2021), and a cache of keys and values that lets go of some.

A key at position p is R(p θ) k, with a plane of its halves for each frequency θ; queries meet it as R((p - q) θ). So a key that
moves down by c positions is turned by R(-c θ), and nothing has to be encoded anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Kinds whose frequencies do not depend on the length of the text.
ROPE = ("default", "linear", "llama3", "yarn")


def has_fixed_frequencies(config: Any) -> bool:
    """Whether all of a head has rotary positions whose frequencies are always the same."""
    rope = config.rope_parameters
    return rope["rope_type"] in ROPE and rope.get("partial_rotary_factor", 1.0) == 1.0


def evict(kv: Tensor, frequencies: Tensor, start: int, count: int, end: int) -> None:
    """Takes the positions [start, start + count) out of `kv` (B, layers, 2, G, C, d), which ends at `end`, in place: those behind
    move down by `count`, as if they had been computed there, and zeros come behind them. `frequencies` (d/2,): θ, radians a position."""
    angles = (-count * frequencies.double()).repeat(2)
    exact = torch.promote_types(kv.dtype, torch.float32)
    cos, sin = angles.cos().to(exact), angles.sin().to(exact)
    for layer in range(kv.shape[1]):  # one at a time: a copy of all would be as large as the cache
        keys, values = kv[:, layer, 0], kv[:, layer, 1]
        moved = keys[..., start + count : end, :]
        first, second = moved.chunk(2, dim=-1)
        keys[..., start : end - count, :] = moved * cos + torch.cat([-second, first], dim=-1) * sin
        values[..., start : end - count, :] = values[..., start + count : end, :].clone()
    kv[..., end - count : end, :] = (
        0  # who is at this place next may look there, with a weight of 0: it must be a number
    )
