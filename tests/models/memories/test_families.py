"""The laws of the memories around the fast path of every family: chunks, and decode steps, change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from everlong_models.backbone.backbone import Backbone
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.compact import Compact, CompactConfig
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.window import Window, WindowConfig
from tests.models import tiny_families

MEMORIES: dict[str, Any] = {
    "window": lambda backbone: Window(WindowConfig(segment_length=16, sinks=3, window=20), backbone),
    "rmt": lambda backbone: RMT(RMTConfig(segment_length=16, memory_tokens=3), backbone),
    "compact": lambda backbone: Compact(CompactConfig(segment_length=16, entries=20, pinned=2, queries=8), backbone),
}


def build(family: str, memory: str) -> SegmentReader:
    # Where Phi 3's frequencies change with the length, steps differ from a whole pass by design, in transformers, too.
    sizes = {"original_max_position_embeddings": 1024} if family == "phi3" else {}
    torch.manual_seed(0)
    model = tiny_families.model(family, **sizes)
    tiny_families.randomise(model, 0.2)
    backbone = Backbone(model.double().eval())
    made: SegmentReader = MEMORIES[memory](backbone).eval()
    assert backbone.optimize() is None
    made.optimize()
    return made


FEW = ("llama", "gemma3_text", "phi3", "smollm3")
"""With and without windows, whole and partial rotation, and layers that rotate nothing."""


@torch.no_grad()
@pytest.mark.parametrize(
    ("memory", "family"),
    [
        pytest.param(memory, family, marks=() if memory == "window" or family in FEW else pytest.mark.long)
        for memory in MEMORIES
        for family in tiny_families.SWITCHES
    ],
)
def test_chunks_and_steps_change_nothing(family, memory):
    model = build(family, memory)
    tokens = torch.randint(97, (2, 72), generator=torch.Generator().manual_seed(1))
    state = model.read(tokens[:, :64], model.initial_state(2))
    again = model.read(tokens[:, 16:64], model.read(tokens[:, :16], model.initial_state(2)))
    assert all(torch.equal(state[name], again[name]) for name in state)
    expected = model.forward(tokens[:, 64:], state)
    cache, logits = model.open(state, tokens[:, 64:66])
    close = {"rtol": 1e-9, "atol": 1e-9} if memory != "compact" else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(logits, expected[:, 1], **close)
    for n in range(66, 72):
        torch.testing.assert_close(model.step(cache, tokens[:, n]), expected[:, n - 64], **close)
    alone, _ = model.open(state.split()[1], tokens[1:, 64:])
    after, both = model.close(alone), model.close(cache).split()[1]
    assert all(torch.allclose(after[name].double(), both[name].double(), rtol=1e-6, atol=1e-6) for name in after)
