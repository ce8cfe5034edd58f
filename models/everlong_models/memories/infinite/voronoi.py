"""`VoronoiCells`: which tokens own which part of a signal on [0, 1] (∞-former, section 3.3 and appendix D).

D(t) is the number of tokens before point t of a signal: D(0) = 0, D(1) = all tokens. D is piecewise linear. An update
contracts the signal to [0, τ] and appends the T new tokens. If the past is sampled evenly, D becomes

    D'(t) = D(t/τ) for t ≤ τ,    D'(t) = n + T (t − τ)/(1 − τ) for t > τ                (n tokens before)

Sticky samples are taken at p_1 ≤ … ≤ p_M and laid out evenly, D'(τ m/M) = D(p_m): regions that are sampled more densely
get more space. Then M + 2 numbers describe D: its values at the samples, n, and n + T. Tokens after the last sample
lose their space: D jumps over them at τ.

Token i of 1 … n is at l_i = D⁻¹(i). Its space is its Voronoi cell, from half way to the previous token to half way to
the next; the first cell begins at 0 and the last ends at 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from everlong_models.memories.view import SignalPhrase


@dataclass(frozen=True, slots=True)
class VoronoiCells:
    """D, given by its corners, float64 on the CPU: `tokens` (n,) = D(`at` (n,)).

    Both ascend: `at` from 0 to 1, `tokens` from 0 to the number of tokens.
    """

    at: Tensor
    tokens: Tensor

    @staticmethod
    def even(segments: int, first: int, length: int, tau: float | None) -> VoronoiCells:
        """Return the cells after evenly sampled updates by `segments` ≥ 1 segments of `length` tokens; the first has `first`.

        `tau`: the share that each update leaves to the past; None for k/(k+1), which gives each segment the same share.
        """
        if tau is None:
            at = torch.tensor([0, 1 / segments, 1], dtype=torch.float64)
            tokens = torch.tensor([0, first, first + (segments - 1) * length], dtype=torch.float64)
            return VoronoiCells(at, tokens)
        # All older segments together have less than 10⁻¹² of the space.
        kept = min(segments, 1 + math.ceil(math.log(1e-12) / math.log(tau)))
        ago = torch.arange(kept - 1, -1, -1, dtype=torch.float64)
        zero = torch.zeros(1, dtype=torch.float64)
        return VoronoiCells(torch.cat([zero, tau**ago]), torch.cat([zero, first + (segments - 1 - ago) * length]))

    def before(self, t: Tensor) -> Tensor:
        """Return D(t) for points `t` (k,)."""
        return interpolate(t, self.at, self.tokens)

    def cells(self, tokens: Tensor) -> Tensor:
        """Return where the cells of the first `tokens` (k,) tokens end and the next cell begins: 0 for 0, 1 for all."""
        x = tokens.double()
        here, following = (interpolate(t, self.tokens, self.at) for t in (x, x + 1))
        border = torch.where(x < self.tokens[-1], (here + following) / 2, 1.0)
        return torch.where(x > 0, border, 0.0)

    def largest(self, count: int, length: int) -> list[SignalPhrase]:
        """Return at most `count` phrases of `length` tokens with the most space, largest first, without overlaps.

        A phrase must exceed its even share by at least one token's share, because the first token's cell is always
        larger than average. Ties are resolved in favour of the newest.
        """
        total = int(self.tokens[-1])
        length = min(length, total)
        # The space of a sliding window is piecewise linear, with bends where one of its ends meets a corner of D. So the
        # largest windows begin or end at a corner.
        corners = (self.tokens.long()[:, None] + torch.arange(-1, 2)).flatten()
        starts = torch.cat([corners, corners - length, corners - length // 2]).clamp(0, total - length).unique().flip(0)
        spaces = self.cells(starts + length) - self.cells(starts)
        phrases: list[SignalPhrase] = []
        for n in spaces.mul(1e12).round().argsort(descending=True, stable=True):
            start, space = int(starts[n]), float(spaces[n])
            if len(phrases) == count or space * total <= length + 1:
                break
            if all(abs(start - other.start) >= length for other in phrases):
                phrases.append(SignalPhrase(start, start + length, space))
        return phrases


def corners_of_samples(places: Tensor, taus: Tensor) -> tuple[Tensor, Tensor]:
    """Return D's corners, `at` and `tokens` (B, L, M + 3), after a sticky update.

    `places` (B, L, M + 2): the values of D that the state stores. `taus` (B,): the contraction of the last update.
    """
    M = places.shape[-1] - 2
    steps = torch.arange(M + 1, dtype=torch.float64, device=places.device) / M
    taus = taus.to(steps.device)[:, None]
    at = torch.cat([taus * steps, taus, torch.ones_like(taus)], dim=1)  # (B, M + 3)
    return at[:, None].expand(-1, places.shape[1], -1), torch.nn.functional.pad(places, (1, 0))


def interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Interpolate linearly between the points (`xs`, `ys`) (…, n), `xs` ascending, at `x` (…, k). Constant outside.

    Where several points share one x, the last one applies from there on.
    """
    right = torch.searchsorted(xs.contiguous(), x.contiguous(), right=True).clamp(1, xs.shape[-1] - 1)
    x0, x1, y0, y1 = xs.gather(-1, right - 1), xs.gather(-1, right), ys.gather(-1, right - 1), ys.gather(-1, right)
    return y0 + (y1 - y0) * ((x - x0) / (x1 - x0).clamp_min(torch.finfo(xs.dtype).tiny)).clamp(0, 1)
