"""A layer as a GPU computes it equals transformers' forward, its naive twin. Without a GPU, Triton interprets the kernels."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import CacheSlots
from everlong_models.generate.cuda_graphs import CUDAGraphs, ReadGraphs, StepGraphs
from everlong_models.kernels.gpu import layer_kernels
from everlong_models.kernels.linear import Activation
from everlong_models.kernels.norms import Norms
from everlong_models.memories.rmt import RMT, RMTConfig
from tests.models import tiny_families
from tests.models.backbone.test_llama import build, embeddings, shared
from tests.models.fake_gpu import DEVICE, REAL
from tests.models.tiny import llama

pytestmark = pytest.mark.long

pytest.importorskip("triton")
LAYER = {"heads": 4, "turning": 3, "head_dim": 8, "rotary": {8, 6}, "width": 16, "inner": 32, "biases": (True, False)}
KIND = (Norms(before=torch.ones(16), after_mlp=torch.ones(16)), None, Activation.SILU)
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
WHERE = "cuda" if REAL else "cpu"
NAMES = (
    "llama", "biases", "no-groups", "head-dim", "qwen2", "granite", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2",
    "mistral", "olmo3", "qwen3_moe", *tiny_families.GPT, *tiny_families.VARIANTS,
)  # fmt: skip
"""Every family, and what else the kernels tell apart: biases, activations, and heads of another dimension or number."""


@pytest.fixture
def fuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fused layers on any device; run what would be compiled."""
    monkeypatch.setattr(layer_kernels, "compiles", lambda _, run: run() or True)


def twins(name: str, dtype: torch.dtype = torch.float32) -> tuple[Backbone, Backbone]:
    """Return the plain backbone, and the optimised one with fused layers."""
    naive, fast = build(name, dtype), build(name, dtype)
    naive.model.to(WHERE), fast.model.to(WHERE)
    assert fast.optimize() is None
    assert {type(layer).__name__ for layer in fast._optimised.layers} == {"FusedLayer"}
    return naive, fast


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_transformers_computes(fuses: None, name: str) -> None:
    """Read; with the last positions only; prefilled; and continued at each row's own position."""
    naive, fast = twins(name)
    x = embeddings(naive, 3, 6).to(WHERE)
    before = x.clone()
    torch.testing.assert_close(fast.hidden(x), naive.hidden(x), **CLOSE)
    torch.testing.assert_close(fast.hidden(x, keep=2), naive.hidden(x, keep=2), **CLOSE)
    torch.testing.assert_close(fast.hidden(x, keep=6), naive.hidden(x, keep=6), **CLOSE)
    caches = [backbone.new_kv(3, 30) for backbone in (naive, fast)]
    results = [b.hidden(x, kv=kv, keep=2) for b, kv in zip((naive, fast), caches, strict=True)]
    torch.testing.assert_close(results[1], results[0], **CLOSE)
    assert torch.equal(x, before)
    for at, count, keep in (([6, 5, 3], 1, None), ([7, 6, 4], 2, None), ([9, 8, 27], 3, 2)):
        x = embeddings(naive, 3, count, seed=at[0]).to(WHERE)
        places = torch.tensor(at, device=WHERE)
        # Each row alone: transformers chooses Phi 3's frequencies by the longest row.
        rows = [slice(n, n + 1) for n in range(3)]
        expected = [naive.hidden(x[row], kv=caches[0][row], at=places[row], keep=keep) for row in rows]
        found = fast.hidden(x, kv=caches[1], at=places, keep=keep)
        torch.testing.assert_close(found, torch.cat(expected), **CLOSE)
        torch.testing.assert_close(caches[1], shared(*caches), **CLOSE)


@torch.no_grad()
def test_rows_of_many_blocks(fuses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row wider than one block of a program."""
    monkeypatch.setattr(layer_kernels, "_WIDEST", 16)
    naive, fast = twins("biases")
    x = embeddings(naive, 2, 5).to(WHERE)
    torch.testing.assert_close(fast.hidden(x), naive.hidden(x), **CLOSE)


@torch.no_grad()
def test_bfloat16_is_no_further_from_float32_than_pytorchs_operations(
    fuses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same weights: what is normed is not rounded before it is multiplied."""
    exact, (_, fast) = build("qwen2", torch.float32), twins("qwen2", torch.bfloat16)
    monkeypatch.setattr(layer_kernels, "available", lambda *_, **__: False)
    apart = build("qwen2", torch.bfloat16)
    exact.model.to(WHERE), apart.model.to(WHERE)
    assert apart.optimize() is None
    errors = torch.zeros(2)
    for seed in range(6):
        x = embeddings(exact, 2, 6, seed=seed).to(WHERE)
        expected = exact.hidden(x)
        errors += torch.tensor(
            [float((b.hidden(x.bfloat16()).float() - expected).norm() / expected.norm()) for b in (apart, fast)]
        )
    assert 0.01 < errors[1] < errors[0]


@torch.no_grad()
def test_a_row_does_not_depend_on_others(fuses: None) -> None:
    _, fast = twins("qwen2")
    x = embeddings(fast, 3, 6).to(WHERE)
    together = fast.hidden(x)
    for row in range(3):
        torch.testing.assert_close(fast.hidden(x[row : row + 1]), together[row : row + 1], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_memory_reads_with_it(fuses: None) -> None:
    models = []
    for optimized in (False, True):
        backbone = Backbone(llama().model.float().to(WHERE))
        if optimized:
            assert backbone.optimize() is None
        models.append(RMT(RMTConfig(segment_length=12, memory_tokens=3), backbone).eval())
    tokens = torch.randint(0, 60, (2, 24), generator=torch.Generator().manual_seed(0)).to(WHERE)
    plain, fast = (model.read(tokens, model.initial_state(2)) for model in models)
    for name, tensor in plain.tensors.items():
        torch.testing.assert_close(fast[name], tensor, **CLOSE)


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """For an H100, in bfloat16: what is interpreted may be more than the compiler takes. Elsewhere, as it is interpreted here."""
    assert compiled_by(COMPILE, tmp_path) == 4 * ["_norm_rotate", "_norm_gate", "_norm_add"]


def compiled_by(script: str, cache: Path) -> list[str]:
    """What `script` names of what it compiled, without the interpreter and what was compiled before."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from everlong_models.kernels.gpu import layer_kernels

SIZES = {"width": 576, "count": 15, "turning": 12, "queries": 9, "dim": 64, "half": 32, "inner": 1536, "has_norm": True, "has_bias": True,
         "has_head_norm": False, "whole": False, "gelu": False, "exact": False, "gated": True, "width_block": 1024, "count_block": 16, "half_block": 32, "rest_block": 1,
         "block": 2048}
PARTLY = {"half": 24, "rest_block": 16, "has_head_norm": True, "gelu": True}
NOTHING = {"half": 0, "half_block": 1, "rest_block": 64, "has_norm": False, "has_bias": False, "has_head_norm": True, "whole": True}
UNGATED = {"exact": True, "gated": False}
NUMBERS = {"eps": "fp32", "positions": "i32", "cos_row": "i32"}
for sizes in (SIZES, SIZES | PARTLY, SIZES | NOTHING, SIZES | UNGATED):
  for kernel in (layer_kernels._norm_rotate, layer_kernels._norm_gate, layer_kernels._norm_add):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in sizes else NUMBERS.get(name, "*bf16") for name in names}
    constants = {(place,): sizes[name] for place, name in enumerate(names) if name in sizes}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    print(kernel.__name__)
"""


@pytest.mark.skipif(REAL, reason="there is a GPU")
def test_without_a_gpu_nothing_is_fused() -> None:
    assert not layer_kernels.available(torch.zeros(2, 2), *KIND, **LAYER)
    assert not layer_kernels.available(torch.zeros(2, 2, device="meta"), *KIND, **LAYER)


@pytest.mark.skipif(not REAL, reason="no GPU is here")
@torch.inference_mode()
def test_results_with_cuda_graphs_equal_those_without() -> None:
    """Three rows, so that a place behind them is computed as well."""
    backbone = Backbone(llama().model.float().to(WHERE))
    assert backbone.optimize() is None
    assert backbone._optimised.overwrites
    memory = RMT(RMTConfig(segment_length=12, memory_tokens=3), backbone).eval()
    tokens = torch.randint(0, 60, (3, 24), generator=torch.Generator().manual_seed(0)).to(WHERE)
    read, state = ReadGraphs(memory, CUDAGraphs(DEVICE)), memory.initial_state(3)
    for segment in tokens.split(12, dim=1):
        expected = memory.read(segment, state)
        state = read(segment, state)
        torch.testing.assert_close(state["memory"], expected["memory"], **CLOSE)
    assert all(read._read._calls.values())
    slots, step = CacheSlots(keep_allocated=True), StepGraphs(memory.step, CUDAGraphs(DEVICE))
    twins = CacheSlots()
    for row, one in enumerate(state.split()):
        slots.add(memory.open(one, tokens[row : row + 1, :4])[0])
        twins.add(memory.open(one, tokens[row : row + 1, :4])[0])
    for at in range(4, 12):
        expected = memory.step(twins.rows, tokens[:, at])
        torch.testing.assert_close(step(slots, tokens[:, at]), expected, **CLOSE)
    assert all(step._graphs.values())


def test_kernels_are_compiled_for_the_models_sizes_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, compilation happens at load, so that no request waits for it."""
    asked: list[tuple[Any, ...]] = []

    def shapes(*given: Any, **_: Any) -> None:
        asked.append(tuple(tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in given))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("norm_rotate", "norm_gate", "norm_add"):
        monkeypatch.setattr(layer_kernels, name, shapes)
    assert layer_kernels.available(There(), *KIND, **LAYER)
    rotate = [((1, 1, 4, 8), 3, (1, 1, 16), (32,), turns, turns, 1.0, None) for turns in ((1, 1, 1, 8), (1, 1, 1, 6))]
    assert sorted(asked[:2]) == sorted(rotate)
    assert asked[2:] == [((1, 1, 64), None, None, 1.0, Activation.SILU), ((1, 1, 16), (1, 1, 16), (16,), 1.0)]


class There:
    """Weights of a GPU."""

    device, dtype = torch.device("cuda"), torch.bfloat16

    def new_zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape)


def test_without_a_working_triton_a_warning_is_logged_and_pytorch_used(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(layer_kernels, "norm_rotate", refuses)

    with caplog.at_level(logging.WARNING):
        assert not layer_kernels.available(There(), *KIND, **LAYER)
    assert "Failed to find C compiler" in caplog.text
