"""A model's fingerprint: SHA-256 over its weights, tokenizer, architecture, memory configuration and the layout of its state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize

from everlong_models.kernels.low_rank import Update, output_update, split_update
from everlong_models.memories.base import SegmentReader
from everlong_models.parallel import whole


def state_layout(module: SegmentReader) -> str:
    """Return names, types and shapes of a state's tensors. A version with another layout gets another fingerprint."""
    tensors = module.initial_state(1).tensors
    return ";".join(f"{name}:{tensors[name].dtype}:{tuple(tensors[name].shape)}" for name in sorted(tensors))


def loaded_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all loaded tensors by stable names.

    A weight and its low-rank update are separate tensors, because their sum may round differently on another machine.
    """
    names = {".parametrizations.weight.original": ".weight", ".parametrizations.weight.0.": ".lora."}
    tensors = module.state_dict()
    for theirs, ours in names.items():
        tensors = {name.replace(theirs, ours): tensor for name, tensor in tensors.items()}
    return {part: held for name, tensor in tensors.items() for part, held in _parts(name, tensor).items()}


def _parts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors that a quantised one consists of, named after its class. Any other, also one that processes share, stays as it is."""
    if isinstance(tensor, DTensor) or not hasattr(tensor, "__tensor_flatten__"):
        return {name: tensor}
    kind, (fields, _) = type(tensor).__name__, tensor.__tensor_flatten__()
    return {f"{name}.{kind}.{field}": getattr(tensor, field) for field in fields}


def update_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the low-rank updates of a model's layers, with their scale in B, by stable names."""
    return {
        f"lora.{name}.{part}": tensor
        for name, module in model.named_modules()
        if (update := _update(module)) is not None
        for part, tensor in zip("ab", update, strict=True)
    }


def _update(module: nn.Module) -> Update | None:
    return split_update(module)[1] if parametrize.is_parametrized(module, "weight") else output_update(module)


def hash_model(tensors: dict[str, Tensor], parts: Iterable[str]) -> str:
    """Return the SHA-256 of `parts` and `tensors`. Empties `tensors`, so that tensors without other references are freed at once."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode() + b"\0")
    for name in sorted(tensors):
        tensor = tensors.pop(name)
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        flat = whole(tensor.detach()).cpu().contiguous().reshape(-1)
        if flat.numel():
            total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()
