"""How much of what the matrix units can do a run uses."""

from __future__ import annotations

import time

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from everlong_models.memories.base import SegmentReader


def flops_per_token(memory: SegmentReader) -> int:
    """Matmul FLOPs that a step needs for a token: 2 a weight forward, 2 for the gradient of what enters it, and 2 more for
    that of a weight that learns (Chowdhery et al. 2022, appendix B, by weight).

    An estimate. Not counted: attention's own products, a memory's, and what is computed again for want of room. Counted though
    it may be left out: the head's products and the gradients for segments without a target, of which a recipe that only asks at
    the end of a document has many.
    """
    counted = 0
    for module in memory.modules():
        if isinstance(module, nn.Linear | Conv1D):
            counted += module.weight.numel() * (6 if module.weight.requires_grad else 4)
    return counted


def matmul_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.5) -> float:
    """FLOP/s of a large product, the best of those tried within `seconds`."""
    size = 8192 if device.type == "cuda" else 1536
    # Of a generator of its own: a run's numbers follow from its seed alone.
    numbers = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, dtype=dtype, generator=numbers) for _ in range(2))
    best, began = 0.0, time.monotonic()
    while True:
        _wait(device)
        start = time.perf_counter()
        torch.mm(a, b)
        _wait(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
        if time.monotonic() - began > seconds:
            return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
