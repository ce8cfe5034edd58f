"""`WeightFormat`: the number format that a backbone's weights will have, and how many bytes they take. Known before loading."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from everlong_models.backbone.number_formats import checkpoint, on_load
from everlong_models.backbone.text_part import text_part
from everlong_models.catalogue.machine import free_memory
from everlong_models.errors import BackboneError

_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Types of tensors in files that become the requested dtype, and their bytes. Others are loaded as they are."""
_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
"""Bytes of other types; those that are not here have one."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights of a backbone are held.

    `name`: of the numbers. `detail`: what a refusal says about them. `loads`: arguments for transformers. `packed`: the weights are not
    plain tensors of floats; transformers then puts them on the device itself. `by_files`: the fingerprint covers
    the files. The model may hold their tensors in another layout on each device, or where PyTorch does not list them; and to list those of
    bitsandbytes in 4 bits on a CPU spoils them.
    `rows_mix`: what a row computes depends on the other rows of its batch.
    """

    name: str
    bytes: int
    detail: str
    loads: Mapping[str, Any] = field(default_factory=dict)
    packed: bool = False
    by_files: bool = False
    rows_mix: bool = False

    def require_memory(self, folder: Path, device: torch.device, parts: int = 1) -> None:
        """Raise `BackboneError` if one of `parts` of the weights alone exceeds the free memory; the kernel would kill the process otherwise."""
        free, needed = free_memory(device), self.bytes // parts
        if needed > free:
            raise BackboneError(
                f"the weights in {folder} take {needed / 1e9:.1f} GB ({self.detail}); {device} has {free / 1e9:.1f} GB free"
            )


def weight_format(
    folder: Path, device: torch.device, dtype: torch.dtype, gpu_quantize: on_load.Method | None = None
) -> WeightFormat:
    """Return how the backbone in `folder` will hold its weights.

    A checkpoint that is quantised already keeps its numbers, whatever `gpu_quantize` says. Raises `BackboneError` for a method that cannot
    be used here.
    """
    config, name = _config(folder), str(dtype).removeprefix("torch.")
    method = checkpoint.method_of(config)
    if method is not None:
        return _of_checkpoint(folder, config, method, device, dtype)
    if gpu_quantize is not None and config is not None:
        held, size = on_load.torchao_config(gpu_quantize), on_load.quantised_bytes(config, gpu_quantize, dtype)
        loads = {"quantization_config": held, "device_map": {"": str(device)}}
        name = on_load.number_format(gpu_quantize)
        return WeightFormat(name, size, f"{name}, the rest in {dtype}".replace("torch.", ""), loads, packed=True)
    numbers = sum(math.prod(shape) for file in files(folder) for _, shape in _tensors(file))
    return WeightFormat(name, numbers * dtype.itemsize, f"{numbers / 1e6:,.0f} million numbers of {name}")


def _of_checkpoint(folder: Path, config: Any, method: str, device: torch.device, dtype: torch.dtype) -> WeightFormat:
    name = str(dtype).removeprefix("torch.")
    try:
        config, kept = checkpoint.prepare(config, device)
    except BackboneError as error:
        raise BackboneError(f"{folder}: {error}") from error
    if not kept:
        numbers = on_load.float_numbers(config)
        detail = f"{numbers / 1e6:,.0f} million numbers of {name}, which {device} computes instead of those of {method}"
        return WeightFormat(f"{name} made of {method}", numbers * dtype.itemsize, detail, {"config": config})
    size = sum(
        math.prod(shape) * (dtype.itemsize if kind in _FLOATS else _BYTES.get(kind, 1))
        for file in files(folder)
        for kind, shape in _tensors(file)
    )
    loads = {"config": config, "device_map": {"": str(device)}}
    mix, detail = checkpoint.rows_mix(config), f"{method}, as in the checkpoint"
    by_files = not config.quantization_config.get("load_in_8bit")  # the fingerprints of 0.1.0 cover these tensors
    return WeightFormat(method, size, detail, loads, packed=True, by_files=by_files, rows_mix=mix)


def files(folder: Path) -> list[Path]:
    """Return the files that transformers loads; some folders also hold the same weights under other names."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole]
    try:
        return [folder / name for name in set(json.loads(index.read_text())["weight_map"].values())]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # loading reports a damaged index
        return []


def _tensors(file: Path) -> list[tuple[str, list[int]]]:
    """Return type and shape of each tensor in a file."""
    try:
        with safe_open(file, "pt") as weights:
            parts = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118
            return [(part.get_dtype(), part.get_shape()) for part in parts]
    except (OSError, SafetensorError):  # loading reports a damaged file
        return []


def _config(folder: Path) -> Any:
    """Return the config of the decoder that is loaded; None if it is damaged."""
    try:
        return text_part(folder).get("config") or AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception:  # loading reports it; transformers raises all kinds of errors
        return None


def digest(folder: Path) -> str:
    """Return the SHA-256 of the files that transformers loads. Loaded, a quantised checkpoint's tensors may have another layout on each device."""
    whole = hashlib.sha256()
    for file in sorted(files(folder)):
        with file.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()
