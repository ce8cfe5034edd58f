"""Decode attention in Triton equals PyTorch's operations, its naive twin. Without a GPU, Triton interprets the kernels."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from everlong_lab.benchmarks import flat
from everlong_models.backbone.cache import CacheSlots
from everlong_models.generate.cuda_graphs import CUDAGraphs, StepGraphs
from everlong_models.kernels.gpu import attention_kernel as kernels
from everlong_models.kernels.gpu import layer_kernels
from everlong_models.kernels.gpu.attention_kernel import decode_attention
from everlong_models.memories.relative import decoder
from everlong_models.memories.relative.attention import RelativeAttention, RelativePositions
from everlong_models.memories.relative.compressive import Compressive, CompressiveConfig
from everlong_models.memories.relative.decoder import RelativeDecoder
from everlong_models.memories.relative.lamemo import LaMemo, LaMemoConfig
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from everlong_models.model import load_model
from everlong_models.weights import Manifest, save_weights
from tests.models.fake_gpu import DEVICE, REAL
from tests.models.kernels.gpu.test_layer_kernels import There, compiled_by
from tests.models.memory_contract import tokens
from tests.models.model_folders import VOCAB
from tests.models.naive_relative import SMALL, random_weights
from tests.tinymodel import make_tokenizer

pytest.importorskip("triton")
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
WHERE = "cuda" if REAL else "cpu"

MEMORIES = {
    "transformer_xl": lambda: TransformerXL(TransformerXLConfig(**SMALL, memory_length=5)),
    "no memory": lambda: TransformerXL(TransformerXLConfig(**SMALL, memory_length=0)),
    "compressive": lambda: Compressive(
        CompressiveConfig(**SMALL, memory_length=8, compressed_length=4, compression_rate=2)
    ),
    "lamemo": lambda: LaMemo(LaMemoConfig(**SMALL, memory_length=8)),
    "lamemo, signed": lambda: LaMemo(LaMemoConfig(**SMALL, memory_length=8, positions="signed")),
}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels on any device; run what would be compiled."""

    def run_it(weight: Tensor, run) -> bool:
        run()
        return True

    monkeypatch.setattr(layer_kernels, "compiles", run_it)


@torch.no_grad()
@pytest.mark.parametrize("name", MEMORIES)
def test_a_step_is_what_pytorch_computes(compiles: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of rows of different lengths, behind memories that are empty, partly filled and full; and what their segments leave."""
    monkeypatch.setattr(kernels, "_TILE", 64)  # eight keys
    plain, fast = (random_weights(MEMORIES[name]()).float().to(WHERE) for _ in range(2))
    fast.optimize()
    S = plain.segment_length
    text = tokens(plain, 3, 4 * S).to(WHERE)
    results = []
    for model in (plain, fast):
        slots = CacheSlots()
        for row, (segments, at) in enumerate([(0, 1), (1, S // 2), (3, S - 2)]):
            state = plain.read(text[row : row + 1, : segments * S], plain.initial_state(1))
            slots.add(plain.open(state, text[row : row + 1, -at:])[0])
        calls = counted(monkeypatch)
        logits = [model.step(slots.rows, text[:, t]) for t in range(2)]
        assert len(calls) == (2 * len(model.blocks) if model is fast else 0)
        results.append((logits, model.close(slots.rows)))
    (expected, state), (got, after) = results
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    for key in state:
        torch.testing.assert_close(after[key], state[key], **CLOSE)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list that gets one entry for each call of the kernels by a step."""
    calls: list[None] = []
    monkeypatch.setattr(decoder, "decode_attention", lambda *given: calls.append(None) or decode_attention(*given))
    return calls


B, H = 3, 2


def computed(keys: int, dim: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Contexts (B, 1, H, d) and log masses (B, H, 1, 1) of large scores: in float64, by PyTorch's operations, by the kernels.

    Keys lie as in a cache of two layers, beside a number that belongs to none, so that no address is a multiple of anything;
    values otherwise. The kernels look at no number in what is not visible.
    """
    made = torch.Generator().manual_seed(keys + dim)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(WHERE, dtype)

    attention, positions = RelativeAttention(12, H, dim), RelativePositions(12, H, dim, "signed")
    for parameter in (*attention.parameters(), *positions.parameters()):
        parameter.data = random(*parameter.shape) * 0.4
    q, k = random(B, H, 1, dim), random(B * 2 * H * keys * (dim + 1) + 1)[1:].view(B, 2, H, keys, -1)[:, 1, ..., :dim]
    v = random(B, keys, H, dim).transpose(1, 2)
    at, place = torch.tensor([keys - 1, 0, keys // 2], device=WHERE), torch.arange(keys, device=WHERE)
    visible = torch.rand(B, 1, keys, generator=made).to(WHERE) < 0.6
    visible = (visible & (place < at[:, None, None])) | (place == at[:, None, None])
    visible[0, 0, : keys // 2] = False  # of a part, and more, nothing
    results = []
    for exact in (torch.float64, dtype):
        behind = positions.to(exact).keys_behind_each_row(at, keys)
        scores = attention.to(exact).scores(q.to(exact), k.to(exact), behind, visible)
        results.append((attention.mix(scores, v.to(exact)), scores.logsumexp(-1, keepdim=True)))
    for tensor in (k, v):
        tensor.masked_fill_(~visible.mT[:, None], torch.nan)
    along = attention.distance_scores(q + behind.v, behind.encoding)
    return [*results, decode_attention(q, k, v, behind.u, along, at, visible)]


@torch.no_grad()
@pytest.mark.parametrize(("keys", "dim", "tile"), [(23, 5, 32), (9, 8, 4096), (1, 1, 4096), (14, 3, 8), (6, 12, 16)])
def test_contexts_and_masses(monkeypatch: pytest.MonkeyPatch, keys: int, dim: int, tile: int) -> None:
    """Of several parts, the last of which is not full, or one; parts of which nothing is visible; more parts than are joined at once;
    heads that are no power of two."""
    monkeypatch.setattr(kernels, "_TILE", tile)
    (exact, mass), _, mine = computed(keys, dim, torch.float32)
    torch.testing.assert_close(mine[0], exact.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine[1], mass.float(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_bfloat16_is_no_further_from_what_is_exact_than_pytorchs_operations() -> None:
    errors = torch.zeros(2, 2)
    for keys, dim in itertools.product(range(60, 64), (8, 16, 32)):
        exact, *others = computed(keys, dim, torch.bfloat16)
        assert others[1][0].dtype == torch.bfloat16
        errors += torch.tensor(
            [[(a - b).norm() / b.norm() for a, b in zip(pair, exact, strict=True)] for pair in others]
        )
    (theirs, their_mass), (ours, our_mass) = errors
    assert 0 < ours < 1.1 * theirs  # most of both is that contexts are of 16 bits
    assert 0 < our_mass < their_mass


@pytest.mark.long
def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """For an H100, in bfloat16, with the types of a launch; see test_layer_kernels.py."""
    assert compiled_by(COMPILE, tmp_path) == ["_attend_part", "_merge_parts"]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from everlong_models.kernels.gpu import attention_kernel

SIZES = {"heads": 4, "count": 812, "dim": 64, "parts": 13, "parts_block": 16, "block": 64, "dim_block": 64}
OTHERS = {name: "*fp32" for name in ("contexts", "masses", "mass")} | {"scale": "fp32", "at": "*i64", "visible": "*u1"}
for kernel in (attention_kernel._attend_part, attention_kernel._merge_parts):
    names = kernel.arg_names
    given = {name: "i32" if name.startswith(("key_", "value_")) else OTHERS.get(name, "*bf16") for name in names}
    signature = {name: "constexpr" if name in SIZES else given[name] for name in names}
    sizes = {(place,): SIZES[name] for place, name in enumerate(names) if name in SIZES}
    whole = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name not in (*SIZES, "scale")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=sizes, attrs=whole)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
    assert kernel is attention_kernel._merge_parts or compiled.asm["ptx"].count("ld.global.v4") > 4, "keys are not read 16 bytes at once"
    print(kernel.__name__)
"""


@torch.no_grad()
@pytest.mark.skipif(REAL, reason="there is a GPU")
def test_without_a_gpu_a_step_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = random_weights(MEMORIES["lamemo"]())
    memory.optimize()
    calls = counted(monkeypatch)
    cache, _ = memory.open(memory.initial_state(), tokens(memory, 1, 2))
    memory.step(cache, torch.zeros(1, dtype=torch.int64))
    assert not calls


@torch.no_grad()
def test_without_a_working_triton_a_warning_is_logged_and_pytorch_used(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    compiles = layer_kernels.compiles
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(layer_kernels, "compiles", lambda _, run: compiles(There(), run))
    monkeypatch.setattr(decoder, "decode_attention", refuses)
    memory = random_weights(MEMORIES["compressive"]())
    with caplog.at_level(logging.WARNING):
        memory.optimize()
    assert "Failed to find C compiler" in caplog.text
    cache, _ = memory.open(memory.initial_state(), tokens(memory, 1, 2))
    assert memory.step(cache, torch.zeros(1, dtype=torch.int64)).isfinite().all()


def test_models_are_optimised_at_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its weights, and where they stay."""
    seen: list[float] = []
    monkeypatch.setattr(
        RelativeDecoder, "optimize", lambda memory: seen.append(float(memory.embedding.weight.detach().sum()))
    )
    config = TransformerXLConfig(**(SMALL | {"vocab_size": VOCAB}))
    memory = random_weights(TransformerXL(config)).float()
    save_weights(tmp_path, Manifest(memory={"name": "transformer_xl", **config.model_dump()}), memory)
    make_tokenizer(VOCAB).save_pretrained(tmp_path)
    load_model(str(tmp_path), models_dir=tmp_path)
    measured = flat._built("compressive", lambda: None, "cpu")
    assert seen == [float(model.embedding.weight.detach().sum()) for model in (memory, measured)]


@pytest.mark.skipif(not REAL, reason="no GPU is here")
@torch.inference_mode()
@pytest.mark.parametrize("name", MEMORIES)
def test_results_with_cuda_graphs_equal_those_without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Three rows, so that a place behind them is computed as well; nothing is compiled any more."""
    plain, fast = (random_weights(MEMORIES[name]()).float().to(WHERE) for _ in range(2))
    fast.optimize()
    compiled = [len(kernel.device_caches[DEVICE.index][0]) for kernel in (kernels._attend_part, kernels._merge_parts)]
    calls, step = counted(monkeypatch), StepGraphs(fast.step, CUDAGraphs(DEVICE))
    text = tokens(plain, 3, 2 * plain.segment_length).to(WHERE)
    slots, twins = CacheSlots(keep_allocated=True), CacheSlots()
    for row in range(3):
        state = plain.read(text[row : row + 1, : plain.segment_length], plain.initial_state(1))
        for rows in (slots, twins):
            rows.add(plain.open(state, text[row : row + 1, -row - 1 :])[0])
    for at in range(4):
        expected = plain.step(twins.rows, text[:, at])
        torch.testing.assert_close(step(slots, text[:, at]), expected, **CLOSE)
    assert all(step._graphs.values())
    assert calls
    assert compiled == [
        len(kernel.device_caches[DEVICE.index][0]) for kernel in (kernels._attend_part, kernels._merge_parts)
    ]
