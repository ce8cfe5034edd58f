"""Addresses and atomics: intrinsics that read job tables by address, and counters that threads share."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from everlong_models.kernels.cpu.simd import BYTE, FLOAT, INT64, pointer


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
