"""`VoronoiCells`: which tokens own which part of a signal on [0, 1] (∞-former, section 3.3 and appendix D).

D(t) tells how many tokens lie before the place t of a signal: D(0) = 0, D(1) = all. It grows by pieces of straight line.
An update contracts the signal to [0, τ] and puts the T new tokens behind it, so that D becomes

    D'(t) = D(t/τ) for t ≤ τ,    D'(t) = n + T (t − τ)/(1 − τ) for t > τ                (n tokens before)

where the past is sampled evenly. Sticky samples are drawn at p_1 ≤ … ≤ p_M and laid out evenly, D'(τ m/M) = D(p_m): what
is drawn more densely gets more space. Then M + 2 numbers are all that is left of D: its values at the samples' places,
n, and n + T. Tokens behind the last sample have no space any more; D jumps over them at τ.

Token i of 1 … n lies at l_i = D⁻¹(i), and its space is its Voronoi cell, half the way to the token before and half the
way to the next one; the first cell begins at 0 and the last ends at 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from everlong_models.memories.view import SignalPhrase


@dataclass(frozen=True, slots=True)
class VoronoiCells:
    """D by its corners, float64 on the CPU: `tokens` (n,) before the places `at` (n,); both ascend, from 0 to 1 and to
    all tokens."""

    at: Tensor
    tokens: Tensor

    @staticmethod
    def even(segments: int, first: int, length: int, tau: float | None) -> VoronoiCells:
        """Of evenly sampled updates by `segments` ≥ 1 segments, all of `length` tokens but the `first`.

        `tau`: the share that each update leaves to the past; None for the k/(k+1) that gives each segment the same.
        """
        if tau is None:
            at = torch.tensor([0, 1 / segments, 1], dtype=torch.float64)
            tokens = torch.tensor([0, first, first + (segments - 1) * length], dtype=torch.float64)
            return VoronoiCells(at, tokens)
        # What is further back has less than 10⁻¹² of the space altogether.
        kept = min(segments, 1 + math.ceil(math.log(1e-12) / math.log(tau)))
        ago = torch.arange(kept - 1, -1, -1, dtype=torch.float64)
        zero = torch.zeros(1, dtype=torch.float64)
        return VoronoiCells(torch.cat([zero, tau**ago]), torch.cat([zero, first + (segments - 1 - ago) * length]))

    def before(self, t: Tensor) -> Tensor:
        """D(t) of places `t` (k,)."""
        return interpolate(t, self.at, self.tokens)

    def cells(self, tokens: Tensor) -> Tensor:
        """Where the cells of the first `tokens` (k,) tokens end, and the next one's begins: 0 for 0, 1 for all."""
        x = tokens.double()
        here, following = (interpolate(t, self.tokens, self.at) for t in (x, x + 1))
        border = torch.where(x < self.tokens[-1], (here + following) / 2, 1.0)
        return torch.where(x > 0, border, 0.0)

    def largest(self, count: int, length: int) -> list[SignalPhrase]:
        """At most `count` phrases of `length` tokens with the most space, the largest first, that do not overlap.

        Only such as have more than an even share, by a token's at least: the first token's cell is larger than others by
        itself. Of equals the newest comes first.
        """
        total = int(self.tokens[-1])
        length = min(length, total)
        # A window's space changes its slope where one of its ends comes to a corner: the largest ones begin or end there.
        corners = (self.tokens.long()[:, None] + torch.arange(-1, 2)).flatten()
        starts = torch.cat([corners, corners - length, corners - length // 2]).clamp(0, total - length).unique().flip(0)
        spaces = self.cells(starts + length) - self.cells(starts)
        found: list[SignalPhrase] = []
        for n in spaces.mul(1e12).round().argsort(descending=True, stable=True):
            start, space = int(starts[n]), float(spaces[n])
            if len(found) == count or space * total <= length + 1:
                break
            if all(abs(start - other.start) >= length for other in found):
                found.append(SignalPhrase(start, start + length, space))
        return found


def corners_of_samples(places: Tensor, taus: Tensor) -> tuple[Tensor, Tensor]:
    """D's corners `at` and `tokens` (B, L, M + 3) of its values `places` (B, L, M + 2) behind sampled updates by `taus` (B,)."""
    M = places.shape[-1] - 2
    steps = torch.arange(M + 1, dtype=torch.float64, device=places.device) / M
    taus = taus.to(steps.device)[:, None]
    at = torch.cat([taus * steps, taus, torch.ones_like(taus)], dim=1)  # (B, M + 3)
    return at[:, None].expand(-1, places.shape[1], -1), torch.nn.functional.pad(places, (1, 0))


def interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """The line through the points (`xs`, `ys`) (…, n), `xs` ascending, at `x` (…, k): (…, k). Constant beyond its ends.

    Where several points have one x, the last counts from there on.
    """
    right = torch.searchsorted(xs.contiguous(), x.contiguous(), right=True).clamp(1, xs.shape[-1] - 1)
    x0, x1, y0, y1 = xs.gather(-1, right - 1), xs.gather(-1, right), ys.gather(-1, right - 1), ys.gather(-1, right)
    return y0 + (y1 - y0) * ((x - x0) / (x1 - x0).clamp_min(torch.finfo(xs.dtype).tiny)).clamp(0, 1)
