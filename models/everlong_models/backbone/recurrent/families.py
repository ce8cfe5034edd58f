"""The architectures whose own state the memory `native` keeps, by transformers' `model_type`.

To add one whose recurrent layers transformers can cache, add a line. `prepare` changes layers that cannot continue from a state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedModel

from everlong_models.backbone.recurrent.mixers import rg_lru_from_cache, scan_from_state


def _nothing(model: PreTrainedModel) -> None:
    """transformers' layers read any number of tokens from any state."""


@dataclass(frozen=True, slots=True)
class Family:
    """`name`: as its authors write it. `recurrence`: the recurrent layers, in words."""

    name: str
    recurrence: str
    prepare: Callable[[PreTrainedModel], None] = _nothing


FAMILIES: dict[str, Family] = {
    "mamba": Family("Mamba", "selective state spaces", scan_from_state),
    "mamba2": Family("Mamba-2", "state space duality"),
    "falcon_mamba": Family("Falcon-Mamba", "selective state spaces", scan_from_state),
    "recurrent_gemma": Family("RecurrentGemma", "real-gated linear recurrent units", rg_lru_from_cache),
    "lfm2": Family("LFM2", "short gated convolutions"),
    "lfm2_moe": Family("LFM2 MoE", "short gated convolutions"),
    "granitemoehybrid": Family("Granite 4 H", "state space duality"),
    "falcon_h1": Family("Falcon-H1", "state space duality"),
    "bamba": Family("Bamba", "state space duality"),
    "zamba2": Family("Zamba 2", "state space duality"),
    "jamba": Family("Jamba", "selective state spaces", scan_from_state),
    "nemotron_h": Family("Nemotron-H", "state space duality"),
    "qwen3_next": Family("Qwen3-Next", "gated delta rule"),
    "qwen3_5_text": Family("Qwen3.5", "gated delta rule"),
    "olmo_hybrid": Family("OLMo Hybrid", "gated delta rule"),
}


def supported() -> str:
    """Return the names of all families, for messages."""
    return ", ".join(family.name for family in FAMILIES.values())
