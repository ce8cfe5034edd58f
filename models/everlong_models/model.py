"""`Model`: a backbone, a memory and their weights under one name, with a fingerprint; and how it is put together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.loading import (
    DEFAULT_BACKBONE,
    Progress,
    architecture,
    load_backbone,
    load_tokenizer,
    resolve_device,
)
from everlong_models.errors import AdapterError, BackboneError, ConfigError
from everlong_models.kernels.low_rank import merge
from everlong_models.memories.armt import ARMT, ARMTConfig
from everlong_models.memories.base import MemoryConfig, SegmentReader
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from everlong_models.memories.infinite.scratch import InfiniteScratch, InfiniteScratchConfig
from everlong_models.memories.relative.compressive import Compressive, CompressiveConfig
from everlong_models.memories.relative.lamemo import LaMemo, LaMemoConfig
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.window import Window, WindowConfig
from everlong_models.text.chat_format import ChatFormat
from everlong_models.text.tokenizer import Tokenizer
from everlong_models.weights import MANIFEST, WEIGHTS, Manifest, load_weights, own_parameters, read_manifest

DEFAULT_MEMORY = "window"
PACKAGED = Path(__file__).parent / "trained"
"""Small trained models that come with the package, by their folders' names."""
DEFAULT_MODEL = "smollm2-135m-reader"
"""What is served unless a model or a memory is named: the default backbone with `window`, taught to answer from passages."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How a memory is made.

    `build` takes the config, and the backbone if it is `around` one; from-scratch models bring all their weights.
    `whole`: it uses the backbone as a whole, so that the backbone may be optimized; others act between its layers.
    `training_free`: it has nothing to train and works as it is.
    """

    config: type[MemoryConfig]
    build: Callable[..., SegmentReader]
    around: bool = True
    whole: bool = False
    training_free: bool = False


MEMORIES: dict[str, Memory] = {
    "rmt": Memory(RMTConfig, RMT, whole=True),
    "window": Memory(WindowConfig, Window, whole=True, training_free=True),
    "armt": Memory(ARMTConfig, ARMT),
    "infinite": Memory(InfiniteConfig, InfiniteFormer),
    "infinite_scratch": Memory(InfiniteScratchConfig, InfiniteScratch, around=False),
    "transformer_xl": Memory(TransformerXLConfig, TransformerXL, around=False),
    "compressive": Memory(CompressiveConfig, Compressive, around=False),
    "lamemo": Memory(LaMemoConfig, LaMemo, around=False),
}
"""Every memory by name."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a server serves.

    `trained`: whether trained memory weights were loaded; None for a memory that has nothing to
    train. `backbone_name`: None for a model from scratch. `fingerprint`: SHA-256 over weights, tokenizer, architecture,
    memory configuration, dtype and the state's layout: states of one fingerprint are exchangeable.
    """

    name: str
    memory_name: str
    backbone_name: str | None
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
    quantize: bool = True,
    bfloat16: bool | None = None,
    progress: Progress = lambda message: None,
) -> Model:
    """The model `name`: a folder with `everlong.json` (or the name of one in `models_dir` or `PACKAGED`), or a backbone (see `load_backbone`) with an untrained memory.

    `memory` and `options` (fields of the memory's config) choose the memory around a plain backbone; a model folder
    brings its own and refuses others, but for options of a memory that has nothing to train. `quantize`, `bfloat16`: see
    `Backbone.optimize`; they have no effect on anything but a CPU. `bfloat16` None: for a memory that has nothing to train; what a
    trained memory is made of is computed in float32. Raises `BackboneError`, `AdapterError` or `ConfigError`.
    """
    device = resolve_device(device)
    folder = find_model(name, models_dir)
    manifest: Manifest | None = None
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
    spec = dict(manifest.memory) if manifest else {"name": memory or DEFAULT_MEMORY}
    memory_name = str(spec.pop("name", None))
    if memory_name not in MEMORIES:
        raise ConfigError("memory", memory_name, f"one of {', '.join(sorted(MEMORIES))}")
    kind = MEMORIES[memory_name]
    if manifest and (memory not in (None, memory_name) or (options and not kind.training_free)):
        raise ConfigError("memory", memory or options, f"{folder} brings its own memory: {manifest.memory}")
    spec |= options or {}
    config = memory_config(memory_name, spec)

    backbone: Backbone | None = None
    backbone_name = name if manifest is None else _beside(folder, manifest.backbone)
    if kind.around:
        if backbone_name is None:
            raise BackboneError(f"{folder / MANIFEST}: memory {memory_name} needs a backbone")
        backbone, tokenizer = load_backbone(
            backbone_name, models_dir=models_dir, device=device, dtype=dtype, progress=progress
        )
        module = kind.build(config, backbone).eval()
    else:
        if manifest is None or manifest.backbone is not None:
            raise ConfigError("memory", memory_name, "is no memory around a backbone: name a folder with everlong.json")
        backbone_name = None
        progress(f"loading {_own_name(folder)} ({device})")
        # Small models, whose accumulators are their weights: float32 everywhere.
        module, tokenizer = kind.build(config).to(device, dtype or torch.float32).eval(), load_tokenizer(folder)
        if tokenizer.vocab_size > module.vocab_size:
            raise ConfigError(
                "vocab_size", module.vocab_size, f"the tokenizer in {folder} has {tokenizer.vocab_size} tokens"
            )
    loaded = manifest is not None and load_weights(folder, module, backbone, manifest.lora_scale)
    if manifest and manifest.trained and not loaded and own_parameters(module):
        raise AdapterError(f'no {folder / WEIGHTS}, and {MANIFEST} does not say "trained": false')
    module.requires_grad_(False)
    described = f"{memory_name}:{config.model_dump_json()}"
    parts = [architecture(backbone) if backbone else "", described, _layout(module), tokenizer.digest()]
    with ThreadPoolExecutor(1) as beside:  # no small part of the time that loading takes
        fingerprint = beside.submit(_fingerprint, _tensors(module), parts)
        if (
            device.type != "cpu"
        ):  # where weights are mapped from their file; elsewhere there may be no room for two of each
            fingerprint.result()
        if backbone is not None and kind.whole:
            progress("laying out the weights (the first time on a machine, what decodes is compiled: some seconds)")
            backbone.optimize(quantize=quantize, bfloat16=kind.training_free if bfloat16 is None else bfloat16)
        if backbone is not None:
            merge(backbone)
        module.optimize()
    return Model(
        name=_own_name(folder) if manifest else _short(name),
        memory_name=memory_name,
        backbone_name=None if backbone_name is None else _short(backbone_name),
        memory=module,
        tokenizer=tokenizer,
        chat=ChatFormat.of(tokenizer),
        fingerprint=fingerprint.result(),
        trained=None if kind.training_free else loaded and manifest is not None and manifest.trained,
        description=manifest.description if manifest else "",
    )


def memory_config(name: str, options: dict[str, Any]) -> MemoryConfig:
    """The config of the memory `name`. Raises `ConfigError` for what it does not know, or does not take."""
    try:
        return MEMORIES[name].config.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "memory"
        raise ConfigError(field, first["input"], f"{first['msg']} (memory {name})") from error


def find_model(name: str, models_dir: Path) -> Path:
    """The folder of that name: as it is, among the models at hand, or in the package. Whether it is there is not looked at."""
    folder = Path(name).expanduser()
    shelves = [shelf / name for shelf in (models_dir, PACKAGED) if (shelf / name / MANIFEST).is_file()]
    return folder if folder.exists() or not shelves else shelves[0]


def _beside(folder: Path, name: str | None) -> str | None:
    """A backbone's name; one that is a folder beside the manifest is meant relative to it."""
    return str(folder / name) if name and (folder / name).exists() else name


def _short(name: str) -> str:
    path = Path(name).expanduser()
    return _own_name(path) if path.exists() else name


def _own_name(path: Path) -> str:
    """What a folder is called, also where it is named as `.` or `..`; a link to one has a name of its own."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def _layout(module: SegmentReader) -> str:
    """Names, types and shapes of a state's tensors: a version that lays them out otherwise makes another model's states."""
    tensors = module.initial_state(1).tensors
    return ";".join(f"{name}:{tensors[name].dtype}:{tuple(tensors[name].shape)}" for name in sorted(tensors))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """All that was loaded, by names of our own: of a weight and its low-rank update each by itself, since their sum may be
    rounded otherwise on another machine."""
    names = {".parametrizations.weight.original": ".weight", ".parametrizations.weight.0.": ".lora."}
    found = module.state_dict()
    for theirs, ours in names.items():
        found = {name.replace(theirs, ours): tensor for name, tensor in found.items()}
    return found


def _fingerprint(tensors: dict[str, Tensor], parts: Iterable[str]) -> str:
    """Leaves none of the tensors, so that what nobody else holds any longer is free at once."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode() + b"\0")
    for name in sorted(tensors):
        tensor = tensors.pop(name)
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()
