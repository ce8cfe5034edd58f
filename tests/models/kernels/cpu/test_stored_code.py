"""Machine code of the kernels: it is stored for one version and one processor, and made again where it cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from numba import cfunc

from everlong_models.kernels.cpu import (
    decode_step,
    dequantise,
    experts,
    matrix_product,
    prefill,
    quantise,
    sampling_kernel,
    thread_pool,
)
from everlong_models.kernels.cpu.quantised_matrix import GROUP, QuantisedMatrix, can_quantise
from tests.models.q4_weights import q4_weights

pytestmark = pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")

COMPILED = """
import torch
from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.prefill import Epilogue
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix, can_quantise
torch.manual_seed(0)
weight, x = torch.randn(48, 96), torch.randn(7, 96)
print(thread_pool.linear(x, thread_pool.pack_panels(weight), None, Epilogue.SILU, None).double().sum().item())
print(QuantisedMatrix(weight)(x).double().sum().item() if can_quantise(weight) else "does not fit")
"""


@pytest.mark.long
def test_stored_machine_code_is_reused_and_damaged_files_are_replaced(tmp_path):
    def compute() -> str:
        run = [sys.executable, "-c", COMPILED]
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        return subprocess.run(run, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout

    def stored_files() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")}

    first, files = compute(), stored_files()
    assert {file.suffix for file in files} == {".nbi", ".nbc"}
    assert compute() == first
    assert stored_files() == files
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    assert compute() == first


KERNELS = [
    *(kernel.run for kernel in decode_step.KERNELS), prefill.linear, prefill.exact_gelu_linear, prefill.norm, prefill.rotate, prefill.attend,
    matrix_product.multiply, quantise.quantise_groups, experts.mixture, dequantise.dequantise, sampling_kernel.sample,
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_a_kernel_is_a_function_of_its_module(kernel):
    """numba would store the code of a closure under another name in each process: every start would compile it again."""
    assert kernel.__closure__ is None
    assert getattr(sys.modules[kernel.__module__], kernel.__name__) is kernel


@pytest.mark.long
@pytest.mark.parametrize("kernel", decode_step.KERNELS, ids=lambda kernel: kernel.run.__name__)
def test_the_stored_code_of_a_decode_step_is_reused(tmp_path, kernel):
    script = f"""
from everlong_models.kernels.cpu import decode_step, thread_pool
thread_pool.prepare(decode_step.{kernel.run.__name__})
"""
    stored = []
    for _ in range(2):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)
        stored.append({file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")})
    first, second = stored
    assert len(first) == 2
    assert first == second


@pytest.mark.long
@pytest.mark.parametrize("processor", ["ivybridge", "generic"])
def test_a_processor_with_fewer_instructions_computes_the_same_or_is_not_supported(tmp_path, processor):
    """What numba compiles for may lack instructions that this processor has: naming one would end the process. The first knows no
    products of whole numbers in vectors, the second no numbers of 16 bits either."""
    run = [sys.executable, "-c", COMPILED]
    found = [
        subprocess.run(
            run, env=os.environ | more, check=True, capture_output=True, text=True, timeout=120
        ).stdout.split("\n")
        for more in ({}, {"NUMBA_CPU_NAME": processor, "NUMBA_CACHE_DIR": str(tmp_path)})
    ]
    (first, product, _), (second, other, _) = found
    assert float(first) == pytest.approx(float(second), rel=1e-6)
    assert other == (product if processor == "ivybridge" else "does not fit")


def test_stored_code_is_of_one_version_and_one_processor(monkeypatch):
    names: list[str] = []
    monkeypatch.setattr(
        thread_pool, "cfunc", lambda *args, **options: lambda function: names.append(function.__qualname__)
    )
    monkeypatch.setattr(matrix_product.multiply, "__qualname__", "multiply")  # restored at the end

    def name() -> str:
        thread_pool.compiled.__wrapped__(matrix_product.multiply)
        return names.pop()

    usual = name()
    assert name() == usual
    for where, what, value in (
        (thread_pool.numba, "__version__", "0.0.1"),
        (thread_pool.llvm, "get_host_cpu_name", lambda: "another"),
        (thread_pool.inspect, "getsource", lambda module: f"other {module.__name__}"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(where, what, value)
            assert name() != usual


@pytest.mark.long
def test_without_a_writable_folder_each_process_compiles(monkeypatch):
    """Compiled code is kept in the process's memory."""

    def refuse(*args, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return cfunc(*args, **options)

    monkeypatch.setattr(thread_pool, "cfunc", refuse)
    monkeypatch.setattr(thread_pool, "compiled", lru_cache(thread_pool.compiled.__wrapped__))
    layer, x = QuantisedMatrix(q4_weights(48, 96)), torch.randn(5, 96)
    torch.testing.assert_close(layer(x), x @ q4_weights(48, 96).T, rtol=1e-3, atol=2e-4)
