"""`MemoryView`: a description of a memory in numbers, computed without generating anything.

Positions count tokens from the beginning of the context: the span [0, 512) is the first 512 tokens that were read,
across all documents and messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of a memory, in one `layer` or, with None, in all layers.

    `start`, `end`: the span of tokens that was written into it, including tokens that it has since forgotten. `slots`:
    its capacity (tokens, positions, vectors, basis functions or associations). `used`: how many slots are in use; a
    part that is not written slot by slot reports its effective rank, a fraction (see `effective_rank`). `age`: tokens
    read since it was last written, or since it was complete if it is never written again; the open segment counts.
    `change`: how much the open segment would change it if it ended now, ‖new − old‖ / ‖old‖. `change` is None for parts
    that store tokens or positions unchanged, without an open segment, and before the first write. `bytes`: its size, where parts differ
    in it. `half_life`: after how many tokens half of what a token wrote has faded, for the median channel at its usual step; None for
    parts without such a decay.
    """

    name: str
    start: int
    end: int
    slots: int
    used: float
    age: int
    layer: int | None = None
    change: float | None = None
    bytes: int | None = None
    half_life: float | None = None


@dataclass(frozen=True, slots=True)
class SignalPhrase:
    """Tokens [`start`, `end`) and the share of the signal, 0 … 1, that they own."""

    start: int
    end: int
    space: float


@dataclass(frozen=True, slots=True)
class LayerView:
    """The signal of one ∞-former layer, divided into equal bins of [0, 1].

    `edges`: for every bin border, ascending, the position in tokens (a fraction) that it holds; one more than bins. The
    closer two edges are, the more space their tokens have. `attention`: the share of attention that the open segment's
    queries give to each bin, summing to 1; None without an open segment. `phrases`: the phrases with the most space,
    largest first, if they have more than the average.
    """

    layer: int
    edges: tuple[float, ...]
    attention: tuple[float, ...] | None
    phrases: tuple[SignalPhrase, ...]


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory of one row.

    `tokens`: how many were read into it. `segments`: how many full segments these were. `open`: tokens of the open
    segment, which are not in the memory yet. `bytes`: its size, which never changes. `layers`: the signals of an
    ∞-former that has read something, else empty.
    """

    tokens: int
    segments: int
    open: int
    bytes: int
    parts: tuple[MemoryPart, ...]
    layers: tuple[LayerView, ...]


def effective_rank(matrix: Tensor) -> Tensor:
    """Return the effective rank (…) of `matrix` (…, n, d): from 1 to min(n, d), and 0 for a zero matrix.

    It is the participation ratio of the squared singular values, (Σ s²)² / Σ s⁴ = ‖X‖⁴ / ‖XᵀX‖²: k equal singular
    values give k.
    """
    x = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    gram = x.mT @ x if x.shape[-1] < x.shape[-2] else x @ x.mT
    total = gram.square().sum(dim=(-2, -1))
    return torch.where(total > 0, 1 / total, 0.0)


def relative_change(old: Tensor, new: Tensor) -> list[float | None]:
    """Return ‖new − old‖ / ‖old‖ for each of n pairs (n, …); None where the old tensor is zero."""
    before, moved = old.flatten(1).float().norm(dim=1), (new - old).flatten(1).float().norm(dim=1)
    return [m / b if b else None for m, b in zip(moved.tolist(), before.tolist(), strict=True)]
