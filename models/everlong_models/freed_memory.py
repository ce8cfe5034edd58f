"""`release_memory`, `release_gpu_memory`: give freed memory back to the system."""

from __future__ import annotations

import ctypes

import torch


def release_memory() -> None:
    """Return memory that was freed to the system. Call it after much work: the C library would keep 0.3 GB or more of what
    activations, texts and their tokens took."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def release_gpu_memory() -> None:
    """Return GPU memory that was freed, and that PyTorch keeps for later."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
