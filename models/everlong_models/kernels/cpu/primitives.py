"""Building blocks of the numba kernels: how they are compiled, arrays at an address, sums, softmax and waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types

from everlong_models.kernels.cpu.atomics import address, float_pointer, load_acquire
from everlong_models.kernels.cpu.simd import LANES, exp_shifted

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


@compiled_sum
def dot(x, y):
    """Return x · y."""
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


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
