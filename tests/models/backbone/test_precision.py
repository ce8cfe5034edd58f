"""Training on a GPU, as far as a CPU shows it: a frozen backbone of bfloat16, a memory of float32, both under autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from everlong_lab.tasks.greedy import answer
from everlong_models.backbone.precision import in_full, under_autocast
from everlong_models.memories.armt import Projections, memorise, recall
from everlong_models.memories.base import SegmentReader
from everlong_models.model import MEMORIES, memory_config
from tests.models.tiny import VOCAB, llama

AROUND: list[tuple[str, dict[str, Any]]] = [
    ("rmt", {"memory_tokens": 3}),
    ("armt", {"memory_tokens": 3, "memory_width": 4}),
    ("armt", {"memory_tokens": 3, "memory_width": 4, "diagonals": True}),
    ("infinite", {"basis": 8, "samples": 8}),
]
CPU = torch.device("cpu")


def made(name: str, options: dict[str, Any], dtype: torch.dtype) -> SegmentReader:
    backbone = llama(dtype)
    backbone.model.requires_grad_(False)
    memory = MEMORIES[name].build(memory_config(name, {"segment_length": 12, **options}), backbone)
    for parameter in memory.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return memory


@pytest.mark.parametrize(("name", "options"), AROUND)
def test_training_and_answering_work_under_autocast(name: str, options: dict[str, Any]) -> None:
    memory = made(name, options, torch.bfloat16)
    text = torch.randint(0, VOCAB, (2, 36), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        state, loss = memory.initial_state(2), torch.zeros(())
        for segment in text.split(12, dim=1):
            logits, state, _ = memory.training_segment(segment, state)
            loss = loss + logits.float().logsumexp(-1).mean()
        loss.backward()
        with torch.no_grad():
            read = memory.read(text, memory.initial_state(2))
            (given,) = answer(memory, memory.initial_state(1), text[:1, :3], most=14, ends=())
    assert len(given) == 14, "beyond its segment"
    assert {tensor.dtype for tensor in read.tensors.values() if tensor.is_floating_point()} == {torch.float32}
    learning = [parameter for parameter in memory.parameters() if parameter.requires_grad]
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in learning)


def test_sums_keep_their_precision_under_autocast() -> None:
    """ARMT's associative memory is the same with and without autocast if the projections are rounded either way."""
    generator = torch.Generator().manual_seed(0)

    def few(*shape: int, most: int = 1) -> Tensor:
        return torch.randint(-most, most + 1, shape, generator=generator).float()

    V, d = 16, 4
    by = Projections(few(d, 16), few(d, 16), few(V, 16), few(16) / 8, torch.zeros(0))
    exact, rough = ([torch.zeros(1, V, 6 * d), torch.zeros(1, 6 * d)] for _ in range(2))
    for _ in range(64):
        h = few(1, 3, 16, most=2)
        exact = list(memorise(h, *exact, by, 1e-3))
        with torch.autocast("cpu", torch.bfloat16):
            rough = list(memorise(h, *rough, by, 1e-3))
            assert torch.equal(recall(h, *rough, by, 1e-3), recall(h, *exact, by, 1e-3))
    assert torch.equal(rough[0], exact[0])
    assert torch.equal(rough[1], exact[1])
    assert not torch.equal(exact[0].bfloat16().float(), exact[0]), "bits there are to lose"


def test_autocast_is_disabled_inside_and_restored_after() -> None:
    assert not under_autocast(CPU)
    with torch.autocast("cpu", torch.bfloat16):
        assert under_autocast(CPU)
        with in_full(CPU):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
