"""`load`: loads the model that the settings name, or the machine's default. `model_source`: how to load the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import torch
from rich.markup import escape

from everlong_models.backbone.loading import Progress
from everlong_models.catalogue.machine import OVERHEAD, free_memory
from everlong_models.errors import ConfigError
from everlong_models.kernels.cpu import sampling_kernel, thread_pool
from everlong_models.model import EXCHANGEABLE, Model, load_model
from everlong_models.naming import find_model, model_name
from everlong_models.size import model_bytes
from everlong_models.weights import MANIFEST, read_manifest
from everlong_server.engine.device.tensor_parallel import load_parallel
from everlong_server.process.served_model import served_model
from everlong_server.services import ModelSource
from everlong_server.settings import Settings
from everlong_server.store.search.vectors import load_embedder

log = logging.getLogger(__name__)


def load(settings: Settings, progress: Progress) -> Model:
    """Load the model. Blocks for seconds; the first time for as long as the download takes. Raises the errors of `load_model`."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device, size = _device(settings), settings.tensor_parallel_size
    if size > 1 and device == "cpu" and not settings.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    load = partial(load_model, device=device) if size == 1 else partial(load_parallel, size, device)
    model = load(
        name=served_model(settings, progress),
        models_dir=settings.models_dir.expanduser(),
        memory=settings.memory,
        options=settings.memory_options,
        quantize=settings.quantize,
        gpu_quantize=settings.gpu_quantize,
        bfloat16=settings.bfloat16,
        progress=lambda message: progress(escape(message)),
    )
    load_embedder(settings.embeddings)  # refuses a folder without one before the server starts
    if device == "cpu":
        thread_pool.prepare(sampling_kernel.sample)  # compile now, so that the first answer does not wait
    return model


def model_source(settings: Settings, start: Callable[[Callable[[], Model]], Future[Model]]) -> ModelSource:
    """Return how to load the other models that the settings name. `start`: starts a load on a thread.

    Raises `ConfigError` for two models of one name and for a first model that takes several GPUs, and the errors of `model_bytes` for a
    name that cannot be found.
    """
    if settings.models and settings.tensor_parallel_size > 1:
        raise ConfigError(
            "models", list(settings.models), "must be empty with tensor_parallel_size: start a server for each"
        )
    models_dir, device, names = settings.models_dir.expanduser(), _device(settings), dict[str, str]()

    def memory(given: str) -> str | None:
        """Return the memory to put around the model; a model folder has its own, unless that is exchangeable."""
        folder = find_model(given, models_dir)
        own = read_manifest(folder).memory.get("name") if (folder / MANIFEST).is_file() else None
        return settings.memory if own is None or {own, settings.memory} <= EXCHANGEABLE else None

    def measure(given: str) -> int | None:
        return model_bytes(
            given, models_dir=models_dir, memory=memory(given), device=device, quantize=settings.quantize,
            gpu_quantize=settings.gpu_quantize,
        )  # fmt: skip

    def load_other(given: str) -> Model:
        return load_model(
            given,
            models_dir=models_dir,
            memory=memory(given),
            options=settings.memory_options if memory(given) else None,
            device=device,
            quantize=settings.quantize,
            gpu_quantize=settings.gpu_quantize,
            bfloat16=settings.bfloat16,
            progress=log.info,
        )

    for given in settings.models:
        name = model_name(given, models_dir)
        if names.setdefault(name, given) != given:
            raise ConfigError("models", given, f"has the name {name!r}, as {names[name]!r} has: rename its folder")
        measure(given)
    return ModelSource(
        names=names,
        load=lambda given: asyncio.wrap_future(start(partial(load_other, given))),
        measure=measure,
        free=lambda: free_memory(device) - (OVERHEAD if device == "cpu" else 0),
        limit=settings.models_memory,
        idle_seconds=settings.model_idle_seconds,
    )


def _device(settings: Settings) -> str:
    """Return the device to run models on. Raises `ConfigError` for a quantisation that is not for it."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    device = found if settings.device == "auto" else settings.device
    if device == "cpu" and settings.gpu_quantize is not None:
        limit = "needs a GPU (--device cuda); on a CPU, --quantize already generates with weights of 4 or 8 bits"
        raise ConfigError("gpu_quantize", settings.gpu_quantize, limit)
    return device
