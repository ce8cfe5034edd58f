"""RMS norms of a decoder layer, and rotary positions: their weights, and how they are computed."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.linear import has_simd_kernels


@dataclass(frozen=True, slots=True)
class Norms:
    """The weights of a layer's norms, None where the layer has no such norm.

    `before`, `between` (D,): of the input of attention and of the MLP. `after_attention`, `after_mlp` (D,): of what these add to the
    residual stream. `queries`, `keys` (d,): of each head; or, if `whole`, (H d,) and (G d,), of all heads together.
    """

    before: Tensor | None = None
    between: Tensor | None = None
    after_attention: Tensor | None = None
    after_mlp: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    whole: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights that exist, by their names."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The norms of queries and keys as one. `weight` (H + G, d). `together`: H if the norms are over all heads together, 0 if over each."""

    weight: Tensor
    together: int
    eps: float

    @classmethod
    def of(cls, norms: Norms, heads: int, kv_heads: int, eps: float, scale: float = 1.0) -> HeadNorm | None:
        """Return the norm of a layer; None if it has none. `scale`: folded into the weight of the queries."""
        if norms.queries is None or norms.keys is None:
            return None
        if norms.whole:
            queries, keys = norms.queries.unflatten(0, (heads, -1)), norms.keys.unflatten(0, (kv_heads, -1))
        else:
            queries, keys = norms.queries.expand(heads, -1), norms.keys.expand(kv_heads, -1)
        return cls(torch.cat([queries * scale, keys]).detach(), heads if norms.whole else 0, eps)

    def __call__(self, heads: Tensor) -> None:
        """Normalise the first heads of `heads` (B, T, heads, d), in place."""
        count, d = self.weight.shape
        parts = (
            [heads[:, :, : self.together], heads[:, :, self.together : count]]
            if self.together
            else [heads[:, :, :count]]
        )
        normed = [
            F.rms_norm(
                part.flatten(2) if self.together else part, (part.shape[2] * d if self.together else d,), None, self.eps
            )
            for part in parts
        ]
        flat = torch.cat([part.unflatten(-1, (-1, d)) for part in normed], dim=2) if self.together else normed[0]
        torch.mul(flat, self.weight, out=heads[:, :, :count])


def rms_norm(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None) -> Tensor:
    """Return the RMS norm of `x` (…, D) times `weight` (D,), plus `plus` (…, D), in the type of `x`."""
    if _in_kernels(x):
        return thread_pool.norm(x, eps, weight, plus)
    y = F.rms_norm(x.to(torch.promote_types(x.dtype, weight.dtype)), x.shape[-1:], weight, eps).to(x.dtype)
    return y if plus is None else plus + y


def norm_and_rotate(heads: Tensor, norm: HeadNorm, cos: Tensor, sin: Tensor) -> None:
    """Apply the norm of queries and keys and their rotary positions to the first of `heads` (B, T, heads, d), in place. See `rotate`."""
    count = len(norm.weight)
    if _in_kernels(heads):
        thread_pool.rotate(heads, count, cos, sin, norm.weight, norm.together, norm.eps)
    else:
        norm(heads)
        rotate(heads, count, cos, sin)


def rotate(heads: Tensor, count: int, cos: Tensor, sin: Tensor) -> None:
    """Rotate the first `count` of `heads` (B, T, heads, d) to their positions, in place.

    `cos`, `sin` (1 or B, T, 1, r): the first half of the sines is negated. Only the first r numbers of a head are rotated.
    """
    if has_simd_kernels(heads):
        thread_pool.rotate(heads, count, cos, sin)
        return
    r = cos.shape[-1]
    if not r:
        return
    x = heads[:, :, :count, :r]
    turned = x.roll(r // 2, dims=-1)
    x.mul_(cos).addcmul_(turned, sin)


def _in_kernels(x: Tensor) -> bool:
    """Return whether compiled kernels compute norms of `x`: they read and write it once, PyTorch's operations several times."""
    return x.device.type == "cpu" and x.dtype == torch.float32
