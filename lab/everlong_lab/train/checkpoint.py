"""Save and restore a training run: weights and their average, optimiser, random state, position, carried memories.

Everything is in one safetensors file, no pickle. The file is written under a temporary name, flushed, and renamed, so a
full disk or a kill at any moment leaves the last good checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from everlong_models.errors import RunError
from everlong_models.memories.state import MemoryState

FILE = "checkpoint.safetensors"
_FORMAT = "everlong.checkpoint.1"


class Restored(NamedTuple):
    """The part of a checkpoint that is returned: the run's `position` and the memories `carried` into the next batch."""

    position: dict[str, Any]
    carried: list[MemoryState]


def save(
    folder: Path,
    *,
    recipe: str,
    tokenizer: str,
    position: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, Tensor],
    carried: list[MemoryState],
) -> None:
    """Write `folder`/checkpoint.safetensors. `recipe` and `tokenizer` are digests.

    Raises `RunError` if the file cannot be written; the previous checkpoint then stays.
    """
    tensors: dict[str, Tensor] = {f"parameter.{name}": parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    tensors |= {f"average.{name}": value for name, value in average.items()}
    for index, state in enumerate(carried):
        tensors |= {f"carried.{index}.{name}": tensor.detach() for name, tensor in state.tensors.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors |= {f"random.cuda.{device}": state for device, state in enumerate(torch.cuda.get_rng_state_all())}
    metadata = {"format": _FORMAT, "recipe": recipe, "tokenizer": tokenizer, "position": json.dumps(position)}
    scratch = folder / f".{FILE}.part"
    try:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, scratch, metadata)
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.replace(folder / FILE)
    except (OSError, SafetensorError) as error:
        scratch.unlink(missing_ok=True)
        kept = "the last good one is kept" if (folder / FILE).exists() else "there is no earlier one"
        raise RunError(f"cannot write a checkpoint to {folder}: {error}; {kept}") from error


def restore(
    folder: Path,
    *,
    recipe: str,
    tokenizer: str,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, Tensor],
) -> Restored:
    """Load weights, their `average`, optimiser and random state from the checkpoint in `folder`, in place.

    Raises `RunError` if there is no checkpoint, if it is damaged, or if its recipe, tokenizer or architecture differ.
    """
    file = folder / FILE
    if not file.is_file():
        raise RunError(f"nothing to resume: no {file}")
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file} is damaged: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise RunError(f"{file} is not a checkpoint of a training run")
    if metadata["recipe"] != recipe:
        raise RunError(
            f"{file} belongs to another recipe: resume with the recipe that started it, or choose another --out"
        )
    if metadata.get("tokenizer", tokenizer) != tokenizer:  # checkpoints of earlier versions have no digest
        raise RunError(
            f"{file} was started with other data: its tokenizer is {metadata['tokenizer'][:12]}…, the one made from this data is "
            f"{tokenizer[:12]}…; resume with the same --data, or choose another --out"
        )
    for name, parameter in parameters.items():
        saved = tensors.get(f"parameter.{name}")
        if saved is None or saved.shape != parameter.shape:
            shape = None if saved is None else tuple(saved.shape)
            raise RunError(
                f"{file} has another architecture: {name} has the shape {shape}, must be {tuple(parameter.shape)}"
            )
        parameter.data.copy_(saved)
        optimizer.state[parameter] = {
            # Step counts stay where the optimiser keeps them; moments move to their parameter's device.
            key: value.to(parameter.device) if value.dim() else value.to(_step_device(optimizer, parameter))
            for key, value in _optimizer_values(tensors, name).items()
        }
    for name, value in average.items():
        value.copy_(tensors[f"average.{name}"])
    _restore_random(tensors)
    carried: dict[int, dict[str, Tensor]] = {}
    device = next(iter(parameters.values())).device
    for key, value in tensors.items():
        if key.startswith("carried."):
            _, index, name = key.split(".", 2)
            carried.setdefault(int(index), {})[name] = value.to(device)
    states = [MemoryState(carried[index]) for index in sorted(carried)]
    return Restored(json.loads(metadata["position"]), states)


def _restore_random(tensors: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(tensors["random.cpu"])
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            if (state := tensors.get(f"random.cuda.{number}")) is not None:
                torch.cuda.set_rng_state(state, number)


def _optimizer_values(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors stored as optimizer.<key>.`name`, by key."""
    return {
        key.split(".", 2)[1]: value
        for key, value in tensors.items()
        if key.startswith("optimizer.") and key.split(".", 2)[2] == name
    }


def _step_device(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> torch.device:
    fused = any(group.get("fused") for group in optimizer.param_groups)
    return parameter.device if fused else torch.device("cpu")
