"""`load`: loads the model that the settings name."""

from __future__ import annotations

import torch

from everlong_models.backbone.loading import DEFAULT_BACKBONE, Progress
from everlong_models.kernels.cpu import sampling_kernel, thread_pool
from everlong_models.model import DEFAULT_MODEL, Model, load_model
from everlong_server.settings import Settings
from everlong_server.store.texts.vectors import load_embedder


def load(settings: Settings, progress: Progress) -> Model:
    """Load the model. Blocks for seconds; for half a minute the first time. Raises the errors of `load_model`."""
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
    load_embedder(settings.embeddings)  # refuses a folder without one before the server starts
    if device == "cpu":
        thread_pool.prepare(sampling_kernel.sample)  # compile now, so that the first answer does not wait
    return model
