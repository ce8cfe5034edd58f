"""Weights as they are after loading a four-bit GGUF file."""

from __future__ import annotations

import torch

from everlong_models.kernels.cpu.simd import GROUP


def q4_weights(rows: int, columns: int, size: float = 1.0) -> torch.Tensor:
    """Return weights as llama.cpp's Q4_1 dequantises them: m + d·q with q in 0 … 15, half-precision d and m per group of 32.

    Their magnitude is about 0.15 · `size`.
    """
    torch.manual_seed(0)
    q = torch.randint(0, 16, (rows, columns // GROUP, GROUP)).float()
    q[..., 3], q[..., 30] = 0, 15
    d, m = (torch.rand(rows, columns // GROUP, 1) * scale * size for scale in (0.02, -0.15))
    return (q * d.half().float() + m.half().float()).flatten(1)
