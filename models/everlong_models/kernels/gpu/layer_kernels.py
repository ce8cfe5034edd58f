"""Triton kernels for the element-wise work between the matmuls of a Llama layer: two passes over memory instead of PyTorch's eleven.

A GPU's element-wise work is bound by its memory. When reading a segment of 64 documents it took two thirds of an H200's time
(docs/research/lab-notes.md). An RMS norm without weights is one factor r per row, and (r h) Wᵀ = r (h Wᵀ), so the normed rows are never written:
the kernel that reads a product computes r from `h` and applies it.

    norm_rotate: q, k, v ← r q, r k, r v, then rotary positions for q and k        norm_gate: silu(r g) · r u        r = (mean h² + ε)^(-1/2)

Triton is part of PyTorch's builds for GPUs. Sums are float32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

log = logging.getLogger(__name__)

_KINDS = (torch.bfloat16, torch.float32)
"""Supported types. Not float16: a product of rows that were not normed can overflow it."""

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's builds for CPUs do not include Triton
    triton = None


def compiles(weight: Tensor, run: Callable[[], object]) -> bool:
    """Return whether Triton can compile for the type and the GPU of `weight`.

    Calls `run`, so that the kernels it launches are compiled now: no request waits for compilation, or fails because of it.
    """
    if weight.device.type != "cuda" or not torch.cuda.is_available() or weight.dtype not in _KINDS:
        return False
    try:
        if triton is None:
            raise ImportError("Triton is not installed")
        run()
    except Exception as error:
        # No C compiler, a read-only folder, an unknown GPU: Triton raises exceptions of any type.
        log.warning("Triton cannot compile kernels, so this GPU runs slower than it could: %s", error)
        return False
    return True


def available(
    weight: Tensor, *, heads: int, turning: int, head_dim: int, width: int, inner: int, biases: tuple[bool, bool]
) -> bool:
    """Return whether these kernels support a model of such weights and sizes (see `compiles`).

    `heads`: heads of queries, keys and values together; the first `turning` have rotary positions. `biases`: whether the matrices of
    queries, keys and values have biases, and those of gate and up.
    """

    def run() -> None:
        h, turns = weight.new_zeros(1, 1, width), weight.new_zeros(1, 1, 1, head_dim)
        several, both = weight.new_zeros(1, 1, heads, head_dim), weight.new_zeros(1, 1, 2 * inner)
        norm_rotate(several, turning, h, several.flatten() if biases[0] else None, turns, turns, 1.0)
        norm_gate(both, h, both.flatten() if biases[1] else None, 1.0)

    return compiles(weight, run)


if triton is not None:

    @triton.jit
    def _factor(h, width: tl.constexpr, eps, block: tl.constexpr):
        """Return the factor r of the row at `h`."""
        total = tl.zeros([block], tl.float32)
        for start in range(0, width, block):
            at = start + tl.arange(0, block)
            x = tl.load(h + at, mask=at < width, other=0.0).to(tl.float32)
            total += x * x
        return 1.0 / tl.sqrt(tl.sum(total) / width + eps)

    @triton.jit(do_not_specialize=["positions", "cos_row"])
    def _norm_rotate(
        heads, h, bias, cos, sin, eps, positions, cos_row,
        width: tl.constexpr, count: tl.constexpr, turning: tl.constexpr, half: tl.constexpr,
        has_bias: tl.constexpr, width_block: tl.constexpr, count_block: tl.constexpr, half_block: tl.constexpr,
    ):  # fmt: skip
        token = tl.program_id(0).to(tl.int64)
        r = _factor(h + token * width, width, eps, width_block)
        head, part = tl.arange(0, count_block)[:, None], tl.arange(0, half_block)[None, :]
        inside = (head < count) & (part < half)
        at = head * (2 * half) + part
        target = heads + token * (count * 2 * half) + at
        first = tl.load(target, mask=inside, other=0.0).to(tl.float32) * r
        second = tl.load(target + half, mask=inside, other=0.0).to(tl.float32) * r
        if has_bias:
            first += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
            second += tl.load(bias + at + half, mask=inside, other=0.0).to(tl.float32)
        turns = (token // positions) * cos_row + (token % positions) * (2 * half) + part + 0 * head
        rotates = inside & (head < turning)
        c1 = tl.load(cos + turns, mask=rotates, other=1.0).to(tl.float32)
        c2 = tl.load(cos + turns + half, mask=rotates, other=1.0).to(tl.float32)
        s1 = tl.load(sin + turns, mask=rotates, other=0.0).to(tl.float32)
        s2 = tl.load(sin + turns + half, mask=rotates, other=0.0).to(tl.float32)
        tl.store(target, (first * c1 + second * s1).to(heads.dtype.element_ty), mask=inside)
        tl.store(target + half, (second * c2 + first * s2).to(heads.dtype.element_ty), mask=inside)

    @triton.jit
    def _norm_gate(
        both, h, bias, out, eps,
        width: tl.constexpr, inner: tl.constexpr, has_bias: tl.constexpr, width_block: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        token = tl.program_id(0).to(tl.int64)
        r = _factor(h + token * width, width, eps, width_block)
        for start in range(0, inner, block):
            at = start + tl.arange(0, block)
            inside = at < inner
            gate = tl.load(both + token * (2 * inner) + at, mask=inside, other=0.0).to(tl.float32) * r
            up = tl.load(both + token * (2 * inner) + inner + at, mask=inside, other=0.0).to(tl.float32) * r
            if has_bias:
                gate += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
                up += tl.load(bias + inner + at, mask=inside, other=0.0).to(tl.float32)
            product = gate / (1.0 + tl.exp(-gate)) * up
            tl.store(out + token * inner + at, product.to(out.dtype.element_ty), mask=inside)


_WIDEST = 2048
"""Most values of a row that a program loads at once."""


def norm_rotate(
    heads: Tensor, count: int, h: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, eps: float
) -> Tensor:
    """Apply the norm of `h` (B, T, D), the bias and rotary positions to `heads` (B, T, heads, d), in place.

    `heads` is the product of `h`, not normed, with a weight. The first `count` heads have rotary positions. `bias` (heads·d,) or None.
    `cos`, `sin` (1 or B, T, 1, d): see `llama._rotation`. All are contiguous. Returns `heads`.
    """
    B, T, head_count, d = heads.shape
    assert all(tensor.is_contiguous() for tensor in (heads, h, cos, sin))
    with torch.cuda.device_of(h):  # Triton uses the current device, not that of the tensors
        _norm_rotate[(B * T,)](
            heads, h, heads if bias is None else bias, cos, sin, eps, T, 0 if len(cos) == 1 else T * d,
            h.shape[-1], head_count, count, d // 2,
            bias is not None, _block(h.shape[-1]), triton.next_power_of_2(head_count), triton.next_power_of_2(d // 2),
        )  # fmt: skip
    return heads


def norm_gate(both: Tensor, h: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return silu(g) · u (B, T, F), with the norm of `h` (B, T, D) applied to both.

    `both` (B, T, 2 F): g, then u, the product of `h`, not normed, with their weights. `bias` (2 F,) or None. All are contiguous.
    """
    B, T, inner = *both.shape[:2], both.shape[2] // 2
    assert all(tensor.is_contiguous() for tensor in (both, h))
    out = both.new_empty(B, T, inner)
    with torch.cuda.device_of(h):
        _norm_gate[(B * T,)](
            both, h, both if bias is None else bias, out, eps,
            h.shape[-1], inner, bias is not None, _block(h.shape[-1]), _block(inner),
        )  # fmt: skip
    return out


def _block(numbers: int) -> int:
    size: int = triton.next_power_of_2(numbers)
    return min(size, _WIDEST)


Matrix = tuple[Tensor, Tensor | None]
"""A weight (N, K), and a bias (N,) or None."""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """A layer like `llama.Layer`, for a GPU. The weights include the norms' weights and the attention's scale. `both`: gate, then up."""

    qkv: Matrix
    o: Matrix
    both: Matrix
    down: Matrix
    eps: float

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """See `Layer.heads`."""
        weight, bias = self.qkv
        return norm_rotate(F.linear(h, weight).unflatten(-1, (-1, head_dim)), turning, h, bias, cos, sin, self.eps)

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """See `Layer.after`. Overwrites `h`: the matmuls add to it directly, so their products are not written separately."""
        _add(h, mixed, self.o)
        weight, bias = self.both
        _add(h, norm_gate(F.linear(h, weight), h, bias, self.eps), self.down)
        return h


def _add(h: Tensor, x: Tensor, matrix: Matrix) -> None:
    weight, bias = matrix
    h.view(-1, h.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), weight.t())
    if bias is not None:
        h += bias
