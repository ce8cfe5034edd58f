"""Runs the numba kernels of this folder on PyTorch's own threads, without Python between them.

numba compiles a kernel at its first use, which takes seconds, and stores the machine code for later processes: next to this package,
or in the user's cache (`NUMBA_CACHE_DIR`). If it can write to neither, every process compiles again.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import torch
from numba import cfunc
from torch import Tensor

from everlong_models.kernels.cpu import (
    decode_step,
    dequantise,
    experts,
    job,
    matrix_product,
    prefill,
    primitives,
    sampling_kernel,
    simd,
)
from everlong_models.kernels.cpu import quantise as quantise_kernel
from everlong_models.kernels.cpu.decode import attention, ends
from everlong_models.kernels.cpu.dequantise import DequantiseJob
from everlong_models.kernels.cpu.job import FIELDS, LINE, SIGNATURE, DecodeJob, Matrix
from everlong_models.kernels.cpu.prefill import Epilogue, PrefillJob
from everlong_models.kernels.cpu.products import float32, int8, int16
from everlong_models.kernels.cpu.products.int8 import PANELS, TILE, Int8Job
from everlong_models.kernels.cpu.quantise import QuantiseJob
from everlong_models.kernels.cpu.sampling_kernel import COUNTS, SampleJob
from everlong_models.kernels.cpu.simd import GROUP, LANES, PANEL
from everlong_models.kernels.yield_point import yield_point

log = logging.getLogger(__name__)

_openmp = ctypes.CDLL(None)
_POOLED = hasattr(_openmp, "GOMP_parallel")
"""Whether PyTorch's OpenMP library has GNU's entry points. Otherwise one thread computes."""


_SOURCES = (
    attention, decode_step, dequantise, ends, experts, float32, int8, int16, job, matrix_product, prefill, primitives, quantise_kernel, sampling_kernel, simd,
)  # fmt: skip
"""All modules with compiled code."""


@lru_cache
def compiled(function: Callable[..., None]) -> Any:
    """Return a kernel of one of the modules of this folder as machine code."""
    make = partial(cfunc, SIGNATURE, error_model="numpy")
    # numba finds stored code by the function's name and file. The name includes a hash, because code of another version would read a
    # job's table wrongly, and code for another processor may use instructions that this one lacks.
    source = "".join(map(inspect.getsource, _SOURCES))
    key = f"{source}{numba.__version__}{llvm.get_host_cpu_name()}{llvm.get_host_cpu_features().flatten()}"
    function.__qualname__ = f"{function.__name__}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    try:
        return make(cache=True)(function)
    except Exception as error:  # no writable folder, or whatever pickle raises for a damaged file
        log.info("cannot store compiled kernels, so every process compiles them: %s", error)
        return make()(function)


def prepare(*functions: Callable[..., None]) -> None:
    """Compile these kernels now, so that their first use does not wait."""
    for function in functions:
        compiled(function)


def _run(
    function: Callable[..., None],
    phases: int,
    scratch_size: int,
    fields: Mapping[DecodeJob, int]
    | Mapping[PrefillJob, int]
    | Mapping[QuantiseJob, int]
    | Mapping[DequantiseJob, int]
    | Mapping[Int8Job, int]
    | Mapping[SampleJob, int],
) -> None:
    """Run a kernel on all threads. `scratch_size`: scratch memory of each thread, in float32 values."""
    threads = torch.get_num_threads() if _POOLED else 1
    scratch_size += -scratch_size % (LINE // 4)  # tensors start at a cache line; so does each thread's scratch memory
    scratch = torch.empty(threads, scratch_size, dtype=torch.float32, device="cpu")
    counters = np.zeros((1 + 2 * phases) * LINE // 8, np.int64)
    table = np.zeros(FIELDS, np.int64)
    for name, value in fields.items():
        table[name] = value
    table[DecodeJob.SCRATCH], table[DecodeJob.SCRATCH_SIZE], table[DecodeJob.COUNTERS] = (
        scratch.data_ptr(),
        scratch_size,
        counters.ctypes.data,
    )
    code = compiled(function)
    if _POOLED:
        _openmp.GOMP_parallel(ctypes.c_void_p(code.address), ctypes.c_void_p(table.ctypes.data), threads, 0)
    else:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address)(table.ctypes.data)


def multiply(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return x Wᵀ (B, N) for `x` (B, K), float32, and a `Matrix`. Raises `ValueError` for another shape or type."""
    if x.dtype != np.float32 or x.shape[1:] != (matrix[Matrix.K],):
        raise ValueError(f"x must be float32 of shape (rows, {matrix[Matrix.K]}), got {x.dtype} of shape {x.shape}")
    x = np.ascontiguousarray(x)
    y = np.empty((len(x), int(matrix[Matrix.N])), np.float32)
    scratch_size = len(x) * int(matrix[Matrix.K] // 2 + 2 * (matrix[Matrix.K] // GROUP) + matrix[Matrix.RANK])
    fields = {
        DecodeJob.ROWS: len(x),
        DecodeJob.TABLE: matrix.ctypes.data,
        DecodeJob.X: x.ctypes.data,
        DecodeJob.Y: y.ctypes.data,
    }
    _run(matrix_product.multiply, 1, scratch_size, fields)
    return y


def multiply_int8(matrix: np.ndarray, x: Tensor) -> Tensor:
    """Return x Wᵀ (B, N) for `x` (B, K), float32 on the CPU, and a `Matrix`, with x rounded to 8 bits in groups of `GROUP`.

    `int8.has_int8` must hold. Raises `ValueError` for another shape or type.
    """
    N, K, signed = int(matrix[Matrix.N]), int(matrix[Matrix.K]), bool(matrix[Matrix.SIGNED])
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.shape[1:] != (K,):
        raise ValueError(f"x must be float32 of shape (rows, {K}) on the CPU, got {x.dtype} of shape {tuple(x.shape)}")
    x, rows, columns = x.contiguous(), len(x) + -len(x) % TILE, N + -N % (PANELS * PANEL)
    y = torch.empty(rows, columns, dtype=torch.float32, device="cpu")
    quantised = torch.empty(rows, K, dtype=torch.int8, device="cpu")
    sums = torch.empty(rows, K // int8.section_size(signed=signed), 2, dtype=torch.float32, device="cpu")
    same = (Matrix.N, Matrix.K, Matrix.BITS, Matrix.SIGNED, Matrix.CODES, Matrix.SCALES)
    fields = {Int8Job[field.name]: int(matrix[field]) for field in same}
    fields |= {Int8Job.ROWS: len(x), Int8Job.X: x.data_ptr(), Int8Job.Y: y.data_ptr()}
    fields |= {Int8Job.QUANTISED: quantised.data_ptr(), Int8Job.SUMS: sums.data_ptr()}
    _run(int8.multiply_int8, 2, int8.scratch_size(K, signed=signed), fields)
    return y[: len(x), :N]


def mixture(table: np.ndarray, x: Tensor, *, gelu: bool) -> Tensor:
    """Return a mixture of experts (B, D) for `x` (B, D), float32 on the CPU, and a table of `Experts`. Raises `ValueError` for another type.

    `gelu`: the gate is GELU (tanh), otherwise SiLU.
    """
    B, D = x.shape
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(f"x must be float32 on the CPU, got {x.dtype} on {x.device}")
    x, y = x.contiguous(), torch.empty(B, D, dtype=torch.float32, device="cpu")
    memory = shared_memory(table, B, D)
    fields = {
        DecodeJob.ROWS: B, DecodeJob.WIDTH: D, DecodeJob.TABLE: table.ctypes.data, DecodeJob.X: x.data_ptr(), DecodeJob.OUT: y.data_ptr(),
        DecodeJob.GELU: gelu, DecodeJob.PAIRS: memory.data_ptr(),
    }  # fmt: skip
    _run(experts.mixture, experts.PHASES, D, fields)
    return y


def shared_memory(table: np.ndarray, rows: int, width: int) -> Tensor:
    """Return the memory that a mixture of experts needs for so many rows."""
    return torch.empty(experts.memory_size(table, rows, width), dtype=torch.float32, device="cpu")


def step(kernel: decode_step.Kernel, fields: Mapping[DecodeJob, int]) -> None:
    """Compute all layers and the last norm for T positions of each row (`DecodeJob.STEPS`). `fields`: all of `DecodeJob` but the fields that this function adds."""
    rows, head_dim = fields[DecodeJob.ROWS], fields[DecodeJob.HEAD_DIM]
    wide = max(fields[DecodeJob.WIDTH], fields[DecodeJob.MLP_WIDTH], fields[DecodeJob.HEADS] * head_dim)
    products = rows * (wide + wide // 2 + 2 * (wide // GROUP) + 2 * fields[DecodeJob.RANK])
    # With no more groups than threads, each head is a part of its own.
    many = (
        fields[DecodeJob.HEADS] // fields[DecodeJob.KV_HEADS]
        if rows * fields[DecodeJob.KV_HEADS] > torch.get_num_threads()
        else 1
    )
    heads = (many + 1) * head_dim + many * (fields[DecodeJob.CONTEXT] + LANES)
    more = {DecodeJob.WIDEST: wide, DecodeJob.HEADS_PER_PART: many}
    yield_point()
    _run(kernel.run, kernel.phases * fields[DecodeJob.LAYERS] + 2, int(max(products, heads)), {**fields, **more})


def quantise(weight: Tensor, bits: int, tolerance: float | None = None) -> tuple[Tensor, Tensor, bool]:
    """Quantise a matrix (N, K), float32 on the CPU, with N a multiple of `PANEL` and K of `GROUP`.

    Return codes and scales, laid out as in `QuantiseJob`, and whether all weights are within `tolerance` steps of their grid. The first
    weight that is not ends the work, so codes and scales are then incomplete. Raises `ValueError` for another type or shape.
    """
    N, K = weight.shape
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or N % PANEL or K % GROUP:
        raise ValueError(
            f"weight must be float32 on the CPU, its rows a multiple of {PANEL} and its columns of {GROUP}, "
            f"got {weight.dtype} of shape ({N}, {K}) on {weight.device}"
        )
    weight, (most, off) = weight.contiguous(), (np.array([tolerance or 0], np.float32), np.zeros(1, np.int64))
    panel_halves = () if bits == 4 else (2,)
    codes = torch.empty(N // PANEL, K // 2, *panel_halves, LANES, 2, dtype=torch.uint8, device="cpu")
    scales = torch.empty(N // PANEL, K // GROUP, 2, PANEL, dtype=torch.float16, device="cpu")
    fields = {
        QuantiseJob.N: N, QuantiseJob.WEIGHT: weight.data_ptr(), QuantiseJob.K: K, QuantiseJob.BITS: bits, QuantiseJob.CODES: codes.data_ptr(),
        QuantiseJob.SCALES: scales.data_ptr(), QuantiseJob.TOLERANCE: most.ctypes.data,
        QuantiseJob.OFF_GRID: 0 if tolerance is None else off.ctypes.data,
    }  # fmt: skip
    _run(quantise_kernel.quantise_groups, 1, 2 * PANEL + PANEL * GROUP // 4, fields)
    return codes, scales, not off[0]


def write_bfloat16(matrix: np.ndarray, to: Tensor) -> None:
    """Write a `Matrix` (N, K) as its transpose (K, N) to `to`. Raises `ValueError` for another shape, type or layout."""
    N, K = int(matrix[Matrix.N]), int(matrix[Matrix.K])
    if to.shape != (K, N) or to.dtype != torch.bfloat16 or not to.is_contiguous() or to.device.type != "cpu":
        raise ValueError(
            f"the result must be contiguous, bfloat16 of shape ({K}, {N}) on the CPU, got {to.dtype} of shape {tuple(to.shape)}"
        )
    same = (Matrix.N, Matrix.K, Matrix.BITS, Matrix.SIGNED, Matrix.CODES, Matrix.SCALES)
    fields = {DequantiseJob[field.name]: int(matrix[field]) for field in same}
    _run(dequantise.dequantise, 1, 0, {**fields, DequantiseJob.TO: to.data_ptr()})


def pack_panels(weight: Tensor) -> Tensor:
    """Lay out a matrix (N, K), N a multiple of `PANEL`, for `linear`: (N / PANEL, K, PANEL)."""
    return weight.detach().unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, epilogue: Epilogue, other: Tensor | None) -> Tensor:
    """Return epilogue(x Wᵀ + b) (…, N) for `x` (…, K) and a weight of `pack_panels`, all float32 on the CPU.

    `other` (…, N): the epilogue's second operand. Raises `ValueError` for another type or shape.
    """
    panels, K, _ = weight.shape
    shape = (*x.shape[:-1], panels * PANEL)
    for name, tensor, expected in (("x", x, (*x.shape[:-1], K)), ("other", other, shape)):
        if tensor is not None and (
            tensor.dtype != torch.float32 or tensor.shape != expected or tensor.device.type != "cpu"
        ):
            raise ValueError(
                f"{name} must be float32 of shape {tuple(expected)} on the CPU, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
            )
    x, y = x.contiguous(), torch.empty(shape, dtype=torch.float32, device="cpu")
    other = None if other is None else other.contiguous()
    if not y.numel():
        return y
    fields = {
        PrefillJob.ROWS: x.numel() // K, PrefillJob.X: x.data_ptr(), PrefillJob.W: weight.data_ptr(), PrefillJob.Y: y.data_ptr(), PrefillJob.K: K,
        PrefillJob.N: shape[-1], PrefillJob.EPILOGUE: epilogue, PrefillJob.BIAS: 0 if bias is None else bias.data_ptr(),
        PrefillJob.OTHER: 0 if other is None else other.data_ptr(),
    }  # fmt: skip
    kernel = prefill.exact_gelu_linear if epilogue == Epilogue.EXACT_GELU else prefill.linear
    _run(kernel, 1, 0, fields)
    return y


def norm(x: Tensor, eps: float, weight: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
    """Return the RMS norm of `x` (…, K) times `weight` (K,), plus `plus` (…, K), float32 on the CPU. Raises `ValueError` for another type or shape."""
    given = (("x", x, x.shape), ("weight", weight, x.shape[-1:]), ("plus", plus, x.shape))
    for name, tensor, shape in given:
        if tensor is not None and (
            tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.shape != shape
        ):
            raise ValueError(
                f"{name} must be float32 of shape {tuple(shape)} on the CPU, got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
            )
    x = x.contiguous()
    weight, plus = (None if tensor is None else tensor.contiguous() for tensor in (weight, plus))
    y, least = torch.empty_like(x), np.array([eps], np.float32)
    fields = {
        PrefillJob.ROWS: x.numel() // x.shape[-1], PrefillJob.K: x.shape[-1], PrefillJob.X: x.data_ptr(), PrefillJob.Y: y.data_ptr(),
        PrefillJob.EPS: least.ctypes.data, PrefillJob.W: 0 if weight is None else weight.data_ptr(),
        PrefillJob.OTHER: 0 if plus is None else plus.data_ptr(),
    }  # fmt: skip
    _run(prefill.norm, 1, 0, fields)
    return y


def rotate(
    heads: Tensor,
    count: int,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor | None = None,
    together: int = 0,
    eps: float = 0.0,
) -> None:
    """Apply rotary positions in place to the first `count` of `heads` (B, n, heads, d), contiguous float32 on the CPU.

    `cos`, `sin` (1 or B, n, 1, r): the first half of the sines is negated; the numbers of a head after the first r stay. `weight`
    (count, d): before, these heads are normalised, each by itself; or, with `together`, the first so many together, and the others.
    Raises `ValueError` for another shape, type or layout.
    """
    B, n, head_count, d = heads.shape
    r = cos.shape[-1]
    tables = (1 if len(cos) == 1 else B, n, 1, min(r - r % 2, d))
    given = [heads, cos, sin, *([] if weight is None else [weight])]
    if (
        any(each.dtype != torch.float32 or each.device.type != "cpu" for each in given)
        or not heads.is_contiguous()
        or not cos.shape == sin.shape == tables
        or not 0 <= together <= count <= head_count
        or (weight is not None and weight.shape != (count, d))
    ):
        raise ValueError(
            f"heads must be contiguous, all tensors float32 on the CPU, cos and sin of shape {tables} and count at most {head_count}, "
            f"got heads {tuple(heads.shape)} {heads.dtype}, cos {tuple(cos.shape)}, sin {tuple(sin.shape)}, count {count}, together "
            f"{together}, weight {None if weight is None else tuple(weight.shape)}"
        )
    cos, sin, least = cos.contiguous(), sin.contiguous(), np.array([eps], np.float32)
    weight = None if weight is None else weight.contiguous()
    fields = {
        PrefillJob.ROWS: B, PrefillJob.QUERY_COUNT: n, PrefillJob.HEAD_DIM: d, PrefillJob.K: head_count * d, PrefillJob.HEADS: count,
        PrefillJob.X: heads.data_ptr(), PrefillJob.COS: cos.data_ptr(), PrefillJob.SIN: sin.data_ptr(), PrefillJob.ROTARY: r,
        PrefillJob.QUERY_ROW: 0 if len(cos) == 1 else n * r, PrefillJob.W: 0 if weight is None else weight.data_ptr(),
        PrefillJob.TOGETHER: together, PrefillJob.EPS: least.ctypes.data,
    }  # fmt: skip
    _run(prefill.rotate, 1, 0, fields)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None = None, cap: float | None = None
) -> Tensor:
    """Return causal attention (B, n, G·R·d) of the last n queries (B, n, G, R, d) over keys and values (B, G, T, d).

    All are float32 on the CPU, d a multiple of `PANEL`. Queries, keys and values may be slices of one tensor of heads. `window`: how many
    keys a query sees, its own included; `cap`: scores s become cap · tanh(s / cap). Raises `ValueError` for another shape, type or layout.
    """
    B, n, G, R, d = queries.shape
    T = keys.shape[2]
    if (
        any(each.dtype != torch.float32 or each.device.type != "cpu" for each in (queries, keys, values))
        or not keys.shape == values.shape == (B, G, T, d)
        or keys.stride() != values.stride()
        or keys.stride()[2:] != (d, 1)
        or queries.stride()[2:] != (R * d, d, 1)
        or d % PANEL
        or not 1 <= n <= T
    ):
        raise ValueError(
            f"queries (B, n, G, R, d), keys and values (B, G, T, d) must be float32 on the CPU, d a multiple of {PANEL}, n at most T, and "
            f"contiguous but for the strides of rows, positions and groups, got queries {tuple(queries.shape)} with strides "
            f"{queries.stride()}, keys {tuple(keys.shape)} with strides {keys.stride()}"
        )
    mixed = torch.empty(B, n, G * R * d, dtype=torch.float32, device="cpu")
    key_panels = torch.empty(B * G * (T + -T % PANEL) * d, dtype=torch.float32, device="cpu")
    limit = np.array([cap or 0], np.float32)
    fields = {
        PrefillJob.ROWS: B, PrefillJob.GROUPS: G, PrefillJob.HEADS: R, PrefillJob.HEAD_DIM: d, PrefillJob.QUERY_COUNT: n, PrefillJob.KEY_COUNT: T,
        PrefillJob.QUERIES: queries.data_ptr(), PrefillJob.QUERY_ROW: queries.stride(0), PrefillJob.QUERY_POSITION: queries.stride(1),
        PrefillJob.KEYS: keys.data_ptr(), PrefillJob.VALUES: values.data_ptr(), PrefillJob.KEY_ROW: keys.stride(0),
        PrefillJob.KEY_GROUP: keys.stride(1), PrefillJob.MIXED: mixed.data_ptr(), PrefillJob.KEY_PANELS: key_panels.data_ptr(),
        PrefillJob.WINDOW: T if window is None else window, PrefillJob.CAP: 0 if cap is None else limit.ctypes.data,
    }  # fmt: skip
    _run(prefill.attend, 2, R * prefill.QUERIES * (T + -T % PANEL + 1), fields)
    return mixed


def sample(scores: Tensor, parameters: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, Tensor, Tensor]:
    """Sample a token for each row of `scores` (B, V), float32 on the CPU.

    `parameters` (B, 4): temperature, top_k, top_p, min_p; `seeds` (B, 2): seed and number of tokens sampled. Return the tokens with the number
    of tokens that remained (B, 2); the remaining probabilities; and the tokens that these belong to. Raises `ValueError` for another
    type or shape.
    """
    B, V = scores.shape
    if (
        scores.dtype != torch.float32
        or scores.device.type != "cpu"
        or parameters.shape != (B, 4)
        or seeds.shape != (B, 2)
    ):
        raise ValueError(
            f"scores must be float32 on the CPU, parameters of shape ({B}, 4) and seeds of shape ({B}, 2), "
            f"got scores {scores.dtype} on {scores.device}, parameters {parameters.shape}, seeds {seeds.shape}"
        )
    scores, parameters, seeds, sampled = (
        scores.contiguous(),
        parameters.astype(np.float64),
        seeds.astype(np.int64),
        np.empty((B, 2), np.int64),
    )
    probabilities, ids = (
        torch.empty(B, V + -V % GROUP, dtype=kind, device="cpu") for kind in (torch.float32, torch.int64)
    )
    fields = {
        SampleJob.ROWS: B, SampleJob.SCORES: scores.data_ptr(), SampleJob.V: V, SampleJob.PARAMETERS: parameters.ctypes.data, SampleJob.SEEDS: seeds.ctypes.data,
        SampleJob.PROBABILITIES: probabilities.data_ptr(), SampleJob.IDS: ids.data_ptr(), SampleJob.SAMPLED: sampled.ctypes.data,
    }  # fmt: skip
    _run(sampling_kernel.sample, 1, COUNTS, fields)
    return sampled, probabilities, ids
