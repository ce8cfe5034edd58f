"""A memory's weights on disk: `everlong.json` describes the model, `memory.safetensors` contains the tensors.

The tensors are the memory's own parameters, and low-rank updates of the backbone's linear layers: pairs of `lora.<layer>.A` (r, in) and
`lora.<layer>.B` (out, r). The layer's weight becomes W + scale · B A (`LowRank`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.recurrent.model import Recurrent
from everlong_models.errors import AdapterError
from everlong_models.kernels.low_rank import attach, attach_to_output, has_float_weight

MANIFEST = "everlong.json"
WEIGHTS = "memory.safetensors"
TemplateName = Literal["few-words", "instruct"]
"""How a prompt shows passages. `few-words`: whole passages, for models that were trained to answer from them in a few words. `instruct`:
sentences, with an instruction to answer in a sentence, for instruct models."""


class Manifest(BaseModel):
    """`everlong.json`: describes a model folder. `memory` is the memory's config, with the memory's name under `name`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["everlong.model"] = "everlong.model"
    version: Literal[1] = 1
    backbone: str | None = Field(
        None, description="name or folder, relative to this file; none for from-scratch models"
    )
    memory: dict[str, Any]
    lora_scale: float = Field(1.0, gt=0, allow_inf_nan=False)
    trained: bool = Field(True, description="false: the weights are random, for tests")
    description: str = ""
    template: TemplateName | None = Field(
        None,
        description="prompt template that the model was trained on; none: `few-words` with trained weights or without a chat "
        "template, else `instruct`",
    )


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a model folder. Raises `AdapterError` if it cannot be read or is invalid."""
    file = folder / MANIFEST
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except OSError as error:
        raise AdapterError(f"cannot read {file}: {error}") from error
    except ValidationError as error:
        raise AdapterError(f"{file}: {first_error(error)}") from error


def save_weights(
    folder: Path,
    manifest: Manifest,
    memory: nn.Module,
    lora: dict[str, Tensor] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model folder: the manifest, the memory's own parameters (without the backbone's), and `lora` tensors, if any.

    `dtype`: store the memory's parameters in this type; None keeps theirs. Loading converts them to the memory's type.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in own_parameters(memory).items()
    }
    save_file(
        tensors | {name: tensor.detach().cpu().contiguous() for name, tensor in (lora or {}).items()}, folder / WEIGHTS
    )
    # Version 0.1.0 refuses a manifest with this field.
    fields = manifest.model_dump(exclude={"template"} if manifest.template is None else None)
    (folder / MANIFEST).write_text(json.dumps(fields, indent=2) + "\n")
    share(folder)


def share(folder: Path) -> None:
    """Give the safetensors files of a model folder the permissions of its manifest.

    safetensors writes files that only their owner can read, but a server in a container runs as another user.
    """
    for file in folder.rglob("*.safetensors"):
        shutil.copymode(folder / MANIFEST, file)


def own_parameters(memory: nn.Module) -> dict[str, Tensor]:
    """Return a memory's own parameters and persistent buffers, without its backbone's."""
    own: dict[str, Tensor] = {}
    for name, child in memory.named_children():
        if name != "backbone":
            own |= {f"{name}.{key}": tensor for key, tensor in child.state_dict().items()}
    for key, tensor in (*memory.named_parameters(recurse=False), *memory.named_buffers(recurse=False)):
        if key not in memory._non_persistent_buffers_set:
            own[key] = tensor.detach()
    return own


def load_weights(
    folder: Path, memory: nn.Module, backbone: Backbone | Recurrent | None, lora_scale: float, *, updates: bool = True
) -> bool:
    """Load `memory.safetensors` into `memory` and attach its low-rank updates to `backbone`. Return whether the file exists.

    `updates`: False skips the low-rank updates (see `load_updates`).

    Raises `AdapterError` for a damaged file, and for tensors that are missing, unknown, not finite, or of another shape (which means
    another backbone or segment length).
    """
    file = folder / WEIGHTS
    if not file.exists():
        return False
    tensors = read_tensors(file)
    lora = {
        name: tensors.pop(name) for name in list(tensors) if name.startswith("lora.") and name.endswith((".A", ".B"))
    }
    own = own_parameters(memory)
    if missing := sorted(own.keys() - tensors.keys()):
        raise AdapterError(f"{file}: missing tensors: {', '.join(missing)}")
    if unknown := sorted(tensors.keys() - own.keys()):
        raise AdapterError(f"{file}: unknown tensors for this memory: {', '.join(unknown)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise AdapterError(
                    f"{file}: {name!r} must have shape {tuple(own[name].shape)} for this memory, got {tuple(tensor.shape)}"
                )
            own[name].copy_(tensor)
        if lora and updates:
            attach_updates(lora, backbone, file, lora_scale)
    return True


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Raises `AdapterError` if it is damaged, or a tensor is not finite."""
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"cannot read {file} as safetensors: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise AdapterError(f"{file}: tensor {name!r} contains NaN or infinity")
    return tensors


def load_updates(folder: Path) -> dict[str, Tensor]:
    """Return only the low-rank updates, `lora.<layer>.A` and `lora.<layer>.B`; empty if the file does not exist."""
    file = folder / WEIGHTS
    return (
        {name: tensor for name, tensor in load_file(file).items() if name.startswith("lora.")} if file.exists() else {}
    )


def attach_updates(
    lora: dict[str, Tensor], backbone: Backbone | Recurrent | None, file: Path, scale: float = 1.0
) -> None:
    """Attach low-rank updates, `lora.<layer>.A` and `lora.<layer>.B`, to the backbone's layers.

    Raises `AdapterError`, which names `file`, for updates that do not fit.
    """
    if backbone is None:
        raise AdapterError(f"{file}: low-rank updates need a backbone, and this model has none")
    layers = dict(backbone.model.named_modules())
    for name in sorted({key.removeprefix("lora.")[:-2] for key in lora}):
        a, b = lora.get(f"lora.{name}.A"), lora.get(f"lora.{name}.B")
        layer: Any = layers.get(name)
        if a is None or b is None:
            raise AdapterError(f"{file}: the low-rank update of {name!r} needs both A and B, one is missing")
        quantised = hasattr(layer, "in_features") and not has_float_weight(layer)
        if not (isinstance(layer, nn.Linear | Conv1D) or quantised):
            raise AdapterError(f"{file}: low-rank update of {name!r}, which is not a linear layer of this backbone")
        if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
            raise AdapterError(
                f"{file}: the low-rank update of {name!r} must have A (r, in) and B (out, r), "
                f"got A {tuple(a.shape)} and B {tuple(b.shape)}"
            )
        transposed = isinstance(layer, Conv1D)  # GPT-2 stores weights as (in, out)
        shape = (a.shape[1], b.shape[0]) if transposed else (b.shape[0], a.shape[1])
        own = (layer.out_features, layer.in_features) if quantised else tuple(layer.weight.shape)
        if shape != own:
            raise AdapterError(
                f"{file}: the low-rank update of {name!r} must have the layer's shape {own}, got {shape}"
            )
        if quantised:
            attach_to_output(layer, (wide(a), scale * wide(b)), *_computed_in(backbone))
            continue
        attach(layer, (wide(a), scale * wide(b)), transposed=transposed)


def _computed_in(backbone: Backbone | Recurrent) -> tuple[torch.dtype, torch.device]:
    """Return dtype and device of the activations of a backbone with quantised weights: its embeddings have both."""
    embedding = backbone.model.get_input_embeddings().weight
    return embedding.dtype, embedding.device


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or as it is if its type is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def first_error(error: ValidationError) -> str:
    """Return pydantic's first error in one line, with the field."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
