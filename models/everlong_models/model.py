"""`Model`: a backbone, a memory and their weights under one name, with a fingerprint; and how it is put together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from everlong_models.backbone import Backbone
from everlong_models.chat import ChatFormat
from everlong_models.errors import AdapterError, BackboneError, ConfigError
from everlong_models.loading import DEFAULT_BACKBONE, Progress, architecture, load_backbone
from everlong_models.memory import MemoryConfig, SegmentReader
from everlong_models.rmt import RMT, RMTConfig
from everlong_models.tokenizer import Tokenizer
from everlong_models.weights import MANIFEST, WEIGHTS, Manifest, load_weights, own_parameters, read_manifest
from everlong_models.window import Window, WindowConfig

DEFAULT_MEMORY = "window"

MEMORIES: dict[str, tuple[type[MemoryConfig], Callable[[Any, Backbone], SegmentReader]]] = {
    "rmt": (RMTConfig, RMT),
    "window": (WindowConfig, Window),
}
"""Every memory by name: its config and its class."""

TRAINING_FREE = frozenset({"window"})
"""Memories that have nothing to train: they work as they are."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a server serves.

    `trained`: whether trained memory weights were loaded; None for a memory that has nothing to train. `fingerprint`:
    SHA-256 over weights, tokenizer, architecture, memory configuration and dtype: states of one fingerprint are
    exchangeable.
    """

    name: str
    memory_name: str
    backbone_name: str
    memory: SegmentReader
    tokenizer: Tokenizer
    chat: ChatFormat
    fingerprint: str
    trained: bool | None
    description: str

    @property
    def segment_length(self) -> int:
        """S: tokens of a full segment."""
        return self.memory.segment_length

    @property
    def state_bytes(self) -> int:
        """Bytes of one session's memory."""
        return self.memory.initial_state(1).nbytes


def load_model(
    name: str = DEFAULT_BACKBONE,
    *,
    models_dir: Path,
    memory: str | None = None,
    options: dict[str, Any] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    progress: Progress = lambda message: None,
) -> Model:
    """The model `name`: a folder with `everlong.json`, or a backbone (see `load_backbone`) with an untrained memory.

    `memory` and `options` (fields of the memory's config) choose the memory around a plain backbone; a model folder
    brings its own and refuses others. Raises `BackboneError`, `AdapterError` or `ConfigError`.
    """
    folder = Path(name).expanduser()
    manifest: Manifest | None = None
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        if options or memory not in (None, manifest.memory.get("name")):
            raise ConfigError("memory", memory or options, f"{folder} brings its own memory: {manifest.memory}")
    spec = dict(manifest.memory) if manifest else {"name": memory or DEFAULT_MEMORY} | (options or {})
    memory_name = str(spec.pop("name", None))
    if memory_name not in MEMORIES:
        raise ConfigError("memory", memory_name, f"one of {', '.join(sorted(MEMORIES))}")
    config_class, build = MEMORIES[memory_name]
    try:
        config = config_class.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "memory"
        raise ConfigError(field, first["input"], f"{first['msg']} (memory {memory_name})") from error

    backbone_name = name if manifest is None else _beside(folder, manifest.backbone)
    if backbone_name is None:
        raise BackboneError(f"{folder / MANIFEST}: memory {memory_name} needs a backbone")
    backbone, tokenizer = load_backbone(
        backbone_name, models_dir=models_dir, device=device, dtype=dtype, progress=progress
    )
    module = build(config, backbone).eval()
    loaded = manifest is not None and load_weights(folder, module, backbone, manifest.lora_scale)
    if manifest and manifest.trained and not loaded and own_parameters(module):
        raise AdapterError(f'no {folder / WEIGHTS}, and {MANIFEST} does not say "trained": false')
    module.requires_grad_(False)
    progress("computing the fingerprint")
    return Model(
        name=folder.name if manifest else _short(name),
        memory_name=memory_name,
        backbone_name=_short(backbone_name),
        memory=module,
        tokenizer=tokenizer,
        chat=ChatFormat.of(tokenizer),
        fingerprint=_fingerprint(
            module, tokenizer, architecture(backbone), f"{memory_name}:{config.model_dump_json()}"
        ),
        trained=None if memory_name in TRAINING_FREE else loaded and manifest is not None and manifest.trained,
        description=manifest.description if manifest else "",
    )


def _beside(folder: Path, name: str | None) -> str | None:
    """A backbone's name; one that is a folder beside the manifest is meant relative to it."""
    return str(folder / name) if name and (folder / name).exists() else name


def _short(name: str) -> str:
    return Path(name).name if Path(name).expanduser().exists() else name


def _fingerprint(module: nn.Module, tokenizer: Tokenizer, *parts: str) -> str:
    total = hashlib.sha256()
    for part in (*parts, tokenizer.digest()):
        total.update(part.encode() + b"\0")
    for name, tensor in sorted(module.state_dict().items()):
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            total.update(flat.view(torch.uint8).numpy())
    return total.hexdigest()
