"""Attention by content and relative position, shared by LaMemo, Transformer-XL and the Compressive Transformer.

A query at position i scores a key at position j by content and by their distance Δ = i − j (Dai et al. 2019, eq. 5;
Ji et al. 2022, eqs. 6 and 12):

    A_ij = q_iᵀk_j + q_iᵀr_Δ + uᵀk_j + vᵀr_Δ,    q = W_q x,  k = W_k x,  r_Δ = W_r R_Δ,

with R the sinusoids and u, v biases that all layers share. The two *forms* differ only for keys ahead of their query:
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
    """How T queries stand to K keys on one side of them: behind, at Δ ≥ 0, or ahead. What is on the other is to be hidden.

    `encoding` (N, D): R of N falling distances. `u`, `v` (H, 1, d): the biases of this side. `align` turns scores per
    distance (B, H, T, N) into scores per key (B, H, T, K).
    """

    encoding: Tensor
    u: Tensor
    v: Tensor
    align: Callable[[Tensor], Tensor]


def shift(scores: Tensor, start: int, keys: int) -> Tensor:
    """Scores (…, T, N) per falling distance → scores per key (…, T, K). A view: nothing is copied.

    The first query's first key stands in column `start`, and every query's one column further left than that of the
    query before it: a row stride that is shorter by one. Needs `start` < N and K < N.
    """
    T, N = scores.shape[-2:]
    flat = scores.flatten(-2)[..., start : start + T * (N - 1)]
    return flat.view(*flat.shape[:-1], T, N - 1)[..., :keys]


def product(x: Tensor, y: Tensor) -> Tensor:
    """`x` (B, H, T, n) times `y` (B, H, n, m).

    On a CPU the keys and values of a cache, whose rows lie apart, would be copied for one query a row, in more time than the product
    takes. By itself each row is multiplied where it is; and to the bit as if it were alone.
    """
    if x.device.type != "cpu" or len(x) < 2 or x.shape[2] > 1:
        return x @ y
    return torch.stack([one @ other for one, other in zip(x, y, strict=True)])


class RelativePositions(nn.Module):
    """R and the biases u, v₊, v₋ (one v in the signed form), which all layers share."""

    def __init__(self, width: int, heads: int, dim: int, form: PositionForm) -> None:
        super().__init__()
        shape = (heads, 1, dim)
        self.form = form
        self.width = width
        self.content = nn.Parameter(torch.randn(shape) * INITIAL_STD)
        self.behind = nn.Parameter(torch.randn(shape) * INITIAL_STD)
        self.ahead = nn.Parameter(torch.randn(shape) * INITIAL_STD) if form == "disentangled" else None

    def keys_behind(self, queries: int, keys: int) -> RelativeTerms:
        """The queries are at the last positions of the keys, and look at their own and those before it."""
        distances = torch.arange(keys - 1, -2, -1, device=self.content.device)
        align = partial(shift, start=queries - 1, keys=keys)
        return RelativeTerms(self.encode(distances), self.content, self.behind, align)

    def keys_ahead(self, queries: int, keys: int) -> RelativeTerms:
        """The queries are at positions 0 … T−1, the keys at the last of positions 0 … T; a query looks behind itself."""
        distances = torch.arange(0, -queries - 1, -1, device=self.content.device)
        align = partial(shift, start=queries + 1 - keys, keys=keys)
        return RelativeTerms(
            self.encode(distances), self.content, self.behind if self.ahead is None else self.ahead, align
        )

    def keys_behind_each_row(self, at: Tensor, keys: int) -> RelativeTerms:
        """One query in each row, at position `at` (B,) of its `keys` keys."""
        position = torch.arange(keys, device=at.device)
        index = (keys - 1 - at[:, None] + position).clamp(max=keys - 1)[:, None, None]
        align = partial(torch.take_along_dim, indices=index, dim=-1)
        return RelativeTerms(self.encode(position.flip(0)), self.content, self.behind, align)

    def encode(self, distance: Tensor) -> Tensor:
        """R_Δ, or R_|Δ| in the disentangled form, (N, D), of integer distances (N,): first the sines, then the cosines."""
        distance = distance if self.form == "signed" else distance.abs()
        # Angles in half precision would merge distances beyond a few hundred.
        accurate = torch.promote_types(self.content.dtype, torch.float32)
        step = torch.arange(0, self.width, 2, device=distance.device, dtype=accurate)
        angle = distance.to(accurate)[:, None] * (10000.0 ** (-step / self.width))
        return torch.cat([angle.sin(), angle.cos()], dim=-1).to(self.content.dtype)


class RelativeAttention(nn.Module):
    """Projections, scores and contexts of one layer's attention."""

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
        """q (B, H, T, d) of a layer's inputs (B, T, D)."""
        return self.split(self.query(x))

    def keys(self, x: Tensor) -> Tensor:
        """k (B, H, T, d)."""
        return self.split(self.key(x))

    def values(self, x: Tensor) -> Tensor:
        """The values (B, H, T, d)."""
        return self.split(self.value(x))

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H·d) → (B, H, T, d)."""
        return x.view(*x.shape[:-1], self.heads, self.dim).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor, relative: RelativeTerms, visible: Tensor) -> Tensor:
        """A/√d (B, H, T, K) of queries (B, H, T, d) and keys (B, H, K, d), −∞ where `visible` (B, T, K) is false.

        In float32 or better, whatever the weights' type.
        """
        scale = self.dim**-0.5
        scores: Tensor = product((q + relative.u) * scale, k.mT).to(torch.promote_types(q.dtype, torch.float32))
        scores += relative.align(self.along((q + relative.v) * scale, relative.encoding))
        return scores.masked_fill_(~visible[:, None], -torch.inf)

    def along(self, x: Tensor, encoding: Tensor) -> Tensor:
        """xᵀ W_r R for every distance: (B, H, T, d) → (B, H, T, N)."""
        weight = self.position.weight.view(self.heads, self.dim, -1)  # (H, d, D)
        if x.shape[-2] < self.dim:
            # (xᵀ W_r) R is less work than xᵀ (W_r R) for few queries: decoding projects no distances anew. The choice
            # rests on T alone, so that a row's answer does not depend on how many rows are beside it.
            return torch.einsum("bhtd,hde->bhte", x, weight) @ encoding.mT
        return torch.einsum("bhtd,hdn->bhtn", x, weight @ encoding.mT)

    @staticmethod
    def mix(scores: Tensor, v: Tensor) -> Tensor:
        """Contexts C (B, T, H, d): the values (B, H, K, d) by the softmax of scores (B, H, T, K)."""
        return product(scores.softmax(-1).to(v.dtype), v).transpose(1, 2)
