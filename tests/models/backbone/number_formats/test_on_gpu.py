"""Quantised weights on the stand-in for a GPU: devices never mix, and a decode step can be captured as a CUDA graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from everlong_models.backbone.loading import load_backbone
from everlong_models.memories.base import SegmentReader
from everlong_models.model import MEMORIES, memory_config
from tests.models.backbone.number_formats.tiny import distance, save
from tests.models.fake_gpu import DEVICE, GPU, gpu
from tests.models.memory_contract import tokens
from tests.models.test_gpu import OPTIONS, S, script

pytest.importorskip("torchao")
pytestmark = pytest.mark.long


def built(name: str, folder: Path, method: Any, *, moved: bool = False) -> SegmentReader:
    backbone, _ = load_backbone(str(folder), models_dir=folder.parent, gpu_quantize=method)
    if moved:
        move(backbone.model)
    return MEMORIES[name].build(memory_config(name, dict(OPTIONS[name])), backbone).eval()


def move(model: nn.Module) -> None:
    """Move all tensors to the device, those inside of quantised ones too: the stand-in's tensors must be the innermost."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(DEVICE))
        for name, weight in list(module.named_parameters(recurse=False)):
            moved: Any = weight.data
            if hasattr(moved, "__tensor_flatten__"):
                names, context = moved.__tensor_flatten__()
                parts = {part: getattr(moved, part).to(DEVICE) for part in names}
                moved = type(moved).__tensor_unflatten__(parts, context, moved.shape, moved.stride())
            else:
                moved = moved.to(DEVICE)
            setattr(module, name, nn.Parameter(moved, requires_grad=False))


@pytest.mark.parametrize("method", ["int8", "fp8"])
@pytest.mark.parametrize("name", ["window", "rmt", "compact"])
def test_results_equal_those_of_a_cpu_and_a_step_does_not_wait(name: str, method: Any, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "llama")
    memory = built(name, folder, method)
    text = tokens(memory, 2, 3 * S)
    expected = script(memory, text)
    with gpu():
        memory = built(name, folder, method, moved=True)
        there = script(memory, text.to(DEVICE))
        assert there.keys() == expected.keys()
        for key, tensor in there.items():
            # by its norm: `compact` rounds keys to 16 bits, where the last bit of a float may round to another number
            assert torch.equal(tensor.cpu(), expected[key]) or distance(tensor.cpu(), expected[key]) < 1e-4, key
        with torch.inference_mode():
            cache, _ = memory.open(memory.initial_state(2), text[:, :3].to(DEVICE))
            following = text[:, 3].to(DEVICE)
            GPU.recording = True
            try:
                memory.step(cache, following)
            finally:
                GPU.recording = False
