"""Rotary positions of a GGUF file, as transformers' `rope_parameters`."""

from __future__ import annotations

import math
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
_PARTIAL = ("phi3", "gptneox")
"""Architectures that may rotate only a part of each head."""
_READ: dict[str, tuple[str, ...]] = {
    "type": _KINDS, "factor": ("linear", "yarn"), "attn_factor": ("yarn", "longrope"), "original_context_length": _KINDS,
    "finetuned": _KINDS, "yarn_beta_fast": ("yarn",), "yarn_beta_slow": ("yarn",),
}  # fmt: skip
"""Metadata under `rope.scaling`, and the kinds of scaling with which it is read. `finetuned` changes nothing."""
_NEUTRAL = {
    "factor": (0, 1),
    "attn_factor": (1,),
    "yarn_ext_factor": (1,),
    "yarn_attn_factor": (1,),
    "yarn_log_multiplier": (0,),
}
"""Values with which a field changes nothing."""
_BETAS = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}


def unreadable_reason(file: GGUFFile, name: str, head_dim: int) -> str | None:
    """Return in words what about the rotary positions of the architecture `name` is not read; None if all is."""
    kind = _kind(file, name)
    if kind not in _KINDS or (kind == "longrope" and not {SHORT, LONG} <= file.tensors.keys()):
        return f"rotary positions with scaling {kind!r}"
    if kind in ("linear", "yarn") and _factor(file, name) is None:
        return f"rotary positions with scaling {kind!r}, without a factor"
    if kind == "yarn" and f"{name}.rope.scaling.original_context_length" not in file.metadata:
        return "rotary positions with scaling 'yarn', without the original length"
    if found := _unread(file, name, kind):
        return f"rotary positions with scaling {kind!r} and {', '.join(found)}"
    if LLAMA_3 in file.tensors and (kind != "none" or not _is_llama_3(file, name, head_dim)):
        return f"rotary positions with other factors than Llama 3's ({LLAMA_3})"
    rotated = file.metadata.get(f"{name}.rope.dimension_count", head_dim)
    if rotated != head_dim and (name not in _PARTIAL or not 0 < rotated < head_dim):
        return f"rotary positions of {rotated} of the {head_dim} numbers of a head"
    return None


def is_scaled(file: GGUFFile, name: str) -> bool:
    """Return whether positions are scaled, frequencies have factors, or the file has metadata of scaling that is not read."""
    kind = _kind(file, name)
    return kind != "none" or bool(_unread(file, name, kind)) or any(tensor in file.tensors for tensor in TENSORS)


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
    if name in _PARTIAL:
        found["partial_rotary_factor"] = _share(file.metadata.get(f"{name}.rope.dimension_count", head_dim), head_dim)
    if LLAMA_3 in file.tensors:
        return found | {"rope_type": "llama3", "factor": float(_factors(file, LLAMA_3).max())} | _LLAMA_3
    if kind == "longrope":
        short, long = (_factors(file, tensor).astype(float).tolist() for tensor in (SHORT, LONG))
        found |= {
            "rope_type": "longrope", "short_factor": short, "long_factor": long,
            "original_max_position_embeddings": original_length(file, name, length),
        }  # fmt: skip
    elif kind != "none":
        found |= {"rope_type": kind, "factor": _factor(file, name)}
        if kind == "yarn":
            found["original_max_position_embeddings"] = original_length(file, name, length)
            betas = {ours: file.metadata.get(f"{scaling}.{theirs}") for ours, theirs in _BETAS.items()}
            found |= {ours: value for ours, value in betas.items() if value is not None}
    if kind in ("yarn", "longrope") and (factor := file.metadata.get(f"{scaling}.attn_factor")) is not None:
        found["attention_factor"] = factor
    return found


def _share(part: int, whole: int) -> float:
    """Return part / whole such that transformers, which rounds down its product with `whole`, finds `part` again."""
    share = part / whole
    return share if int(whole * share) == part else math.nextafter(share, 1)


def _kind(file: GGUFFile, name: str) -> str:
    if SHORT in file.tensors or LONG in file.tensors:  # older files do not name it
        return "longrope"
    kind = str(file.metadata.get(f"{name}.rope.scaling.type", "linear"))  # as llama.cpp does
    named, factor = f"{name}.rope.scaling.type" in file.metadata, _factor(file, name)
    plain = factor in _NEUTRAL["factor"] or (factor is None and not named)
    return "none" if kind == "linear" and plain else kind


def _factor(file: GGUFFile, name: str) -> float | None:
    """Return the factor by which positions are divided; old files have it under another name."""
    found: float | None = file.metadata.get(
        f"{name}.rope.scaling.factor", file.metadata.get(f"{name}.rope.scale_linear")
    )
    return found


def _unread(file: GGUFFile, name: str, kind: str) -> list[str]:
    """Return metadata that changes positions but is not read with this kind of scaling. With `none`, a factor has no effect."""
    prefix = f"{name}.rope.scaling."
    fields = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    ignored = {"factor"} if kind == "none" else set()
    return [
        f"{key} {value}"
        for key, value in fields.items()
        if kind not in _READ.get(key, ()) and key not in ignored and value not in _NEUTRAL.get(key, ())
    ]


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
