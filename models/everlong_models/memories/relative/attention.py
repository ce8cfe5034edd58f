"""Attention by content and relative position, shared by LaMemo, Transformer-XL and the Compressive Transformer.

A query at position i scores a key at position j by content and by their distance Δ = i − j (Dai et al. 2019, eq. 5;
Ji et al. 2022, eqs. 6 and 12):

    A_ij = q_iᵀk_j + q_iᵀr_Δ + uᵀk_j + vᵀr_Δ,    q = W_q x,  k = W_k x,  r_Δ = W_r R_Δ,

with R the sinusoids and u, v biases that all layers share. The two *forms* differ only for keys after their query:
"signed" is Transformer-XL's R_Δ with one v; "disentangled" is LaMemo's R_|Δ| with v₊ for i ≥ j and v₋ for i < j.

Shapes: B rows, T queries, K keys, N distances, H heads, d head dimension, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

PositionForm = Literal["signed", "disentangled"]

INITIAL_STD = 0.02


@dataclass(frozen=True, slots=True)
class RelativeTerms:
    """The position terms of T queries and K keys, for keys on one side: before the query (Δ ≥ 0) or after it.

    The caller must mask keys on the other side. `encoding` (N, D): R of N falling distances. `u`, `v` (H, 1, d): the
    biases of this side. `align` turns scores per distance (B, H, T, N) into scores per key (B, H, T, K).
    """

    encoding: Tensor
    u: Tensor
    v: Tensor
    align: Callable[[Tensor], Tensor]


def shift(scores: Tensor, start: int, keys: int) -> Tensor:
    """Return scores per key (…, T, K) of scores per falling distance (…, T, N), as a view.

    The first query's first key is in column `start`; the first key of each next query is one column further left. So
    the view has a row stride that is shorter by one. Needs `start` < N and K < N.
    """
    T, N = scores.shape[-2:]
    flat = scores.flatten(-2)[..., start : start + T * (N - 1)]
    return flat.view(*flat.shape[:-1], T, N - 1)[..., :keys]


def product(x: Tensor, y: Tensor) -> Tensor:
    """Return `x` (B, H, T, n) times `y` (B, H, n, m).

    For one query per row on a CPU, a batched product would first copy the cache's keys or values, whose rows are not
    contiguous; the copy takes longer than the product. So each row is multiplied by itself, in place. Its result is
    then bit-identical to that of the row alone.
    """
    if x.device.type != "cpu" or len(x) < 2 or x.shape[2] > 1:
        return x @ y
    return torch.stack([one @ other for one, other in zip(x, y, strict=True)])


class RelativePositions(nn.Module):
    """R and the biases u (`content`), v₊ (`behind`) and v₋ (`ahead`, absent in the signed form), which all layers share."""

    def __init__(self, width: int, heads: int, dim: int, form: PositionForm) -> None:
        super().__init__()
        shape = (heads, 1, dim)
        self.form = form
        self.width = width
        self.content = nn.Parameter(torch.randn(shape) * INITIAL_STD)
        self.behind = nn.Parameter(torch.randn(shape) * INITIAL_STD)
        self.ahead = nn.Parameter(torch.randn(shape) * INITIAL_STD) if form == "disentangled" else None

    def keys_behind(self, queries: int, keys: int) -> RelativeTerms:
        """Return the terms for queries at the last positions of the keys, which attend to themselves and what precedes."""
        distances = torch.arange(keys - 1, -2, -1, device=self.content.device)
        align = partial(shift, start=queries - 1, keys=keys)
        return RelativeTerms(self.encode(distances), self.content, self.behind, align)

    def keys_ahead(self, queries: int, keys: int) -> RelativeTerms:
        """Return the terms for queries at positions 0 … T−1 that attend to later keys, the last ones of positions 0 … T."""
        distances = torch.arange(0, -queries - 1, -1, device=self.content.device)
        align = partial(shift, start=queries + 1 - keys, keys=keys)
        return RelativeTerms(
            self.encode(distances), self.content, self.behind if self.ahead is None else self.ahead, align
        )

    def keys_behind_each_row(self, at: Tensor, keys: int) -> RelativeTerms:
        """Return the terms for one query per row, at position `at` (B,) of its `keys` keys, attending to what precedes."""
        position = torch.arange(keys, device=at.device)
        index = (keys - 1 - at[:, None] + position).clamp(max=keys - 1)[:, None, None]
        align = partial(torch.take_along_dim, indices=index, dim=-1)
        return RelativeTerms(self.encode(position.flip(0)), self.content, self.behind, align)

    def encode(self, distance: Tensor) -> Tensor:
        """Return R_Δ, or R_|Δ| in the disentangled form, (N, D), of integer distances (N,): sines first, then cosines."""
        distance = distance if self.form == "signed" else distance.abs()
        # Half precision could not tell distances beyond a few hundred apart.
        accurate = torch.promote_types(self.content.dtype, torch.float32)
        step = torch.arange(0, self.width, 2, device=distance.device, dtype=accurate)
        angle = distance.to(accurate)[:, None] * (10000.0 ** (-step / self.width))
        return torch.cat([angle.sin(), angle.cos()], dim=-1).to(self.content.dtype)


class RelativeAttention(nn.Module):
    """One layer's attention: projections, scores and contexts."""

    def __init__(self, width: int, heads: int, dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.dim = dim
        self.query = nn.Linear(width, heads * dim, bias=False)
        self.key = nn.Linear(width, heads * dim, bias=False)
        self.value = nn.Linear(width, heads * dim, bias=False)
        self.position = nn.Linear(width, heads * dim, bias=False)
        self.output = nn.Linear(heads * dim, width, bias=False)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries (B, H, T, d) of a layer's inputs (B, T, D)."""
        return self.split(self.query(x))

    def keys(self, x: Tensor) -> Tensor:
        """Return the keys (B, H, T, d) of a layer's inputs (B, T, D)."""
        return self.split(self.key(x))

    def values(self, x: Tensor) -> Tensor:
        """Return the values (B, H, T, d) of a layer's inputs (B, T, D)."""
        return self.split(self.value(x))

    def split(self, x: Tensor) -> Tensor:
        """Split into heads: (B, T, H·d) → (B, H, T, d)."""
        return x.view(*x.shape[:-1], self.heads, self.dim).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor, relative: RelativeTerms, visible: Tensor) -> Tensor:
        """Return A/√d (B, H, T, K) of queries (B, H, T, d) and keys (B, H, K, d), −∞ where `visible` (B, T, K) is false.

        At least float32, whatever the weights' dtype.
        """
        scale = self.dim**-0.5
        scores: Tensor = product((q + relative.u) * scale, k.mT).to(torch.promote_types(q.dtype, torch.float32))
        scores += relative.align(self.distance_scores((q + relative.v) * scale, relative.encoding))
        return scores.masked_fill_(~visible[:, None], -torch.inf)

    def distance_scores(self, x: Tensor, encoding: Tensor) -> Tensor:
        """Return xᵀ W_r R for every distance: (B, H, T, d) → (B, H, T, N)."""
        weight = self.position.weight.view(self.heads, self.dim, -1)  # (H, d, D)
        if x.shape[-2] < self.dim:
            # For few queries (xᵀ W_r) R is less work than xᵀ (W_r R): decoding then projects no distances. The choice
            # depends on T alone, so that a row's result does not depend on the batch size.
            return torch.einsum("bhtd,hde->bhte", x, weight) @ encoding.mT
        return torch.einsum("bhtd,hdn->bhtn", x, weight @ encoding.mT)

    @staticmethod
    def mix(scores: Tensor, v: Tensor) -> Tensor:
        """Return the contexts C (B, T, H, d): values (B, H, K, d), weighted by the softmax of scores (B, H, T, K)."""
        return product(scores.softmax(-1).to(v.dtype), v).transpose(1, 2)
