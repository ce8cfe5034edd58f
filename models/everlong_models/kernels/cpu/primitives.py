"""Building blocks of the numba kernels: how they are compiled, arrays at an address, counters that threads share, sums, norms and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from everlong_models.kernels.cpu.simd import BYTE, FLOAT, INT64, LANES, exp_shifted, gelu, pointer, silu

compiled = njit(error_model="numpy")
"""Division by zero gives ∞ or NaN, as in PyTorch. An exception would leave a part undone, and all threads would wait for it."""
compiled_sum = njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
"""The compiler may reorder a sum. The compiled order is the same for every row."""


def compiled_as(name: str) -> Callable[[Callable[..., None]], Any]:
    """Return `compiled` for a closure that is made several times.

    numba names machine code after `__qualname__`. Kernels that different processes stored may be loaded by one process, and the linker would
    then take two closures with the same name for the same function.
    """

    def compile_named(function: Callable[..., None]) -> Any:
        function.__qualname__ = f"{function.__qualname__}-{name}"
        return compiled(function)

    return compile_named


@intrinsic
def float_pointer(_context, address):
    """Return `address` as a pointer to float32."""
    return types.CPointer(types.float32)(types.int64), lambda _, builder, __, args: pointer(builder, args[0], FLOAT)


@intrinsic
def double_pointer(_context, address):
    """Return `address` as a pointer to float64."""
    kind = ir.DoubleType()
    return types.CPointer(types.float64)(types.int64), lambda _, builder, __, args: pointer(builder, args[0], kind)


@intrinsic
def int_pointer(_context, address):
    """Return `address` as a pointer to int64."""
    return types.CPointer(types.int64)(types.int64), lambda _, builder, __, args: pointer(builder, args[0], INT64)


@intrinsic
def byte_pointer(_context, address):
    """Return `address` as a pointer to uint8."""
    return types.CPointer(types.uint8)(types.int64), lambda _, builder, __, args: pointer(builder, args[0], BYTE)


@intrinsic
def address(_context, array):
    """Return the address of an array's first element."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, INT64)

    return types.int64(array), generate


@intrinsic
def fetch_add(_context, address):
    """Return the int64 at `address` and increment it atomically."""

    def generate(_context, builder, _signature, args):
        return builder.atomic_rmw("add", pointer(builder, args[0], INT64), ir.Constant(INT64, 1), "seq_cst")

    return types.int64(types.int64), generate


@intrinsic
def load_acquire(_context, address):
    """Return the int64 at `address` with acquire ordering: writes made before it was set are visible."""

    def generate(_context, builder, _signature, args):
        return builder.load_atomic(pointer(builder, args[0], INT64), "acquire", 8)

    return types.int64(types.int64), generate


@compiled_sum
def dot(x, y):
    """Return x · y."""
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@compiled_sum
def normed(h, weight, eps, out):
    """out ← the RMS norm of `h` (B, D). `out` may be `h`."""
    rows, D = h.shape
    for m in range(rows):
        scale = np.float32(1) / np.sqrt(dot(h[m], h[m]) / np.float32(D) + eps)
        for i in range(D):
            out[m, i] = h[m, i] * scale * weight[i]


@compiled_sum
def softmax_weights(x, count):
    """x[:count] ← exp(x − max x) in place. Return the sum.

    Overwrites x beyond `count`, up to a multiple of `LANES`.
    """
    most = x[0]
    for i in range(1, count):
        most = max(most, x[i])
    exp_shifted(address(x), most, (count + LANES - 1) // LANES)
    total = np.float32(0)
    for i in range(count):
        total += x[i]
    return total


@compiled
def floats(address, rows, columns):
    """Return the float32 array (rows, columns) at `address`."""
    return carray(float_pointer(address), (rows, columns))


_yield = types.ExternalFunction("sched_yield", types.int32())


@compiled
def wait(done, parts):
    """Wait until all parts are done. Every part has been taken by a running thread, so this does not deadlock."""
    polls = 0
    while load_acquire(done) < parts:
        polls += 1
        if polls % 1000 == 0:  # the thread that computes the part may be waiting for this core
            _yield()


@compiled
def gate_columns(is_gelu, gate, up, start, end):
    """gate ← activation(gate) · up (B, F), for the columns `start` … `end`; their number is a multiple of `LANES`."""
    for m in range(gate.shape[0]):
        to = address(gate) + 4 * (m * gate.shape[1] + start)
        if is_gelu:
            gelu(to, (end - start) // LANES)
        else:
            silu(to, (end - start) // LANES)
        for i in range(start, end):
            gate[m, i] *= up[m, i]


@compiled
def rotated(x, cos, sin, scale, out):
    """out ← one head times `scale`, its first numbers rotated to their position. `out` may be `x`."""
    half = len(cos) // 2
    for i in range(2 * half, len(x)):
        out[i] = x[i] * scale
    for i in range(half):
        a, b = x[i], x[i + half]
        out[i] = (a * cos[i] + b * sin[i]) * scale
        out[i + half] = (b * cos[i + half] + a * sin[i + half]) * scale


@compiled_sum
def norm_factor(x, eps):
    """Return what the RMS norm multiplies `x` by."""
    return np.float32(1) / np.sqrt(dot(x, x) / np.float32(len(x)) + eps)


@compiled_sum
def weighted(x, factor, weight, out):
    """out ← `x` (d,) times a factor and a weight (d,)."""
    for i in range(len(x)):
        out[i] = x[i] * factor * weight[i]
