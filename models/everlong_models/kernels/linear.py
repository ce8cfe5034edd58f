"""`Linear`: a matrix product with a fixed weight, laid out for the fastest matmul of the machine.

    y = act(x Wᵀ + b) · times + plus

- On a CPU with AVX2, in float32, with N a multiple of `PANEL`: the kernels of `kernels.cpu.prefill`, a fifth faster than PyTorch
  (docs/research/lab-notes.md).
- On other CPUs, and for other N: oneDNN with the weight in its own blocked layout. With AVX-512 on AMD processors it is more than twice
  as fast as MKL (`F.linear`), and never slower for few rows.
- In bfloat16, if the processor has instructions for it: oneDNN, twice as fast again. Sums are float32.
- Everywhere else: `F.linear` and separate operations.

The first two apply `activation`, `times` or `plus` while the result is in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.blocks import BLOCK
from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.prefill import Epilogue
from everlong_models.kernels.cpu.simd import PANEL

# oneDNN chooses the layout for this number of rows. Other numbers give the same result, and few rows are fast, too.
ROWS = 512
_AVX2, _AVX512 = (torch.backends.cpu.get_cpu_capability() == name for name in ("AVX2", "AVX512"))


class Activation(Enum):
    """The activation of an MLP's gate, or of an MLP without a gate. GELU: its form with tanh. EXACT_GELU: only without a gate."""

    SILU = "silu"
    GELU = "gelu_pytorch_tanh"
    EXACT_GELU = "gelu"


_ONEDNN: dict[Activation, tuple[str, list[float], str]] = {
    Activation.SILU: ("swish", [], ""),
    Activation.GELU: ("gelu", [], "tanh"),
    Activation.EXACT_GELU: ("gelu", [], "none"),
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Return the activation of `x` (…, N), which is overwritten."""
    if x.device.type != "cpu":
        return _activated(x, activation)
    # The last bits depend on how PyTorch divides a tensor among threads, and so on its number of rows: see `blocks`.
    for rows in x.view(-1, x.shape[-1]).split(1 if has_simd_kernels(x) else BLOCK):
        _activated(rows, activation)
    return x


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation == Activation.SILU:
        return F.silu(x, inplace=True)
    return torch.ops.aten.gelu_(x, approximate="tanh" if activation == Activation.GELU else "none")


def has_amx() -> bool:
    """Return whether this processor has AMX instructions for bfloat16."""
    return bool(_capabilities().get("amx_bf16"))


def has_bfloat16() -> bool:
    """Return whether this processor has instructions for bfloat16 products. Without them they are many times slower than float32."""
    return bool(_capabilities().get("avx512_bf16")) or has_amx()


def _capabilities() -> Mapping[str, Any]:
    return (
        torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    )  # missing in older versions of PyTorch


class Linear:
    """A fixed `weight` (N, K) with a `bias` (N,) or None.

    `bfloat16`: keep the weight and compute the product in bfloat16, before `plus` is added. Has no effect if the processor has no
    instructions for it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, bfloat16: bool = False) -> None:
        self.in_panels = has_simd_kernels(weight) and weight.shape[0] % PANEL == 0
        self.packed = not self.in_panels and has_onednn(weight)
        self.dtype = torch.bfloat16 if bfloat16 and self.packed and has_bfloat16() else weight.dtype
        self.bias = None if bias is None else bias.detach().to(self.dtype)
        self.weight: Tensor = weight.detach().to(self.dtype)
        if self.in_panels:
            self.weight = thread_pool.pack_panels(self.weight)
        elif self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), ROWS)

    def __call__(
        self,
        x: Tensor,
        *,
        activation: Activation | None = None,
        times: Tensor | None = None,
        plus: Tensor | None = None,
    ) -> Tensor:
        """Return y (…, N) for `x` (…, K), with at most one of `activation`, `times` and `plus`.

        `times` and `plus` have the result's shape. The result has the type of `plus`, or without it that of `x`.
        """
        if x.dtype != self.dtype:
            y = self(x.to(self.dtype), activation=activation, times=None if times is None else times.to(self.dtype))
            return y.to(x.dtype) if plus is None else plus + y
        if self.in_panels:
            then = Epilogue.NONE if activation is None else Epilogue[activation.name]
            epilogue = Epilogue.PLUS if plus is not None else Epilogue.TIMES if times is not None else then
            return thread_pool.linear(x, self.weight, self.bias, epilogue, times if plus is None else plus)
        if self.packed:
            op = torch.ops.mkldnn._linear_pointwise
            if times is not None:
                return op.binary(x, times, self.weight, self.bias, "mul")
            if plus is not None:
                if plus.dtype != self.dtype:
                    return plus + op(x, self.weight, self.bias, "none", [], "")
                return op.binary(x, plus, self.weight, self.bias, "add")
            if activation is not None and _AVX512:  # without AVX-512, oneDNN's swish is slow
                return op(x, self.weight, self.bias, *_ONEDNN[activation])
            y = op(x, self.weight, self.bias, "none", [], "")
            return y if activation is None else activate(y, activation)
        y = F.linear(x, self.weight, self.bias)
        if activation is not None:
            return activate(y, activation)
        if times is not None:
            return y * times
        return y if plus is None else y + plus


def has_simd_kernels(x: Tensor) -> bool:
    """Return whether `thread_pool.linear` supports `x` and is fast: it needs AVX2, the width of its vectors."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and _AVX2


def has_onednn(x: Tensor) -> bool:
    """Return whether this build of PyTorch can multiply `x` with oneDNN's linear operation."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Return x Wᵀ (n, N) for `x` (n, K) and a `weight` (N, K) that is used too rarely to be packed. Requires `has_onednn`.

    The weight must be contiguous, or the transpose of a contiguous tensor: for other strides oneDNN falls back to a reference
    implementation that is hundreds of times slower.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "") if _AVX512 else torch.mm(x, weight.t())
