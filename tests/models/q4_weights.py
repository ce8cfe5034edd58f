"""Weights as a file of four bits restores them."""

from __future__ import annotations

import torch

from everlong_models.kernels.cpu.simd import GROUP


def q4_weights(rows: int, columns: int, size: float = 1.0) -> torch.Tensor:
    """Weights as llama.cpp's Q4_1 restores them: 16 steps of d from m, both of half precision, in groups of 32; of about `size`
    times 0.15."""
    torch.manual_seed(0)
    q = torch.randint(0, 16, (rows, columns // GROUP, GROUP)).float()
    q[..., 3], q[..., 30] = 0, 15
    d, m = (torch.rand(rows, columns // GROUP, 1) * scale * size for scale in (0.02, -0.15))
    return (q * d.half().float() + m.half().float()).flatten(1)
