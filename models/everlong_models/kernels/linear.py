"""`Linear`: a matrix whose weight will not change again, laid out for the fastest matmul that the machine has.

    y = act(x Wᵀ + b) · times + plus

On a CPU with AVX2, in float32, that is `dense`, a fifth faster than what PyTorch has (docs/lab-notes.md), where N is a multiple of
`PANEL`. On other CPUs, and for other N, it is oneDNN with the weight in its own blocked layout: with AVX-512 on AMD's processors
more than twice as fast as the MKL behind `F.linear`, and never slower for few rows. Both apply `silu`, `times` or `plus` while the result is still in the cache. In bfloat16, where the
processor has instructions for it, oneDNN is as fast again; sums are float32. Everywhere else it is `F.linear` and the same formula.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.prefill import Epilogue
from everlong_models.kernels.cpu.simd import PANEL

# The layout is chosen for so many rows at once; any other number gives the same result, and few rows are fast too.
ROWS = 512
_AVX2, _AVX512 = (torch.backends.cpu.get_cpu_capability() == name for name in ("AVX2", "AVX512"))


def has_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16; without them they are many times slower than float32's."""
    can = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}  # of newer versions
    return bool(can.get("avx512_bf16") or can.get("amx_bf16"))


class Linear:
    """A fixed matrix: `weight` (N, K), `bias` (N,) or None. `bfloat16`: where the processor has instructions for it, weight
    and product have so many bits, before `plus` comes to it; elsewhere it has no effect."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, bfloat16: bool = False) -> None:
        self.dense = has_dense(weight) and weight.shape[0] % PANEL == 0
        self.packed = not self.dense and has_onednn(weight)
        self.dtype = torch.bfloat16 if bfloat16 and self.packed and has_bfloat16() else weight.dtype
        self.bias = None if bias is None else bias.detach().to(self.dtype)
        self.weight: Tensor = weight.detach().to(self.dtype)
        if self.dense:
            self.weight = thread_pool.pack_panels(self.weight)
        elif self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), ROWS)

    def __call__(
        self, x: Tensor, *, silu: bool = False, times: Tensor | None = None, plus: Tensor | None = None
    ) -> Tensor:
        """(…, N) of `x` (…, K); at most one of `silu`, `times` and `plus`, the latter of the result's shape. The result's type is
        that of `plus`, without it that of `x`."""
        if x.dtype != self.dtype:
            y = self(x.to(self.dtype), silu=silu, times=None if times is None else times.to(self.dtype))
            return y.to(x.dtype) if plus is None else plus + y
        if self.dense:
            then = (
                Epilogue.SILU
                if silu
                else Epilogue.PLUS
                if plus is not None
                else Epilogue.NOTHING
                if times is None
                else Epilogue.TIMES
            )
            return thread_pool.linear(x, self.weight, self.bias, then, times if plus is None else plus)
        if self.packed:
            op = torch.ops.mkldnn._linear_pointwise
            if times is not None:
                return op.binary(x, times, self.weight, self.bias, "mul")
            if plus is not None:
                if plus.dtype != self.dtype:
                    return plus + op(x, self.weight, self.bias, "none", [], "")
                return op.binary(x, plus, self.weight, self.bias, "add")
            if silu and _AVX512:  # without it oneDNN is slow at it
                return op(x, self.weight, self.bias, "swish", [], "")
            y = op(x, self.weight, self.bias, "none", [], "")
            return F.silu(y, inplace=True) if silu else y
        y = F.linear(x, self.weight, self.bias)
        if silu:
            return F.silu(y)
        if times is not None:
            return y * times
        return y if plus is None else y + plus


def has_dense(x: Tensor) -> bool:
    """Whether `thread_pool` has products of `x`, and quick ones: their vectors are as wide as AVX2's."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and _AVX2


def has_onednn(x: Tensor) -> bool:
    """Whether this build of PyTorch can multiply `x` by oneDNN's linear operation."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ, (n, N), of `x` (n, K) and a `weight` (N, K) that is not worth packing; only where `has_onednn`.

    The weight must be contiguous or the transpose of something contiguous: for other strides oneDNN falls back to a
    reference implementation that is hundreds of times slower.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "") if _AVX512 else torch.mm(x, weight.t())
