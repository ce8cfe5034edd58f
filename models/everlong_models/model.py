"""`Model`: a backbone, a memory and their weights under one name, with a fingerprint. `load_model` builds one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from everlong_models.answer_probe import AnswerProbes, load_probes
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.loading import (
    DEFAULT_BACKBONE,
    Progress,
    architecture,
    has_own_memory,
    load_backbone,
    load_recurrent,
    load_tokenizer,
    resolve_device,
)
from everlong_models.backbone.number_formats.on_load import Method
from everlong_models.backbone.recurrent.model import Recurrent
from everlong_models.errors import AdapterError, BackboneError, ConfigError
from everlong_models.fingerprint import hash_model, loaded_tensors, state_layout, update_tensors
from everlong_models.kernels.low_rank import merge
from everlong_models.lora import ADAPTER_WEIGHTS, find_adapter, read_adapter
from everlong_models.memories.armt import ARMT, ARMTConfig
from everlong_models.memories.base import MemoryConfig, SegmentReader
from everlong_models.memories.compact import Compact, CompactConfig
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from everlong_models.memories.infinite.scratch import InfiniteScratch, InfiniteScratchConfig
from everlong_models.memories.native import Native, NativeConfig
from everlong_models.memories.relative.compressive import Compressive, CompressiveConfig
from everlong_models.memories.relative.lamemo import LaMemo, LaMemoConfig
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.window import Window, WindowConfig
from everlong_models.naming import display_name, find_model, folder_name, model_name, resolve_backbone, split_adapter
from everlong_models.parallel import Ranks
from everlong_models.text.chat_format import ChatFormat
from everlong_models.text.tokenizer import Tokenizer
from everlong_models.text.tool_format import ToolFormat
from everlong_models.weights import (
    MANIFEST,
    WEIGHTS,
    Manifest,
    TemplateName,
    attach_updates,
    load_updates,
    load_weights,
    own_parameters,
    read_manifest,
)

DEFAULT_MEMORY = "window"
NATIVE_MEMORY = "native"
"""The memory of models that have a recurrent state of their own."""
SHIPPED_MODEL = "smollm2-135m-reader"
"""The model that comes with the package: the default backbone with the `window` memory, fine-tuned to answer from passages.
It is served where the catalogue's larger ones do not fit or cannot be downloaded."""


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """How to build a memory.

    `build` takes the config, and the backbone if `around` is True; memories from scratch bring all their weights.
    `whole`: the memory calls the backbone only as a whole, so the backbone may be optimised; others act between its layers.
    `training_free`: the memory has nothing to train. `recurrent`: the backbone is a `Recurrent`, whose own state is the memory.
    """

    config: type[MemoryConfig]
    build: Callable[..., SegmentReader]
    around: bool = True
    whole: bool = False
    training_free: bool = False
    recurrent: bool = False

    @property
    def one_copy(self) -> bool:
        """Whether quantised weights suffice. A trained memory is computed with float weights."""
        return self.whole and self.training_free


MEMORIES: dict[str, MemoryKind] = {
    "rmt": MemoryKind(RMTConfig, RMT, whole=True),
    "window": MemoryKind(WindowConfig, Window, whole=True, training_free=True),
    "compact": MemoryKind(CompactConfig, Compact, whole=True, training_free=True),
    NATIVE_MEMORY: MemoryKind(NativeConfig, Native, training_free=True, recurrent=True),
    "armt": MemoryKind(ARMTConfig, ARMT),
    "infinite": MemoryKind(InfiniteConfig, InfiniteFormer),
    "infinite_scratch": MemoryKind(InfiniteScratchConfig, InfiniteScratch, around=False),
    "transformer_xl": MemoryKind(TransformerXLConfig, TransformerXL, around=False),
    "compressive": MemoryKind(CompressiveConfig, Compressive, around=False),
    "lamemo": MemoryKind(LaMemoConfig, LaMemo, around=False),
}
"""All memories by name."""
EXCHANGEABLE = {name for name, kind in MEMORIES.items() if kind.one_copy}
"""Memories without weights. A trained model that has one of them also takes another."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model.

    `trained`: whether trained memory weights were loaded (always with `native`); None for a memory that has nothing to train. `backbone_name`: None for a model
    from scratch. `tuned`: whether weights of a model folder were loaded; a backbone answers as its authors made it. `fingerprint`:
    SHA-256 over weights, tokenizer, architecture, memory configuration, dtype and the state's layout; models with the same fingerprint
    can exchange states. `template`: the prompt template for its answers. `tools`: how its chat template shows tools; None if it has no tool format.
    `probes`: tell whether passages hold an answer; None if the model folder has none, with a memory other than `window`, and with several
    processes.
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
    tuned: bool = False
    template: TemplateName = "few-words"
    tools: ToolFormat | None = None
    probes: AnswerProbes | None = None

    @property
    def segment_length(self) -> int:
        """S: the number of tokens in a full segment."""
        return self.memory.segment_length

    @property
    def state_bytes(self) -> int:
        """The size of one session's memory in bytes."""
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
    gpu_quantize: Method | None = None,
    bfloat16: bool | None = None,
    ranks: Ranks | None = None,
    progress: Progress = lambda message: None,
) -> Model:
    """Load the model `name`.

    `name` is a model folder with `everlong.json`, the name of one in `models_dir` or in the package, or a backbone (see `load_backbone`),
    which gets an untrained memory; a recurrent model gets `native` by default. `BACKBONE+ADAPTER` is a backbone with a LoRA adapter (see
    `lora`). `memory` and `options` (fields of the memory's config) choose the memory around a plain backbone. A
    model folder has its own memory. If that is `window` or `compact`, `memory` may name the other one, and `options` may be given.

    `quantize`, `bfloat16`: see `Backbone.optimize`; they only affect a CPU. `bfloat16` None means: True for a memory that has nothing to
    train, False for a trained one, which is computed in float32. `gpu_quantize`: see `load_backbone`; no effect without a backbone.
    `ranks`: the processes that share the model; each of them must make this call. `progress` receives messages for the user.

    Raises `BackboneError`, `AdapterError` or `ConfigError`.
    """
    device = resolve_device(device)
    plan = _plan(name, models_dir, memory, options or {}, progress)
    _require_parallel(plan, ranks)
    around = partial(_build_around_backbone, quantize=quantize, gpu_quantize=gpu_quantize, ranks=ranks)
    build = around if plan.kind.around else _build_from_scratch
    module, backbone, tokenizer = build(plan, models_dir, device, dtype, progress)
    loaded = _load_memory_weights(plan, module, backbone)
    if plan.adapter is not None:
        attach_updates(read_adapter(plan.adapter, progress), backbone, plan.adapter / ADAPTER_WEIGHTS)
        tokenizer = _tokenizer_of(plan.adapter, tokenizer, module.vocab_size)
    module.requires_grad_(False)
    bfloat16 = plan.kind.training_free if bfloat16 is None else bfloat16
    fingerprint = _fingerprint_and_optimise(
        plan, module, backbone, tokenizer, device, progress, quantize=quantize, bfloat16=bfloat16
    )
    return Model(
        name=model_name(name, models_dir),
        memory_name=plan.memory_name,
        backbone_name=None if backbone is None else display_name(str(plan.backbone_name)),
        memory=module,
        tokenizer=tokenizer,
        chat=ChatFormat.of(tokenizer),
        fingerprint=fingerprint,
        trained=plan.kind.recurrent or None
        if plan.kind.training_free
        else loaded and plan.manifest is not None and plan.manifest.trained,
        description=plan.manifest.description if plan.manifest else module.in_words,
        tuned=loaded,
        template=(plan.manifest and plan.manifest.template)
        or ("instruct" if not loaded and tokenizer.chat_template else "few-words"),
        tools=ToolFormat.of(tokenizer),
        probes=None if ranks else _probes(plan, backbone),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to load: the result of resolving a model's name, before any weights are read.

    `manifest`: None for a plain backbone, which has no `everlong.json`. `backbone_name`: None if the manifest names none. `adapter`: the
    folder of a LoRA adapter for a plain backbone.
    """

    folder: Path
    manifest: Manifest | None
    memory_name: str
    kind: MemoryKind
    config: MemoryConfig
    backbone_name: str | None
    adapter: Path | None


def _plan(name: str, models_dir: Path, memory: str | None, options: dict[str, Any], progress: Progress) -> _Plan:
    """Resolve `name` to a folder, and choose the memory and its config. Raises `AdapterError` or `ConfigError`."""
    name, added = split_adapter(name, models_dir)
    adapter = None if added is None else find_adapter(added, models_dir)
    folder = find_model(name, models_dir)
    manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    if manifest and adapter:
        raise AdapterError(
            f"{name}+{added}: an adapter needs a plain backbone, such as {manifest.backbone or 'a folder'}"
        )
    spec = dict(manifest.memory) if manifest else {"name": memory or _default_memory(name, models_dir, progress)}
    memory_name = str(spec.pop("name", None))
    if memory_name not in MEMORIES:
        raise ConfigError("memory", memory_name, f"must be one of {', '.join(sorted(MEMORIES))}")
    kind = MEMORIES[memory_name]
    if manifest and memory is not None and memory != memory_name and {memory, memory_name} <= EXCHANGEABLE:
        memory_name, kind, spec = memory, MEMORIES[memory], {}  # the model's adapters belong to its backbone alone
    if manifest and (memory not in (None, memory_name) or (options and not kind.training_free)):
        limit = f"cannot be set: the model folder {folder} has its own memory, {manifest.memory}"
        raise ConfigError("memory", memory or options, limit)
    config = memory_config(memory_name, spec | options)
    backbone_name = name if manifest is None else resolve_backbone(folder, manifest.backbone)
    return _Plan(folder, manifest, memory_name, kind, config, backbone_name, adapter)


def _require_parallel(plan: _Plan, ranks: Ranks | None) -> None:
    """Raise `ConfigError` if `ranks` cannot share a model with this memory, which calls the backbone in parts, or with low-rank updates."""
    if ranks is None:
        return
    if not plan.kind.whole:
        possible = ", ".join(sorted(name for name, kind in MEMORIES.items() if kind.whole))
        raise ConfigError("memory", plan.memory_name, f"with tensor_parallel_size, must be one of {possible}")
    if plan.adapter is not None or (plan.manifest is not None and load_updates(plan.folder)):
        raise ConfigError(
            "tensor_parallel_size", ranks.size, "must be 1 for a model with low-rank updates; name another with --model"
        )


def _default_memory(name: str, models_dir: Path, progress: Progress) -> str:
    """Return the memory around the plain backbone `name`. Tells `progress` if it is not the usual one."""
    if not has_own_memory(name, models_dir=models_dir, progress=progress):
        return DEFAULT_MEMORY
    progress(f"{display_name(name)} has a recurrent state of its own, which is its memory (--memory {NATIVE_MEMORY})")
    return NATIVE_MEMORY


_Built = tuple[SegmentReader, Backbone | Recurrent | None, Tokenizer]


def _build_around_backbone(
    plan: _Plan,
    models_dir: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    progress: Progress,
    *,
    quantize: bool,
    gpu_quantize: Method | None,
    ranks: Ranks | None,
) -> _Built:
    """Load the backbone, and build the memory around it. The memory's weights are not loaded yet."""
    if plan.backbone_name is None:
        raise BackboneError(f"{plan.folder / MANIFEST}: memory {plan.memory_name} needs a backbone: set `backbone`")
    how: dict[str, Any] = {"models_dir": models_dir, "device": device, "dtype": dtype, "gpu_quantize": gpu_quantize}
    if plan.kind.recurrent:
        recurrent, tokenizer = load_recurrent(plan.backbone_name, progress=progress, **how)
        return plan.kind.build(plan.config, recurrent).eval(), recurrent, tokenizer
    # Low-rank updates were trained with the weights of the file, which the one copy has.
    one_copy = quantize and plan.kind.one_copy and ranks is None
    backbone, tokenizer = load_backbone(plan.backbone_name, one_copy=one_copy, ranks=ranks, progress=progress, **how)
    return plan.kind.build(plan.config, backbone).eval(), backbone, tokenizer


def _build_from_scratch(
    plan: _Plan, models_dir: Path, device: torch.device, dtype: torch.dtype | None, progress: Progress
) -> _Built:
    """Build a memory that brings all its weights. They are not loaded yet."""
    if plan.manifest is None or plan.manifest.backbone is not None:
        raise ConfigError(
            "memory", plan.memory_name, "cannot be built around a backbone: name a model folder with everlong.json"
        )
    progress(f"loading {folder_name(plan.folder)} ({device})")
    # Models from scratch are small: they use float32 on every device.
    module = plan.kind.build(plan.config).to(device, dtype or torch.float32).eval()
    tokenizer = load_tokenizer(plan.folder)
    if tokenizer.vocab_size > module.vocab_size:
        limit = f"must be at least {tokenizer.vocab_size}, the size of the tokenizer in {plan.folder}"
        raise ConfigError("vocab_size", module.vocab_size, limit)
    return module, None, tokenizer


def _load_memory_weights(plan: _Plan, module: SegmentReader, backbone: Backbone | Recurrent | None) -> bool:
    """Load the memory's weights from the model folder. Return whether the folder has any.

    Raises `AdapterError` for weights that do not match, and for a trained model without weights.
    """
    if plan.manifest is None:
        return False
    loaded = load_weights(plan.folder, module, backbone, plan.manifest.lora_scale)
    if plan.manifest.trained and not loaded and own_parameters(module):
        raise AdapterError(f'{plan.folder / WEIGHTS} does not exist: add it, or set "trained": false in {MANIFEST}')
    return loaded


def _probes(plan: _Plan, backbone: Backbone | Recurrent | None) -> AnswerProbes | None:
    """Return the probes of the model folder. They learnt from prompts that the model read as with `window`."""
    if plan.memory_name != DEFAULT_MEMORY or plan.manifest is None or not isinstance(backbone, Backbone):
        return None
    return load_probes(plan.folder, backbone)


def _tokenizer_of(adapter: Path, tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """Return the adapter's own tokenizer, whose chat template it was trained with; `tokenizer` if it has none."""
    if not (adapter / "tokenizer_config.json").is_file():
        return tokenizer
    own = load_tokenizer(adapter)
    if own.vocab_size > vocab_size:
        raise AdapterError(f"{adapter}: its tokenizer has {own.vocab_size} tokens, the backbone only {vocab_size}")
    own.add_eos_ids(tokenizer.eos_ids)
    return own


def _fingerprint_and_optimise(
    plan: _Plan,
    module: SegmentReader,
    backbone: Backbone | Recurrent | None,
    tokenizer: Tokenizer,
    device: torch.device,
    progress: Progress,
    *,
    quantize: bool,
    bfloat16: bool,
) -> str:
    """Optimise the weights for inference, and return the fingerprint of the weights as they were loaded."""
    described = f"{plan.memory_name}:{plan.config.model_dump_json()}"
    parts = [architecture(backbone) if backbone else "", described, state_layout(module), tokenizer.digest()]
    if backbone is not None and backbone.digest is not None:
        parts, tensors = [*parts, backbone.digest], own_parameters(module) | update_tensors(backbone.model)
    else:
        tensors = loaded_tensors(module)
    with ThreadPoolExecutor(1) as executor:  # hashing takes a large part of the loading time
        fingerprint = executor.submit(hash_model, tensors, parts)
        del tensors  # hashing frees them one by one
        if device.type != "cpu":  # a CPU maps weights from their file; a GPU may have no memory for two copies
            fingerprint.result()
        if backbone is not None:
            if plan.kind.whole and not backbone.shared:
                progress("optimising the weights (the first time on a machine, kernels are compiled: some seconds)")
                backbone.optimize(quantize=quantize, bfloat16=bfloat16)
            merge(backbone)
    # After hashing: with several processes, both compute together with the other processes, in one order.
    module.optimize()
    return fingerprint.result()


def memory_config(name: str, options: dict[str, Any]) -> MemoryConfig:
    """Return the config of the memory `name`. Raises `ConfigError` for unknown options and invalid values."""
    try:
        return MEMORIES[name].config.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "memory"
        raise ConfigError(field, first["input"], f"{first['msg']} (memory {name})") from error
