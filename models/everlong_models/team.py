"""PyTorch's own threads at what `kernels` has, without Python between them.

numba compiles it when it is first needed, some seconds, and stores it for the next process, beside `kernels` or in the user's
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

from everlong_models import kernels, lanes
from everlong_models.kernels import FIELDS, LINE, Job, Matrix
from everlong_models.lanes import GROUP

log = logging.getLogger(__name__)

_openmp = ctypes.CDLL(None)
_POOLED = hasattr(_openmp, "GOMP_parallel")
"""Whether PyTorch's threads are of an OpenMP that has GNU's entries. Else one thread computes."""


@lru_cache
def compiled(function: Callable[..., None]) -> Any:
    """`kernels.step` or `kernels.multiply` as machine code."""
    make = partial(cfunc, kernels.SIGNATURE, error_model="numpy")
    # numba tells what it has stored by name and place. Code of another version would take a table for what it is not, and
    # another processor's has instructions that this one may lack.
    source = inspect.getsource(kernels) + inspect.getsource(lanes)
    key = f"{source}{numba.__version__}{llvm.get_host_cpu_name()}{llvm.get_host_cpu_features().flatten()}"
    function.__qualname__ = f"{function.__name__}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    try:
        return make(cache=True)(function)
    except Exception as error:  # no place to store it, or what pickle raises for a damaged file
        log.info("compiled for this process alone: %s", error)
        return make()(function)


def prepare() -> None:
    """Compiles everything now, so that the first step does not wait for it."""
    for function in (kernels.step, kernels.multiply):
        compiled(function)


def _run(function: Callable[..., None], phases: int, own: int, fields: Mapping[Job, int]) -> None:
    """`own`: float32 of room that each thread has by itself."""
    threads = torch.get_num_threads() if _POOLED else 1
    own += -own % (LINE // 4)  # PyTorch's tensors begin at a line of the processor, and so does each thread's room
    rooms = torch.empty(threads, own, dtype=torch.float32, device="cpu")
    counters = np.zeros((1 + 2 * phases) * LINE // 8, np.int64)
    job = np.zeros(FIELDS, np.int64)
    for name, value in fields.items():
        job[name] = value
    job[Job.OWN], job[Job.OWN_SIZE], job[Job.COUNTERS] = rooms.data_ptr(), own, counters.ctypes.data
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
    own = len(x) * int(matrix[Matrix.K] // GROUP + matrix[Matrix.RANK])
    fields = {Job.ROWS: len(x), Job.TABLE: matrix.ctypes.data, Job.X: x.ctypes.data, Job.Y: y.ctypes.data}
    _run(kernels.multiply, 1, own, fields)
    return y


def step(fields: Mapping[Job, int]) -> None:
    """Every layer for one position a row: `fields` has all of `Job` but what is made here."""
    rows, head_dim = fields[Job.ROWS], fields[Job.HEAD_DIM]
    wide = max(fields[Job.WIDTH], fields[Job.INNER], fields[Job.HEADS] * head_dim)
    products, heads = rows * (wide + wide // GROUP + 2 * fields[Job.RANK]), 2 * head_dim + fields[Job.CONTEXT]
    _run(kernels.step, 5 * fields[Job.LAYERS], int(max(products, heads)), {**fields, Job.WIDE: wide})
