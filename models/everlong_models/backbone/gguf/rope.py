"""Rotary positions of a GGUF file, as transformers' `rope_parameters`."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from everlong_models.backbone.gguf.file import GGUFFile

LLAMA_3, SHORT, LONG = TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors of factors by which frequencies are divided: those of Llama 3, and those of Phi 3 for short and for long texts."""
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Llama 3 to 3.3 have in common. Files have only the factors that follow from it."""
_KINDS = ("none", "linear", "yarn", "longrope")


def unreadable_reason(file: GGUFFile, name: str, head_dim: int) -> str | None:
    """Return in words what about the rotary positions of the architecture `name` is not read; None if all is."""
    kind = _kind(file, name)
    if kind not in _KINDS or (kind == "longrope" and not {SHORT, LONG} <= file.tensors.keys()):
        return f"rotary positions with scaling {kind!r}"
    if kind in ("linear", "yarn") and f"{name}.rope.scaling.factor" not in file.metadata:
        return f"rotary positions with scaling {kind!r}, without a factor"
    if kind == "yarn" and f"{name}.rope.scaling.original_context_length" not in file.metadata:
        return "rotary positions with scaling 'yarn', without the original length"
    if LLAMA_3 in file.tensors and not _is_llama_3(file, name, head_dim):
        return f"rotary positions with other factors than Llama 3's ({LLAMA_3})"
    return None


def is_scaled(file: GGUFFile, name: str) -> bool:
    """Return whether positions are scaled, or frequencies have factors."""
    return _kind(file, name) != "none" or any(tensor in file.tensors for tensor in TENSORS)


def is_partial(file: GGUFFile, name: str) -> bool:
    """Return whether only a part of each head is rotated, as in Phi 4 mini."""
    count, heads = file.metadata.get(f"{name}.rope.dimension_count"), file.metadata.get(f"{name}.attention.head_count")
    width = file.metadata.get(f"{name}.embedding_length")
    whole = file.metadata.get(f"{name}.attention.key_length", width // heads if width and heads else None)
    return name == "phi3" and count is not None and count != whole


def original_length(file: GGUFFile, name: str, default: int) -> int:
    """Return the length of texts that the model was first trained with."""
    return int(file.metadata.get(f"{name}.rope.scaling.original_context_length", default))


def parameters(file: GGUFFile, name: str, theta: float, length: int, head_dim: int) -> dict[str, Any]:
    """Return the parameters. `unreadable_reason` must be None. `length`: of the longest text."""
    kind, scaling = _kind(file, name), f"{name}.rope.scaling"
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if name == "phi3":
        found["partial_rotary_factor"] = file.metadata.get("phi3.rope.dimension_count", head_dim) / head_dim
    if LLAMA_3 in file.tensors:
        return found | {"rope_type": "llama3", "factor": float(_factors(file, LLAMA_3).max())} | _LLAMA_3
    if kind == "longrope":
        short, long = (_factors(file, tensor).astype(float).tolist() for tensor in (SHORT, LONG))
        found |= {
            "rope_type": "longrope", "short_factor": short, "long_factor": long,
            "original_max_position_embeddings": original_length(file, name, length),
        }  # fmt: skip
    elif kind != "none":
        found |= {"rope_type": kind, "factor": file.metadata[f"{scaling}.factor"]}
        if kind == "yarn":
            found["original_max_position_embeddings"] = original_length(file, name, length)
    if kind in ("yarn", "longrope") and (factor := file.metadata.get(f"{scaling}.attn_factor")) is not None:
        found["attention_factor"] = factor
    return found


def _kind(file: GGUFFile, name: str) -> str:
    if SHORT in file.tensors or LONG in file.tensors:  # older files do not name it
        return "longrope"
    return str(file.metadata.get(f"{name}.rope.scaling.type", "none"))


def _factors(file: GGUFFile, name: str) -> np.ndarray:
    return file.rows(name)[0].view(np.float32)


def _is_llama_3(file: GGUFFile, name: str, head_dim: int) -> bool:
    """Return whether the file's factors are those that transformers computes for Llama 3."""
    factors, theta = _factors(file, LLAMA_3), file.metadata.get(f"{name}.rope.freq_base", 10000.0)
    rope = {"rope_type": "llama3", "rope_theta": theta, "factor": float(factors.max()), **_LLAMA_3}
    config = LlamaConfig(head_dim=head_dim, rope_parameters=rope)
    wanted = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
    plain = 1 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    return wanted.shape == factors.shape and np.allclose(plain / factors, wanted, rtol=1e-3)
