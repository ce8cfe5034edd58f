"""The share of the device's matmul peak that a training run uses."""

from __future__ import annotations

import time

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from everlong_models.memories.base import SegmentReader


def flops_per_token(memory: SegmentReader) -> int:
    """Estimate the matmul FLOPs that a training step needs per token.

    Per weight: 2 forward, 2 for the gradient of the input, and 2 more for the gradient of a weight that learns (Chowdhery
    et al. 2022, appendix B). Not counted: attention's and a memory's own products, and recomputed activations. Counted
    although they may be skipped: the head's products and the gradients of segments without a target.
    """
    counted = 0
    for module in memory.modules():
        if isinstance(module, nn.Linear | Conv1D):
            counted += module.weight.numel() * (6 if module.weight.requires_grad else 4)
    return counted


def matmul_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.5) -> float:
    """Return the FLOP/s of a large matrix product, the best of those tried within `seconds`."""
    size = 8192 if device.type == "cuda" else 1536
    # A generator of its own: a run's random numbers must depend on its seed alone.
    numbers = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, dtype=dtype, generator=numbers) for _ in range(2))
    best, began = 0.0, time.monotonic()
    while True:
        _synchronise(device)
        start = time.perf_counter()
        torch.mm(a, b)
        _synchronise(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
        if time.monotonic() - began > seconds:
            return best


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
