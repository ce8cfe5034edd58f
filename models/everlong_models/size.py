"""`model_bytes`: estimates how much memory a model takes, before it is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from everlong_models.backbone.loading import weight_bytes
from everlong_models.backbone.number_formats.on_load import Method
from everlong_models.lora import ADAPTER_WEIGHTS, find_adapter
from everlong_models.model import DEFAULT_MEMORY, MEMORIES
from everlong_models.naming import find_model, resolve_backbone, split_adapter
from everlong_models.weights import MANIFEST, WEIGHTS, read_manifest


def model_bytes(
    name: str,
    *,
    models_dir: Path,
    memory: str | None = None,
    device: torch.device | str = "cpu",
    quantize: bool = True,
    gpu_quantize: Method | None = None,
) -> int | None:
    """Estimate how many bytes of memory the model `name` takes; None if it must be pulled from the hub first.

    The arguments are those of `load_model`. Raises `BackboneError` for a name that cannot be found, and `AdapterError` for a model
    folder that cannot be read.
    """
    name, adapter = split_adapter(name, models_dir)
    folder, own = find_model(name, models_dir), 0
    if adapter is not None and (file := find_adapter(adapter, models_dir) / ADAPTER_WEIGHTS).is_file():
        own = file.stat().st_size
    backbone, memory_name = name, memory or DEFAULT_MEMORY
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        own = (folder / WEIGHTS).stat().st_size if (folder / WEIGHTS).is_file() else 0
        if (resolved := resolve_backbone(folder, manifest.backbone)) is None:
            return own
        backbone, memory_name = resolved, str(manifest.memory.get("name"))
    one_copy = quantize and memory_name in MEMORIES and MEMORIES[memory_name].one_copy
    weights = weight_bytes(backbone, models_dir=models_dir, device=device, one_copy=one_copy, gpu_quantize=gpu_quantize)
    return None if weights is None else own + weights
