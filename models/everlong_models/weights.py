"""A memory's weights on disk: `everlong.json` says what they are, `memory.safetensors` holds them.

The tensors are the memory's own parameters, and low-rank updates of the backbone's linear layers as pairs
`lora.<layer>.A` (r, in) and `lora.<layer>.B` (out, r): the layer's weight becomes W + scale · B A (`LowRank`).
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
from everlong_models.errors import AdapterError
from everlong_models.kernels.low_rank import attach

MANIFEST = "everlong.json"
WEIGHTS = "memory.safetensors"


class Manifest(BaseModel):
    """`everlong.json`: a model as a folder. `memory` is the memory's config with its name under `name`."""

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


def read_manifest(folder: Path) -> Manifest:
    """Raises `AdapterError` naming the file and what is wrong with it."""
    file = folder / MANIFEST
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except OSError as error:
        raise AdapterError(f"cannot read {file}: {error}") from error
    except ValidationError as error:
        raise AdapterError(f"{file}: {_first(error)}") from error


def save_weights(
    folder: Path,
    manifest: Manifest,
    memory: nn.Module,
    lora: dict[str, Tensor] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Writes the memory's own parameters (all but the backbone's) and `lora` tensors, if any.

    `dtype`: of the memory's numbers; default as they are. They are loaded into whatever type the memory has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in own_parameters(memory).items()
    }
    save_file(
        tensors | {name: tensor.detach().cpu().contiguous() for name, tensor in (lora or {}).items()}, folder / WEIGHTS
    )
    (folder / MANIFEST).write_text(json.dumps(manifest.model_dump(), indent=2) + "\n")
    share(folder)


def share(folder: Path) -> None:
    """Makes the files of a model folder as readable as its manifest, which is as the umask has it; safetensors writes files
    that nobody but their owner can read, and a server in a container is another user."""
    for file in folder.rglob("*.safetensors"):
        shutil.copymode(folder / MANIFEST, file)


def own_parameters(memory: nn.Module) -> dict[str, Tensor]:
    """What a memory adds to its backbone: its parameters and persistent buffers. The backbone is not looked at."""
    found: dict[str, Tensor] = {}
    for name, child in memory.named_children():
        if name != "backbone":
            found |= {f"{name}.{key}": tensor for key, tensor in child.state_dict().items()}
    for key, tensor in (*memory.named_parameters(recurse=False), *memory.named_buffers(recurse=False)):
        if key not in memory._non_persistent_buffers_set:
            found[key] = tensor.detach()
    return found


def load_weights(
    folder: Path, memory: nn.Module, backbone: Backbone | None, lora_scale: float, *, updates: bool = True
) -> bool:
    """Loads `memory.safetensors` into `memory` and attaches its low-rank updates to `backbone`; whether there was any file.

    `updates`: False leaves them to whoever wants them by themselves (`load_updates`).

    Raises `AdapterError` for a damaged file, for tensors that are missing, unknown, of another shape (an adapter of
    another backbone or segment length), or not finite.
    """
    file = folder / WEIGHTS
    if not file.exists():
        return False
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{file} is damaged or no safetensors file: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise AdapterError(f"{file}: tensor {name!r} holds NaN or infinity")
    lora = {
        name: tensors.pop(name) for name in list(tensors) if name.startswith("lora.") and name.endswith((".A", ".B"))
    }
    own = own_parameters(memory)
    if missing := sorted(own.keys() - tensors.keys()):
        raise AdapterError(f"{file} lacks {', '.join(missing)}")
    if unknown := sorted(tensors.keys() - own.keys()):
        raise AdapterError(f"{file} has tensors that this memory does not know: {', '.join(unknown)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise AdapterError(
                    f"{file}: {name!r} has the shape {tuple(tensor.shape)}, this memory needs {tuple(own[name].shape)}"
                )
            own[name].copy_(tensor)
        if lora and updates:
            _attach(lora, lora_scale, backbone, file)
    return True


def load_updates(folder: Path) -> dict[str, Tensor]:
    """The low-rank updates by themselves, `lora.<layer>.A` and `lora.<layer>.B`; none if there is no file."""
    file = folder / WEIGHTS
    return (
        {name: tensor for name, tensor in load_file(file).items() if name.startswith("lora.")} if file.exists() else {}
    )


def _attach(lora: dict[str, Tensor], scale: float, backbone: Backbone | None, file: Path) -> None:
    if backbone is None:
        raise AdapterError(f"{file} has low-rank updates, but this model has no backbone")
    layers = dict(backbone.model.named_modules())
    for name in sorted({key.removeprefix("lora.")[:-2] for key in lora}):
        a, b = lora.get(f"lora.{name}.A"), lora.get(f"lora.{name}.B")
        layer = layers.get(name)
        if a is None or b is None:
            raise AdapterError(f"{file}: the low-rank update of {name!r} lacks one of A and B")
        if not isinstance(layer, nn.Linear | Conv1D):
            raise AdapterError(f"{file} updates {name!r}, which is no linear layer of this backbone")
        if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
            raise AdapterError(
                f"{file}: A {tuple(a.shape)} and B {tuple(b.shape)} of the low-rank update of {name!r} do not fit: "
                "they are (r, in) and (out, r)"
            )
        transposed = isinstance(layer, Conv1D)  # GPT-2 keeps its weights so
        shape = (a.shape[1], b.shape[0]) if transposed else (b.shape[0], a.shape[1])
        if shape != tuple(layer.weight.shape):
            raise AdapterError(
                f"{file}: the update of {name!r} has the shape {shape}, the layer {tuple(layer.weight.shape)}"
            )
        a, b = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in (a, b))
        attach(layer, (a, scale * b), transposed=transposed)


def _first(error: ValidationError) -> str:
    """The first of pydantic's complaints on one line, with the field."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
