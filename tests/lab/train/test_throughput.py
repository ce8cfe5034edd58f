"""The estimated FLOPs equal those that torch counts, except for attention and memory tokens."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from everlong_lab.train.throughput import flops_per_token, matmul_peak
from everlong_models.memories.rmt import RMT, RMTConfig
from tests.lab.tasks.losses import document_loss
from tests.models.tiny import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frozen", [False, True])
def test_flops_are_those_of_the_weights(family: str, frozen: bool) -> None:
    backbone = FAMILIES[family]()
    backbone.model.requires_grad_(not frozen)
    memory = RMT(RMTConfig(segment_length=60, memory_tokens=1), backbone)
    tokens = torch.randint(0, memory.vocab_size, (2, 120))
    with FlopCounterMode(display=False) as counter:
        document_loss(memory, tokens).backward()
    assert 0.75 < flops_per_token(memory) * tokens.numel() / counter.get_total_flops() <= 1


def test_a_peak_is_measured() -> None:
    size = 1536
    product = 2 * size**3
    peak = matmul_peak(torch.device("cpu"), torch.float32, seconds=0)
    before = torch.get_rng_state()
    matmul_peak(torch.device("cpu"), torch.float32, seconds=0)
    assert torch.equal(torch.get_rng_state(), before), "a run that is resumed has drawn others"
    assert product / 60 < peak < 1e16  # a product takes less than a minute, and no chip is that fast
