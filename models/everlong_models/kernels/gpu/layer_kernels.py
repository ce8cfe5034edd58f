"""Triton kernels for the element-wise work between the matmuls of a layer: two to four passes over memory instead of PyTorch's eleven or more.

A GPU's element-wise work is bound by its memory. When reading a segment of 64 documents it took two thirds of an H200's time
(docs/research/lab-notes.md). An RMS norm without weights is one factor r per row, and (r h) Wᵀ = r (h Wᵀ), so the normed rows are never written:
the kernel that reads a product computes r from `h` and applies it.

    norm_rotate: q, k, v ← r q, r k, r v, then norms and rotary positions for q and k        norm_gate: act(r g) · r u
    norm_add:    h ← h + n(x), for a norm after attention or MLP                             r = (mean h² + ε)^(-1/2), 1 without a norm before

Triton is part of PyTorch's builds for GPUs. Sums are float32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.kernels.linear import Activation
from everlong_models.kernels.norms import HeadNorm, Norms, rms_norm

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
    weight: Tensor,
    norms: Norms,
    head_norm: HeadNorm | None,
    activation: Activation,
    *,
    heads: int,
    turning: int,
    head_dim: int,
    rotary: Iterable[int],
    width: int,
    inner: int | None,
    biases: tuple[bool, bool],
    gated: bool = True,
) -> bool:
    """Return whether these kernels support a model of such weights and sizes (see `compiles`).

    `norms`, `head_norm`: of a layer. `heads`: heads of queries, keys and values together; of the first `turning`, so many numbers have rotary
    positions: one of `rotary` in each layer. `biases`: whether the matrices of queries, keys and values have biases, and those of gate and up.
    `inner`: width of the MLPs, None without any; `gated`: whether they have a gate.
    """

    def run() -> None:
        h = weight.new_zeros(1, 1, width)
        several = weight.new_zeros(1, 1, heads, head_dim)
        for count in rotary:
            turns, bias = weight.new_zeros(1, 1, 1, count), several.flatten() if biases[0] else None
            norm_rotate(several, turning, None if norms.before is None else h, bias, turns, turns, 1.0, head_norm)
        if inner is not None:
            both = weight.new_zeros(1, 1, (1 + gated) * inner)
            between, bias = None if norms.between is None else h, both.flatten() if biases[1] else None
            norm_gate(both, between, bias, 1.0, activation, gated=gated)
        if norms.after_mlp is not None:
            norm_add(h, h.clone(), norms.after_mlp, 1.0)

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

    @triton.jit
    def _numbers(target, bias, at, inside, r, has_bias: tl.constexpr):
        """Return numbers of a product times r, plus their bias."""
        x = tl.load(target + at, mask=inside, other=0.0).to(tl.float32) * r
        if has_bias:
            x += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        return x

    @triton.jit
    def _head_factors(
        squares, eps, head, queries: tl.constexpr, turning: tl.constexpr, dim: tl.constexpr, whole: tl.constexpr
    ):
        """Return the factors (count,) of the norms of heads, from their sums of squares: over each head, or over all queries and all keys."""
        if whole:
            first = tl.sum(tl.where(head < queries, squares, 0.0))
            second = tl.sum(tl.where((head >= queries) & (head < turning), squares, 0.0))
            mean = tl.where(head < queries, first / (queries * dim), second / ((turning - queries) * dim))
        else:
            mean = squares / dim
        return 1.0 / tl.sqrt(mean + eps)

    @triton.jit(do_not_specialize=["positions", "cos_row"])
    def _norm_rotate(
        heads, h, bias, weight, cos, sin, eps, positions, cos_row,
        width: tl.constexpr, count: tl.constexpr, turning: tl.constexpr, queries: tl.constexpr, dim: tl.constexpr, half: tl.constexpr,
        has_norm: tl.constexpr, has_bias: tl.constexpr, has_head_norm: tl.constexpr, whole: tl.constexpr,
        width_block: tl.constexpr, count_block: tl.constexpr, half_block: tl.constexpr, rest_block: tl.constexpr,
    ):  # fmt: skip
        token = tl.program_id(0).to(tl.int64)
        r = 1.0
        if has_norm:
            r = _factor(h + token * width, width, eps, width_block)
        # A head's first 2 · half numbers are rotated in pairs, which one thread reads and writes; `rest` are those after them.
        row, target = tl.arange(0, count_block), heads + token * (count * dim)
        head, part, after = row[:, None], tl.arange(0, half_block)[None, :], tl.arange(0, rest_block)[None, :]
        inside, outside = (head < count) & (part < half), (head < count) & (after < dim - 2 * half)
        at, rest_at = head * dim + part, head * dim + 2 * half + after
        first, second = (
            _numbers(target, bias, at, inside, r, has_bias),
            _numbers(target, bias, at + half, inside, r, has_bias),
        )
        rest = _numbers(target, bias, rest_at, outside, r, has_bias)
        if has_head_norm:
            squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
            factor = _head_factors(squares, eps, row, queries, turning, dim, whole)[:, None]
            normed = head < turning
            w1 = tl.load(weight + at, mask=inside & normed, other=0.0).to(tl.float32)
            w2 = tl.load(weight + at + half, mask=inside & normed, other=0.0).to(tl.float32)
            w3 = tl.load(weight + rest_at, mask=outside & normed, other=0.0).to(tl.float32)
            first, second = tl.where(normed, first * factor * w1, first), tl.where(normed, second * factor * w2, second)
            rest = tl.where(normed, rest * factor * w3, rest)
        turns = (token // positions) * cos_row + (token % positions) * (2 * half) + part + 0 * head
        rotates = inside & (head < turning)
        c1 = tl.load(cos + turns, mask=rotates, other=1.0).to(tl.float32)
        c2 = tl.load(cos + turns + half, mask=rotates, other=1.0).to(tl.float32)
        s1 = tl.load(sin + turns, mask=rotates, other=0.0).to(tl.float32)
        s2 = tl.load(sin + turns + half, mask=rotates, other=0.0).to(tl.float32)
        kind = heads.dtype.element_ty
        tl.store(target + at, (first * c1 + second * s1).to(kind), mask=inside)
        tl.store(target + at + half, (second * c2 + first * s2).to(kind), mask=inside)
        tl.store(target + rest_at, rest.to(kind), mask=outside)

    @triton.jit
    def _norm_gate(
        both, h, bias, out, eps,
        width: tl.constexpr, inner: tl.constexpr, has_norm: tl.constexpr, has_bias: tl.constexpr, gelu: tl.constexpr,
        exact: tl.constexpr, gated: tl.constexpr, width_block: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        token = tl.program_id(0).to(tl.int64)
        r = 1.0
        if has_norm:
            r = _factor(h + token * width, width, eps, width_block)
        row = both + token * ((1 + gated) * inner)
        for start in range(0, inner, block):
            at = start + tl.arange(0, block)
            inside = at < inner
            gate = _numbers(row, bias, at, inside, r, has_bias)
            if exact:
                product = gate * (0.5 + 0.5 * tl.erf(gate * 0.7071067811865476))
            else:
                steep = gate
                if gelu:  # its form with tanh is x / (1 + exp(-2 z))
                    steep = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
                product = gate / (1.0 + tl.exp(-steep))
            if gated:
                product *= _numbers(row, bias, at + inner, inside, r, has_bias)
            tl.store(out + token * inner + at, product.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _norm_add(h, x, weight, eps, width: tl.constexpr, block: tl.constexpr):
        token = tl.program_id(0).to(tl.int64)
        r = _factor(x + token * width, width, eps, block)
        for start in range(0, width, block):
            at = start + tl.arange(0, block)
            inside = at < width
            added = tl.load(x + token * width + at, mask=inside, other=0.0).to(tl.float32) * r
            added *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
            place = h + token * width + at
            tl.store(
                place,
                (tl.load(place, mask=inside, other=0.0).to(tl.float32) + added).to(h.dtype.element_ty),
                mask=inside,
            )


_WIDEST = 2048
"""Most values of a row that a program loads at once."""
_WIDE = 4096
"""Pairs of rotated numbers of a program up to which it runs with four warps. A guess: no model with more was measured."""


def norm_rotate(
    heads: Tensor,
    count: int,
    h: Tensor | None,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    norm: HeadNorm | None = None,
) -> Tensor:
    """Apply the norm of `h` (B, T, D), the bias, the norm of queries and keys, and rotary positions to `heads` (B, T, heads, d), in place.

    `heads` is the product of `h`, not normed, with a weight; without a norm before it `h` is None. The first `count` heads have rotary
    positions. `bias` (heads·d,) or None. `cos`, `sin` (1 or B, T, 1, r): see `llama._rotation`. All are contiguous. Returns `heads`.
    """
    B, T, head_count, d = heads.shape
    r = cos.shape[-1]
    assert all(tensor.is_contiguous() for tensor in (heads, cos, sin, *(() if h is None else (h,))))
    queries = count if norm is None else norm.together
    head_block, half_block = triton.next_power_of_2(head_count), triton.next_power_of_2(max(1, r // 2))
    with torch.cuda.device_of(heads):  # Triton uses the current device, not that of the tensors
        _norm_rotate[(B * T,)](
            heads, heads if h is None else h, heads if bias is None else bias, heads if norm is None else norm.weight,
            cos if r else heads, sin if r else heads, eps, T, 0 if len(cos) == 1 else T * r,
            1 if h is None else h.shape[-1], head_count, count, queries, d, r // 2,
            h is not None, bias is not None, norm is not None, norm is not None and norm.together > 0,
            _block(1 if h is None else h.shape[-1]), head_block, half_block, triton.next_power_of_2(max(1, d - r)),
            num_warps=4 if head_block * half_block <= _WIDE else 8,
        )  # fmt: skip
    return heads


def norm_gate(
    both: Tensor, h: Tensor | None, bias: Tensor | None, eps: float, activation: Activation, *, gated: bool = True
) -> Tensor:
    """Return act(g) · u (B, T, F), with the norm of `h` (B, T, D), or None, applied to both. If not `gated`, return act(u).

    `both` (B, T, 2 F): g, then u, the product of `h`, not normed, with their weights; (B, T, F) if not `gated`. `bias` (2 F,) or (F,), or None. All
    are contiguous.
    """
    B, T, inner = *both.shape[:2], both.shape[2] // (1 + gated)
    assert all(tensor.is_contiguous() for tensor in (both, *(() if h is None else (h,))))
    out, width = both.new_empty(B, T, inner), 1 if h is None else h.shape[-1]
    with torch.cuda.device_of(both):
        _norm_gate[(B * T,)](
            both, both if h is None else h, both if bias is None else bias, out, eps,
            width, inner, h is not None, bias is not None, activation == Activation.GELU,
            activation == Activation.EXACT_GELU, gated, _block(width), _block(inner),
        )  # fmt: skip
    return out


def norm_add(h: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """Add the norm of `x` (B, T, D) with this `weight` (D,) to `h` (B, T, D), in place. All are contiguous."""
    B, T, width = x.shape
    assert all(tensor.is_contiguous() for tensor in (h, x, weight))
    with torch.cuda.device_of(h):
        _norm_add[(B * T,)](h, x, weight, eps, width, _block(width))


def _block(numbers: int) -> int:
    size: int = triton.next_power_of_2(numbers)
    return min(size, _WIDEST)


Matrix = tuple[Tensor, Tensor | None]
"""A weight (N, K), and a bias (N,) or None."""


@dataclass(frozen=True, slots=True)
class FusedMLP:
    """The matrices of an MLP. `both`: gate, then up; or only up, if not `gated`. `both` includes the weight of the norm before it."""

    both: Matrix
    down: Matrix
    activation: Activation
    gated: bool = True


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """A layer like `llama.Layer`, for a GPU. `mlp`: for a mixture of experts, a function of normed rows (B, n, D).

    `qkv` includes the attention's scale and the weight of the norm before it; `norms` says which norms there are.
    """

    qkv: Matrix
    o: Matrix
    mlp: FusedMLP | Callable[[Tensor], Tensor]
    eps: float
    norms: Norms
    head_norm: HeadNorm | None
    parallel: bool = False

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """See `Layer.heads`."""
        (weight, bias), before = self.qkv, None if self.norms.before is None else h
        product = F.linear(h, weight).unflatten(-1, (-1, head_dim))
        return norm_rotate(product, turning, before, bias, cos, sin, self.eps, self.head_norm)

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """See `Layer.after`. Overwrites `h`: without a norm after them, the matmuls add to it directly."""
        if not self.parallel:
            self._add(h, mixed, self.o, self.norms.after_attention)
        x, down = self._inner(h)
        if self.parallel:
            self._add(h, mixed, self.o, self.norms.after_attention)
        self._add(h, x, down, self.norms.after_mlp)
        return h

    def _inner(self, h: Tensor) -> tuple[Tensor, Matrix | None]:
        """Return the input of the MLP's last matrix, and this matrix; of a mixture of experts, its result, and None."""
        between, mlp = self.norms.between, self.mlp
        if not isinstance(mlp, FusedMLP):
            return mlp(h if between is None else rms_norm(h, between, self.eps)), None
        (weight, bias), normed = mlp.both, None if between is None else h
        return norm_gate(F.linear(h, weight), normed, bias, self.eps, mlp.activation, gated=mlp.gated), mlp.down

    def _add(self, h: Tensor, x: Tensor, matrix: Matrix | None, norm: Tensor | None) -> None:
        if matrix is None or norm is not None:
            y = x if matrix is None else F.linear(x, *matrix)
            if norm is None:
                h += y
            else:
                norm_add(h, y, norm, self.eps)
            return
        weight, bias = matrix
        h.view(-1, h.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), weight.t())
        if bias is not None:
            h += bias
