"""Every family computes what transformers computes, and docs/guide/models.md says what is fast and which memories take it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.decoder.fusing import can_fuse
from everlong_models.backbone.description import FAMILIES, describe
from everlong_models.backbone.gguf import families as gguf_families
from everlong_models.errors import BackboneError, ConfigError
from everlong_models.kernels.cpu.quantised_matrix import GROUP, can_quantise
from everlong_models.kernels.gpu import layer_kernels
from everlong_models.memories.armt import ARMT, ARMTConfig
from everlong_models.memories.compact import Compact, CompactConfig
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.window import Window, WindowConfig
from everlong_models.model import MEMORIES as KINDS_OF_MEMORIES
from tests.models import tiny_families

PAGE = Path(__file__).parents[3] / "docs/guide/models.md"
KINDS = [*tiny_families.SWITCHES, *tiny_families.OTHERS]
MEMORIES: dict[str, Callable[[Backbone], Any]] = {
    "window": lambda backbone: Window(WindowConfig(segment_length=16, sinks=3, window=20), backbone),
    "rmt": lambda backbone: RMT(RMTConfig(segment_length=16, memory_tokens=3), backbone),
    "compact": lambda backbone: Compact(CompactConfig(segment_length=16, entries=20), backbone),
    "armt": lambda backbone: ARMT(ARMTConfig(segment_length=16, memory_tokens=3), backbone),
    "infinite": lambda backbone: InfiniteFormer(InfiniteConfig(segment_length=16, basis=8), backbone),
}


def make(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = tiny_families.model(kind)
    tiny_families.randomise(model, 0.2)
    return model.eval()


def test_every_fast_family_is_tested():
    assert set(tiny_families.SWITCHES) == set(FAMILIES)


@pytest.mark.parametrize("kind", [*KINDS, *tiny_families.VARIANTS])
@torch.no_grad()
def test_logits_are_those_of_transformers_at_every_position(kind):
    model = make(kind)
    tokens = torch.randint(97, (2, 80), generator=torch.Generator().manual_seed(1))
    expected = model(tokens).logits
    backbone = Backbone(model)
    assert (backbone.optimize() is None) == (kind not in tiny_families.OTHERS)
    found = backbone.logits(backbone.hidden(backbone.embed(tokens)))
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert float((found - expected).norm(dim=-1).max() / expected.norm(dim=-1).mean()) < 1e-4


@pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")
@pytest.mark.parametrize("kind", tiny_families.mark_rare_long([*tiny_families.SWITCHES, *tiny_families.VARIANTS]))
@torch.no_grad()
def test_logits_of_quantised_decode_steps_are_near_those_of_transformers(kind):
    """Within 2 % with weights of eight bits. (With weights that four bits hold exactly: tests/models/kernels/cpu/test_quantised_steps.py.)"""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "original_max_position_embeddings": 1024}
    model = tiny_families.model(kind, **sizes).eval()
    tokens = torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(1))
    expected, backbone = model(tokens).logits, Backbone(model)
    assert backbone.optimize(quantize=True) is None
    assert backbone._optimised is not None
    assert backbone._optimised.decoding is not None
    x, kv = backbone.embed(tokens), backbone.new_kv(2, 40)
    backbone.hidden(x[:, :20], kv=kv)
    for n in range(20, 40):
        found = backbone.logits(backbone.hidden(x[:, n : n + 1], kv=kv, at=torch.tensor([n, n]))[:, -1])
        error = float((found - expected[:, n]).norm() / expected[:, n].norm())
        assert 1e-5 < error < 0.02


def row(kind: str) -> tuple[str, str, str, str, str]:
    """What the page says about a family."""
    model = make(kind)
    fast = kind in FAMILIES
    fused = fast and can_fuse(describe(model), model.get_output_embeddings().weight)
    taken = []
    for name, build in MEMORIES.items():
        backbone = Backbone(make(kind))
        try:
            memory = build(backbone)
            if KINDS_OF_MEMORIES[name].whole:
                backbone.optimize()
            memory.optimize()
        except (BackboneError, ConfigError):
            continue
        taken.append(f"`{name}`")
    answers = [fast, fused, kind in gguf_families.FAMILIES]
    return (kind, *("yes" if answer else "no" for answer in answers), ", ".join(taken))  # type: ignore[return-value]


@pytest.mark.long
def test_the_page_lists_every_family(monkeypatch):
    monkeypatch.setattr(layer_kernels, "compiles", lambda *_: True)  # as on a GPU
    line = r"^\| `(\w+)` \| [^|]+ \| (yes|no) \| (yes|no) \| (yes|no) \| ([^|]+) \|$"
    assert re.findall(line, PAGE.read_text(), re.M) == [row(kind) for kind in KINDS]
