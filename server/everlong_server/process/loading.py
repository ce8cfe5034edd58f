"""`load`: the model that a server's settings name."""

from __future__ import annotations

import torch

from everlong_models.backbone.loading import DEFAULT_BACKBONE, Progress
from everlong_models.kernels.cpu import sampling_kernel, thread_pool
from everlong_models.model import DEFAULT_MODEL, Model, load_model
from everlong_server.settings import Settings


def load(settings: Settings, progress: Progress) -> Model:
    """Blocking: seconds, and half a minute the first time. Raises as `load_model` does."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(
        settings.model or (DEFAULT_BACKBONE if settings.memory else DEFAULT_MODEL),
        models_dir=settings.models_dir.expanduser(),
        memory=settings.memory,
        options=settings.memory_options,
        device=device,
        quantize=settings.quantize,
        bfloat16=settings.bfloat16,
        progress=progress,
    )
    if device == "cpu":
        thread_pool.prepare(sampling_kernel.sample)  # or the first answer waits for it
    return model
