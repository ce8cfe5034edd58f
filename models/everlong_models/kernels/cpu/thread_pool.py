"""PyTorch's own threads at what `decode_step`, `prefill`, `sampling_kernel` and `quantise` have, without Python between them.

numba compiles it when it is first needed, some seconds, and stores it for the next process, beside `decode_step` or in the user's
cache (`NUMBA_CACHE_DIR`). Where it can do neither, every process compiles it.
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

from everlong_models.kernels.cpu import decode_step, prefill, sampling_kernel, simd
from everlong_models.kernels.cpu import quantise as quantise_kernel
from everlong_models.kernels.cpu.decode_step import FIELDS, LINE, DecodeJob, Matrix
from everlong_models.kernels.cpu.prefill import Epilogue, PrefillJob
from everlong_models.kernels.cpu.quantise import QuantiseJob
from everlong_models.kernels.cpu.sampling_kernel import COUNTS, SampleJob
from everlong_models.kernels.cpu.simd import GROUP, LANES, PANEL
from everlong_models.kernels.yield_point import yield_point

log = logging.getLogger(__name__)

_openmp = ctypes.CDLL(None)
_POOLED = hasattr(_openmp, "GOMP_parallel")
"""Whether PyTorch's threads are of an OpenMP that has GNU's entries. Else one thread computes."""


@lru_cache
def compiled(function: Callable[..., None]) -> Any:
    """A function of `decode_step`, `prefill`, `sampling_kernel` or `quantise` as machine code."""
    make = partial(cfunc, decode_step.SIGNATURE, error_model="numpy")
    # numba tells what it has stored by name and place. Code of another version would take a table for what it is not, and
    # another processor's has instructions that this one may lack.
    source = "".join(map(inspect.getsource, (decode_step, prefill, sampling_kernel, quantise_kernel, simd)))
    key = f"{source}{numba.__version__}{llvm.get_host_cpu_name()}{llvm.get_host_cpu_features().flatten()}"
    function.__qualname__ = f"{function.__name__}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    try:
        return make(cache=True)(function)
    except Exception as error:  # no place to store it, or what pickle raises for a damaged file
        log.info("compiled for this process alone: %s", error)
        return make()(function)


def prepare(*functions: Callable[..., None]) -> None:
    """Compiles these now, so that their first use does not wait for it."""
    for function in functions:
        compiled(function)


def _run(
    function: Callable[..., None],
    phases: int,
    own: int,
    fields: Mapping[DecodeJob, int] | Mapping[PrefillJob, int] | Mapping[QuantiseJob, int] | Mapping[SampleJob, int],
) -> None:
    """`own`: float32 of room that each thread has by itself."""
    threads = torch.get_num_threads() if _POOLED else 1
    own += -own % (LINE // 4)  # PyTorch's tensors begin at a line of the processor, and so does each thread's room
    rooms = torch.empty(threads, own, dtype=torch.float32, device="cpu")
    counters = np.zeros((1 + 2 * phases) * LINE // 8, np.int64)
    job = np.zeros(FIELDS, np.int64)
    for name, value in fields.items():
        job[name] = value
    job[DecodeJob.OWN], job[DecodeJob.OWN_SIZE], job[DecodeJob.COUNTERS] = rooms.data_ptr(), own, counters.ctypes.data
    code = compiled(function)
    if _POOLED:
        _openmp.GOMP_parallel(ctypes.c_void_p(code.address), ctypes.c_void_p(job.ctypes.data), threads, 0)
    else:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address)(job.ctypes.data)


def multiply(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(B, N) of `x` (B, K), float32, by a `Matrix`. Raises `ValueError` for anything else."""
    if x.dtype != np.float32 or x.shape[1:] != (matrix[Matrix.K],):
        raise ValueError(f"x is {x.dtype} {x.shape}, not float32 (rows, {matrix[Matrix.K]})")
    x = np.ascontiguousarray(x)
    y = np.empty((len(x), int(matrix[Matrix.N])), np.float32)
    own = len(x) * int(matrix[Matrix.K] // 2 + 2 * (matrix[Matrix.K] // GROUP) + matrix[Matrix.RANK])
    fields = {
        DecodeJob.ROWS: len(x),
        DecodeJob.TABLE: matrix.ctypes.data,
        DecodeJob.X: x.ctypes.data,
        DecodeJob.Y: y.ctypes.data,
    }
    _run(decode_step.multiply, 1, own, fields)
    return y


def step(fields: Mapping[DecodeJob, int]) -> None:
    """Every layer and the last norm for one position a row: `fields` has all of `DecodeJob` but what is made here."""
    rows, head_dim = fields[DecodeJob.ROWS], fields[DecodeJob.HEAD_DIM]
    wide = max(fields[DecodeJob.WIDTH], fields[DecodeJob.INNER], fields[DecodeJob.HEADS] * head_dim)
    products = rows * (wide + wide // 2 + 2 * (wide // GROUP) + 2 * fields[DecodeJob.RANK])
    # Where there are no more groups than threads, each head is a part by itself.
    many = (
        fields[DecodeJob.HEADS] // fields[DecodeJob.KV_HEADS]
        if rows * fields[DecodeJob.KV_HEADS] > torch.get_num_threads()
        else 1
    )
    heads = (many + 1) * head_dim + many * (fields[DecodeJob.CONTEXT] + LANES)
    more = {DecodeJob.WIDE: wide, DecodeJob.TOGETHER: many}
    yield_point()
    _run(decode_step.step, 5 * fields[DecodeJob.LAYERS] + 1, int(max(products, heads)), {**fields, **more})


def quantise(weight: Tensor, bits: int, tolerance: float | None = None) -> tuple[Tensor, Tensor, bool]:
    """The codes and scales of a matrix (N, K), float32 on the CPU, N a multiple of `PANEL` and K of `GROUP`, as `Grid` has them; and
    whether none of its weights lies further off its grid than `tolerance`, in steps: if one does, the rest is not looked at.
    Raises `ValueError` for another type or shape."""
    N, K = weight.shape
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or N % PANEL or K % GROUP:
        raise ValueError(f"no grids for {weight.dtype} {N} × {K} on {weight.device}")
    weight, (most, off) = weight.contiguous(), (np.array([tolerance or 0], np.float32), np.zeros(1, np.int64))
    halves = () if bits == 4 else (2,)
    codes = torch.empty(N // PANEL, K // 2, *halves, LANES, 2, dtype=torch.uint8, device="cpu")
    scales = torch.empty(N // PANEL, K // GROUP, 2, PANEL, dtype=torch.float16, device="cpu")
    fields = {
        QuantiseJob.N: N, QuantiseJob.WEIGHT: weight.data_ptr(), QuantiseJob.K: K, QuantiseJob.BITS: bits, QuantiseJob.CODES: codes.data_ptr(),
        QuantiseJob.SCALES: scales.data_ptr(), QuantiseJob.TOLERANCE: most.ctypes.data,
        QuantiseJob.OFF: 0 if tolerance is None else off.ctypes.data,
    }  # fmt: skip
    _run(quantise_kernel.quantise_groups, 1, 2 * PANEL + PANEL * GROUP // 4, fields)
    return codes, scales, not off[0]


def pack_panels(weight: Tensor) -> Tensor:
    """A matrix (N, K), N a multiple of `PANEL`, as `product` wants it: (N / PANEL, K, PANEL)."""
    return weight.detach().unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, then: Epilogue, other: Tensor | None) -> Tensor:
    """(…, N) of `x` (…, K) by a `packed` weight, all float32 on the CPU; `other` (…, N): as `then` has it. Raises `ValueError` for
    another type or shape."""
    panels, K, _ = weight.shape
    shape = (*x.shape[:-1], panels * PANEL)
    for name, tensor, wanted in (("x", x, (*x.shape[:-1], K)), ("other", other, shape)):
        if tensor is not None and (
            tensor.dtype != torch.float32 or tensor.shape != wanted or tensor.device.type != "cpu"
        ):
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not float32 {tuple(wanted)} on the CPU")
    x, y = x.contiguous(), torch.empty(shape, dtype=torch.float32, device="cpu")
    other = None if other is None else other.contiguous()
    if not y.numel():
        return y
    fields = {
        PrefillJob.ROWS: x.numel() // K, PrefillJob.X: x.data_ptr(), PrefillJob.W: weight.data_ptr(), PrefillJob.Y: y.data_ptr(), PrefillJob.K: K,
        PrefillJob.N: shape[-1], PrefillJob.THEN: then, PrefillJob.BIAS: 0 if bias is None else bias.data_ptr(),
        PrefillJob.OTHER: 0 if other is None else other.data_ptr(),
    }  # fmt: skip
    _run(prefill.linear, 1, 0, fields)
    return y


def norm(x: Tensor, eps: float) -> Tensor:
    """The RMS norm of `x` (…, K), float32 on the CPU, without a weight. Raises `ValueError` for another type."""
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(f"x is {x.dtype} on {x.device}, not float32 on the CPU")
    x = x.contiguous()
    y, least = torch.empty_like(x), np.array([eps], np.float32)
    fields = {
        PrefillJob.ROWS: x.numel() // x.shape[-1], PrefillJob.K: x.shape[-1], PrefillJob.X: x.data_ptr(), PrefillJob.Y: y.data_ptr(),
        PrefillJob.EPS: least.ctypes.data,
    }  # fmt: skip
    _run(prefill.norm, 1, 0, fields)
    return y


def rotate(heads: Tensor, count: int, cos: Tensor, sin: Tensor) -> None:
    """Gives the first `count` of `heads` (B, n, heads, d), float32 on the CPU and one behind the other, their rotary positions, in
    place. `cos`, `sin` (1 or B, n, 1, d): the first half of the sines is negative. Raises `ValueError` for others."""
    B, n, all_of, d = heads.shape
    tables = (1 if len(cos) == 1 else B, n, 1, d)
    if (
        any(each.dtype != torch.float32 or each.device.type != "cpu" for each in (heads, cos, sin))
        or not heads.is_contiguous()
        or not cos.shape == sin.shape == tables
        or not 0 <= count <= all_of
    ):
        raise ValueError(
            f"no {count} of the heads {tuple(heads.shape)} can be turned by {tuple(cos.shape)} as they lie"
        )
    cos, sin = cos.contiguous(), sin.contiguous()
    fields = {
        PrefillJob.ROWS: B, PrefillJob.ASKED: n, PrefillJob.HEAD_DIM: d, PrefillJob.K: all_of * d, PrefillJob.HEADS: count,
        PrefillJob.X: heads.data_ptr(), PrefillJob.COS: cos.data_ptr(), PrefillJob.SIN: sin.data_ptr(),
        PrefillJob.QUERY_ROW: 0 if len(cos) == 1 else n * d,
    }  # fmt: skip
    _run(prefill.rotate, 1, 0, fields)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention (B, n, G·R·d) of the last n queries (B, n, G, R, d) over keys and values (B, G, T, d), float32; d a
    multiple of `PANEL`. Raises `ValueError` for others, and for strides that are not those of parts of a heads' tensor."""
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
        raise ValueError(f"no attention of {tuple(queries.shape)} over {tuple(keys.shape)} as they lie")
    mixed = torch.empty(B, n, G * R * d, dtype=torch.float32, device="cpu")
    room = torch.empty(B * G * (T + -T % PANEL) * d, dtype=torch.float32, device="cpu")
    fields = {
        PrefillJob.ROWS: B, PrefillJob.GROUPS: G, PrefillJob.HEADS: R, PrefillJob.HEAD_DIM: d, PrefillJob.ASKED: n, PrefillJob.KNOWN: T,
        PrefillJob.QUERIES: queries.data_ptr(), PrefillJob.QUERY_ROW: queries.stride(0), PrefillJob.QUERY_POSITION: queries.stride(1),
        PrefillJob.KEYS: keys.data_ptr(), PrefillJob.VALUES: values.data_ptr(), PrefillJob.KEY_ROW: keys.stride(0),
        PrefillJob.KEY_GROUP: keys.stride(1), PrefillJob.MIXED: mixed.data_ptr(), PrefillJob.PANELS: room.data_ptr(),
    }  # fmt: skip
    _run(prefill.attend, 2, R * prefill.QUERIES * (T + -T % PANEL + 1), fields)
    return mixed


def sample(scores: Tensor, how: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, Tensor, Tensor]:
    """As `drawing.SampleJob` has all of them: for each row of `scores` (B, V), float32 on the CPU, the token and how many were left (B, 2); the
    probabilities that were left, and whose they are. Raises `ValueError` for another type or shape."""
    B, V = scores.shape
    if scores.dtype != torch.float32 or scores.device.type != "cpu" or how.shape != (B, 4) or seeds.shape != (B, 2):
        raise ValueError(
            f"scores are {scores.dtype} {B} × {V} on {scores.device}, drawn as {how.shape} of {seeds.shape}"
        )
    scores, how, seeds, drawn = (
        scores.contiguous(),
        how.astype(np.float64),
        seeds.astype(np.int64),
        np.empty((B, 2), np.int64),
    )
    left, ids = (torch.empty(B, V + -V % GROUP, dtype=kind, device="cpu") for kind in (torch.float32, torch.int64))
    fields = {
        SampleJob.ROWS: B, SampleJob.SCORES: scores.data_ptr(), SampleJob.V: V, SampleJob.HOW: how.ctypes.data, SampleJob.SEEDS: seeds.ctypes.data,
        SampleJob.LEFT: left.data_ptr(), SampleJob.IDS: ids.data_ptr(), SampleJob.DRAWN: drawn.ctypes.data,
    }  # fmt: skip
    _run(sampling_kernel.sample, 1, COUNTS, fields)
    return drawn, left, ids
