"""`Quantized`: a matrix in groups of four or eight bits, for products of few rows, which wait for the weights' bytes.

    y = act(x Wᵀ + x Aᵀ Bᵀ + b) · times + plus,    W ≈ d · (q − offset) + c in groups of 32 along a row

Four bits where they lose nothing: the q of a group that llama.cpp stored as Q4_1 are found again, since its least and its
greatest weight are 0 and 15 there. Other weights get eight, as two passes of four: q = 16 · high + low. Activations, d and
c are rounded to bfloat16 for the product, whose sums are float32; its results are rounded to bfloat16 again. A low-rank
update B A, which would take W off its four bits, stays beside it in float32.

A row's result does not depend on the other rows, to the bit: the kernel has one order of summation for any number.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Update = tuple[Tensor, Tensor]
"""A (r, K) and B (N, r): a matrix W has become W + B A."""
MERGED = "merged_update"
"""Where a layer keeps the `Update` that is in its weight already."""
GROUP = 32
# What rounding in a file may have moved a weight off its grid by, as a share of the grid's step.
TOLERANCE = 0.02
# Looked at together: few enough for the processor's cache, which makes it three times as fast.
_ROWS = 128


class Quantized:
    """`weight` (N, K), K a multiple of 32 and N of 16 (see `fits`); `bias` (N,) or None; `update`: what comes to
    the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, update: Update | None = None) -> None:
        weight = weight.detach().float()
        self.bias = None if bias is None else bias.detach().float()
        groups = weight.unflatten(1, (-1, GROUP))
        four = _four(groups)
        self.bits = 8 if four is None else 4
        self.dtype = torch.float32  # of what comes in and goes out
        self._passes = _eight(groups) if four is None else [four]
        self._update = None if update is None else tuple(part.detach().float().t().contiguous() for part in update)

    def __call__(
        self, x: Tensor, *, silu: bool = False, times: Tensor | None = None, plus: Tensor | None = None
    ) -> Tensor:
        """(…, N) of `x` (…, K), float32; at most one of `silu`, `times` and `plus`, the latter of the result's shape."""
        rows = x.to(torch.bfloat16).reshape(-1, x.shape[-1]).contiguous()
        y: Tensor | None = None
        for packed, scales in self._passes:
            part = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, GROUP, scales)
            y = part.float() if y is None else y.add_(part)
        assert y is not None
        if self._update is not None:
            # One small product a row: a product of all rows may sum in another order.
            a, b = (part.expand(len(rows), -1, -1) for part in self._update)
            y[:, None].baddbmm_(torch.bmm(x.reshape(len(rows), 1, -1), a), b)
        if self.bias is not None:
            y += self.bias
        y = y.view(*x.shape[:-1], -1)
        if silu:
            return F.silu(y, inplace=True)
        if times is not None:
            return y.mul_(times)
        return y if plus is None else y.add_(plus)


def fits(weight: Tensor) -> bool:
    """Whether this build of PyTorch has the kernel for `weight` (N, K) where it lies, and quickly."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.shape[0] % 16 == 0
        and weight.shape[1] % GROUP == 0
        and hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    )


Packed = tuple[Tensor, Tensor]
"""What the kernel multiplies by: four-bit q, and by group d and c with w = d · (q − 8) + c."""


def _four(groups: Tensor) -> Packed | None:
    """`groups` (N, K/32, 32) if all of them lie on a grid of 16 steps; otherwise None."""
    found = []
    for rows in groups.split(_ROWS):
        least = rows.amin(-1, keepdim=True)
        d = (rows.amax(-1, keepdim=True) - least) / 15
        steps = (rows - least).div_(torch.where(d > 0, d, 1))
        q = steps.round()
        if not float(steps.sub_(q).abs_().amax()) <= TOLERANCE:  # nor if it is no number
            return None
        found.append((q.to(torch.int32), d, least + 8 * d))
    q, d, c = (torch.cat(parts) for parts in zip(*found, strict=True))
    return _pack(q, d, c)


def _eight(groups: Tensor) -> list[Packed]:
    """`groups` on grids of 256 steps, whose d and c are bfloat16 numbers, so that nothing else is rounded."""
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    c = ((least + most) / 2).to(torch.bfloat16).float()
    # 16 · (high − 8) + (low − 8) reaches from −136 to 119; 1 % is room for the rounding of both.
    d = (1.01 * torch.maximum(most - c, c - least) / 119).to(torch.bfloat16).float()
    q = ((groups - c) / torch.where(d > 0, d, 1)).round() + 136
    return [_pack(q // 16, 16 * d, torch.zeros_like(c)), _pack(q % 16, d, c)]


def _pack(q: Tensor, d: Tensor, c: Tensor) -> Packed:
    scales = torch.cat([d, c], dim=-1).transpose(0, 1).to(torch.bfloat16).contiguous()
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.to(torch.int32).flatten(1), 1), scales
