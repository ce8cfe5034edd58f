"""Small random models of the families that have the fast path, each with the switches of its real configs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_GEMMA = {"sliding_window": 12, "query_pre_attn_scalar": 20, "layer_types": _MIXED}
_DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
SWITCHES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 9},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "gemma2": _GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3_text": _GEMMA,
    "phi3": {"original_max_position_embeddings": 24},
    "granite": _GRANITE,
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "olmo2": {},
    "olmo3": {
        "sliding_window": 9,
        "layer_types": _MIXED,
        "rope_parameters": {"sliding_attention": _DEFAULT, "full_attention": _YARN},
    },
    "gpt2": {"bos_token_id": 0, "eos_token_id": 0},
    "gpt_neox": {"intermediate_size": 192},
    "falcon": {"bos_token_id": 0, "eos_token_id": 0},
}
"""By transformers' `model_type`. The models have three layers."""

OTHERS: dict[str, dict[str, Any]] = {"gemma": {}}
"""Families without the fast path."""
GPT = ("gpt2", "gpt_neox", "falcon")
"""Families whose heads are the width divided by their number."""
_FALCON_40B = {"new_decoder_architecture": True, "num_kv_heads": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe-in-part": (
        "qwen3_moe",
        {"mlp_only_layers": [1], "norm_topk_prob": False, "num_experts": 9, "num_experts_per_tok": 3},
    ),
    "gpt2-exact-gelu": ("gpt2", {"activation_function": "gelu", "n_inner": 64}),
    "gpt2-unscaled": ("gpt2", {"scale_attn_weights": False}),
    "pythia": (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ),
    "neox-20b": ("gpt_neox", {"hidden_act": "gelu_fast"}),
    "neox-in-turn": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    "falcon-40b": ("falcon", _FALCON_40B),
    "falcon-11b": ("falcon", _FALCON_40B | {"num_ln_in_parallel_attn": 1, "ffn_hidden_size": 64}),
    "falcon-in-turn": ("falcon", {"parallel_attn": False, "multi_query": False, "bias": True}),
}
"""Other models of these families: what differs from `SWITCHES`."""


def mark_rare_long(
    kinds: Iterable[str], common: Container[str] = frozenset({"llama", "mistral", "qwen2", "qwen3"})
) -> list[Any]:
    """Return the kinds as test parameters. All but the `common` ones have the mark `long`: they are many, and some compile kernels of their own."""
    return [kind if kind in common else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


def model(kind: str, **sizes: Any) -> PreTrainedModel:
    """Return a model of this `model_type` of `SWITCHES` or `OTHERS`, or of `VARIANTS`, with the weights that transformers initialises it with."""
    kind, switches = VARIANTS.get(kind, (kind, {}))
    fields = SIZES | {**SWITCHES, **OTHERS}[kind] | switches | sizes
    if kind in GPT:
        del fields["head_dim"], fields["num_key_value_heads"]
    if kind == "phi3":  # its config has no head_dim
        del fields["head_dim"]
        half = int(fields["hidden_size"] // fields["num_attention_heads"] * 0.75) // 2
        fields["rope_parameters"] = {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "short_factor": [1 + n / half for n in range(half)],
            "long_factor": [2 + n for n in range(half)],
        }
    # The default computes experts by an operation that has no float64.
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields), experts_implementation="eager")


def randomise(made: PreTrainedModel, spread: float) -> None:
    """Replace all weights, so that none is trivial: norms near 1, or near 0 where the model adds 1."""
    for module in made.modules():
        around = 0.0 if type(module).__name__.startswith("Gemma") else 1.0
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(
                parameter, around if parameter.dim() == 1 and "Norm" in type(module).__name__ else 0.0, spread
            )
