"""A step whose attention is one query's a row, as a GPU computes it, equals the step of PyTorch's operations, its naive twin. Without a
GPU, Triton interprets the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from everlong_models import attended as kernels
from everlong_models import fused
from everlong_models.attended import attended
from everlong_models.cache import Slots
from everlong_models.compressive import Compressive, CompressiveConfig
from everlong_models.graphs import CUDAGraphs, StepGraphs
from everlong_models.lamemo import LaMemo, LaMemoConfig
from everlong_models.relative import RelativeAttention, RelativePositions
from everlong_models.scratch import ScratchReader
from everlong_models.transformer_xl import TransformerXL, TransformerXLConfig
from tests.models.laws import tokens
from tests.models.pretended import DEVICE, REAL
from tests.models.twins import SMALL, random_weights

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
    """Kernels are taken, whatever the device; what would be compiled is run."""

    def run_it(weight: Tensor, run) -> bool:
        run()
        return True

    monkeypatch.setattr(fused, "compiles", run_it)


@torch.no_grad()
@pytest.mark.parametrize("name", MEMORIES)
def test_a_step_is_what_pytorch_computes(compiles: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of rows of different lengths, behind memories that are empty, partly filled and full; and what their segments leave."""
    monkeypatch.setattr(kernels, "_TILE", 32)  # four keys
    plain, fast = (random_weights(MEMORIES[name]()).float().to(WHERE) for _ in range(2))
    fast.optimize()
    S = plain.segment_length
    text = tokens(plain, 3, 4 * S).to(WHERE)
    results = []
    for model in (plain, fast):
        slots = Slots()
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
    """One entry for each call of the kernels by a step from here on."""
    calls: list[None] = []
    monkeypatch.setattr("everlong_models.scratch.attended", lambda *given: calls.append(None) or attended(*given))
    return calls


B, H = 3, 2


def case(keys: int, dim: int, dtype: torch.dtype) -> tuple[RelativeAttention, tuple[Tensor, ...], Tensor, Tensor, RelativePositions]:
    """A layer, its queries, keys and values, where the queries are, what they see, and the positions; of large scores. Keys and
    values lie as in a cache of two layers, beside a number that belongs to neither, so that no address is a multiple of anything."""
    made = torch.Generator().manual_seed(keys + dim)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(WHERE, dtype)

    attention, positions = RelativeAttention(12, H, dim), RelativePositions(12, H, dim, "signed")
    for parameter in (*attention.parameters(), *positions.parameters()):
        parameter.data = random(*parameter.shape)
    cache = random(B * 2 * 2 * H * keys * (dim + 1) + 1)[1:].view(B, 2, 2, H, keys, dim + 1)[..., :dim]
    at = torch.tensor([keys - 1, 0, keys // 2], device=WHERE)
    visible = torch.rand(B, 1, keys, generator=made).to(WHERE) < 0.6
    place = torch.arange(keys, device=WHERE)
    visible = (visible & (place < at[:, None, None])) | (place == at[:, None, None])
    visible[0, 0, : keys // 2] = False  # of a part, and more, nothing
    return attention, (random(B, H, 1, dim), cache[:, 1, 0], cache[:, 1, 1]), at, visible, positions


def both(keys: int, dim: int, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], ...]:
    """Contexts (B, 1, H, d) and log masses (B, H, 1, 1) of a case: in float64, by PyTorch's operations, by the kernels."""
    attention, given, at, visible, positions = case(keys, dim, dtype)
    results = []
    behind = positions.to_behind_each(at, keys)
    q, k, v = given
    along = attention.along(q + behind.v, behind.encoding)
    mine = attended(q, k, v, behind.u, along, at, visible)
    for type_ in (torch.float64, dtype):
        behind = positions.to(type_).to_behind_each(at, keys)
        scores = attention.to(type_).scores(q.to(type_), k.to(type_), behind, visible)
        results.append((attention.mix(scores, v.to(type_)), scores.logsumexp(-1, keepdim=True)))
    return (*results, mine)


@torch.no_grad()
@pytest.mark.parametrize(("keys", "dim", "tile"), [(23, 5, 32), (9, 8, 4096), (1, 1, 4096), (40, 3, 8), (6, 12, 16)])
def test_contexts_and_masses(monkeypatch: pytest.MonkeyPatch, keys: int, dim: int, tile: int) -> None:
    """Of several parts, the last of which is not full, or one; parts of which nothing is visible; more parts than are joined at once;
    heads that are no power of two."""
    monkeypatch.setattr(kernels, "_TILE", tile)
    (exact, mass), _, mine = both(keys, dim, torch.float32)
    torch.testing.assert_close(mine[0], exact.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine[1], mass.float(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_bfloat16_is_no_further_from_what_is_exact_than_pytorchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TILE", 64)
    errors = torch.zeros(2, 2)
    for keys in (24, 25, 26):
        exact, *others = both(keys, 8, torch.bfloat16)
        assert others[1][0].dtype == torch.bfloat16
        errors += torch.tensor(
            [[float((got - right).norm() / right.norm()) for got, right in zip(pair, exact, strict=True)] for pair in others]
        )
    theirs, ours = errors
    assert (0 < ours).all()
    assert (ours < theirs).all()
