"""`load`: loads the model that the settings name, or the machine's default."""

from __future__ import annotations

import torch
from rich.markup import escape

from everlong_models.backbone.loading import Progress
from everlong_models.kernels.cpu import sampling_kernel, thread_pool
from everlong_models.model import Model, load_model
from everlong_server.process.served_model import served_model
from everlong_server.settings import Settings
from everlong_server.store.search.vectors import load_embedder


def load(settings: Settings, progress: Progress) -> Model:
    """Load the model. Blocks for seconds; the first time for as long as the download takes. Raises the errors of `load_model`."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(
        served_model(settings, progress),
        models_dir=settings.models_dir.expanduser(),
        memory=settings.memory,
        options=settings.memory_options,
        device=device,
        quantize=settings.quantize,
        bfloat16=settings.bfloat16,
        progress=lambda message: progress(escape(message)),
    )
    load_embedder(settings.embeddings)  # refuses a folder without one before the server starts
    if device == "cpu":
        thread_pool.prepare(sampling_kernel.sample)  # compile now, so that the first answer does not wait
    return model
