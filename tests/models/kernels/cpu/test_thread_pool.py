"""Compiled kernels: how stored machine code is told apart."""

from __future__ import annotations

from numba.core.registry import CPUDispatcher

from everlong_models.kernels.cpu import thread_pool


def test_every_compiled_function_has_a_name_of_its_own():
    """numba names machine code after the function. Two kernels from two processes' caches must not share a name for different code."""
    functions = {
        id(value): value.py_func
        for module in thread_pool._SOURCES
        for value in vars(module).values()
        if isinstance(value, CPUDispatcher)
    }
    names = [(function.__module__, function.__qualname__) for function in functions.values()]
    assert len(names) > 20
    assert len(set(names)) == len(names)
