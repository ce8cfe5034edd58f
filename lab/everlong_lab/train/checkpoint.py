"""A training run on disk: weights and their average, optimiser, random numbers, position and the memories that rows carry, in one file.

One safetensors file, no pickle. It is written beside its place, flushed, and renamed: a full disk, or a kill at any
moment, leaves the last good checkpoint.
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
    """What a checkpoint holds beside weights and optimiser: the run's `position`, and the rows' memories."""

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
    """Writes `folder`/checkpoint.safetensors. `recipe`, `tokenizer`: their digests. Raises `RunError`; the old checkpoint then stays."""
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
        with scratch.open("rb+") as written:
            os.fsync(written.fileno())
        scratch.replace(folder / FILE)
    except (OSError, SafetensorError) as error:
        scratch.unlink(missing_ok=True)
        kept = "the last good one is kept" if (folder / FILE).exists() else "none was written yet"
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
    """Takes up weights, their `average`, optimiser and random numbers where `save` left them.

    Raises `RunError` if there is no checkpoint, it is damaged, or is one of another recipe, tokenizer or architecture.
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
        raise RunError(f"{file} is no checkpoint of a training run")
    if metadata["recipe"] != recipe:
        raise RunError(
            f"{file} belongs to another recipe: resume with the one it was begun with, or choose another --out"
        )
    if metadata.get("tokenizer", tokenizer) != tokenizer:  # one of a version before has none
        raise RunError(
            f"{file} was begun with other data: the tokenizer made of it was {metadata['tokenizer'][:12]}…, that of this data is "
            f"{tokenizer[:12]}…; resume with the --data that it was begun with, or choose another --out"
        )
    for name, parameter in parameters.items():
        saved = tensors.get(f"parameter.{name}")
        if saved is None or saved.shape != parameter.shape:
            shape = None if saved is None else tuple(saved.shape)
            raise RunError(f"{file} is of another architecture: {name} is {shape}, should be {tuple(parameter.shape)}")
        parameter.data.copy_(saved)
        optimizer.state[parameter] = {
            # A step count stays where the optimiser keeps it, a moment goes where its parameter is.
            key: value.to(parameter.device) if value.dim() else value.to(_step_device(optimizer, parameter))
            for key, value in _of(tensors, "optimizer", name).items()
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
            if (random := tensors.get(f"random.cuda.{number}")) is not None:
                torch.cuda.set_rng_state(random, number)


def _of(tensors: Mapping[str, Tensor], kind: str, name: str) -> dict[str, Tensor]:
    """`kind`.<key>.`name` by key."""
    return {
        key.split(".", 2)[1]: value
        for key, value in tensors.items()
        if key.startswith(f"{kind}.") and key.split(".", 2)[2] == name
    }


def _step_device(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> torch.device:
    fused = any(group.get("fused") for group in optimizer.param_groups)
    return parameter.device if fused else torch.device("cpu")
