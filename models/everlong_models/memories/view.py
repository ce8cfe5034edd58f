"""`MemoryView`: what there is to say about a memory without asking it anything. Numbers only; positions count tokens.

A position is a number of tokens of the context, counted from its beginning: the span [0, 512) is the first 512 tokens
that were read, whatever they belonged to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of a memory, of one `layer` or, with None, of all.

    `start`, `end`: the span of tokens that it is made of; what it has forgotten of them it cannot tell. `slots`: how many
    things it has room for (tokens, positions, vectors, functions, associations). `used`: how many of these it uses;
    for what is not written slot by slot the effective rank, a fraction (see `effective_rank`). `age`: tokens that were
    read since it was last written, in the open segment or, for what is never written again, since it was complete.
    `change`: by which share of its length the open segment would change it if it ended now, ‖new − old‖ / ‖old‖; None
    for what keeps tokens and positions as they are, without an open segment, and if nothing was written yet.
    """

    name: str
    start: int
    end: int
    slots: int
    used: float
    age: int
    layer: int | None = None
    change: float | None = None


@dataclass(frozen=True, slots=True)
class SignalPhrase:
    """Tokens [`start`, `end`) and the share of the memory, 0 … 1, that is given to them."""

    start: int
    end: int
    space: float


@dataclass(frozen=True, slots=True)
class LayerView:
    """One layer's signal of an ∞-former, in equal bins of its [0, 1].

    `edges`: the positions, fractions of tokens and ascending, from which the bins' borders come, one more than bins: so
    the closer two edges are, the more space these tokens have. `attention`: the share of it that the queries of the open
    segment give to each bin, sums to 1; None without an open segment. `phrases`: those with the most space, the largest
    first; only such as have more than tokens have on average.
    """

    layer: int
    edges: tuple[float, ...]
    attention: tuple[float, ...] | None
    phrases: tuple[SignalPhrase, ...]


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory of one row.

    `tokens`: read into it. `segments`: full ones among these. `open`: tokens of the open segment, which are not in it yet.
    `bytes`: its size, which never changes. `layers`: of an ∞-former that has read something, else empty.
    """

    tokens: int
    segments: int
    open: int
    bytes: int
    parts: tuple[MemoryPart, ...]
    layers: tuple[LayerView, ...]


def effective_rank(matrix: Tensor) -> Tensor:
    """How many independent directions hold the content of `matrix` (…, n, d): (…), from 1 to min(n, d), 0 for none.

    The participation ratio of the squared singular values, (Σ s²)² / Σ s⁴ = ‖X‖⁴ / ‖XᵀX‖²: k equal ones give k.
    """
    x = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    gram = x.mT @ x if x.shape[-1] < x.shape[-2] else x @ x.mT
    total = gram.square().sum(dim=(-2, -1))
    return torch.where(total > 0, 1 / total, 0.0)


def relative_change(old: Tensor, new: Tensor) -> list[float | None]:
    """‖new − old‖ / ‖old‖ of each of n pairs (n, …); None where the old one is zero."""
    before, moved = old.flatten(1).float().norm(dim=1), (new - old).flatten(1).float().norm(dim=1)
    return [m / b if b else None for m, b in zip(moved.tolist(), before.tolist(), strict=True)]
