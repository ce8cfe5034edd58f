"""Tiny random models with recurrent layers, one of each family that the memory `native` supports, with the switches of real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.tinymodel import make_tokenizer

VOCAB = 97

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_ATTENTION = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 512,
    "num_hidden_layers": 4, "attn_implementation": "sdpa",
}  # fmt: skip
_MAMBA_2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
}
_HYBRID = ["linear_attention", "full_attention", "linear_attention", "full_attention"]

_DELTA = {"layer_types": _HYBRID, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}

CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "falcon_mamba": {"state_size": 8},
    "recurrent_gemma": _ATTENTION | {"attention_window_size": 12, "lru_width": 48, "num_key_value_heads": 1},
    "lfm2": _ATTENTION | {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "granitemoehybrid": _ATTENTION | _MAMBA_2 | {
        "layer_types": _HYBRID, "position_embedding_type": "nope", "num_local_experts": 0, "shared_intermediate_size": 48,
        "embedding_multiplier": 12.0, "logits_scaling": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.05,
    },
    "falcon_h1": _ATTENTION | _MAMBA_2 | {
        "mamba_d_ssm": 64, "head_dim": 16, "lm_head_multiplier": 0.05, "embedding_multiplier": 5.0, "key_multiplier": 0.4,
    },
    "bamba": _ATTENTION | _MAMBA_2 | {"attn_layer_indices": [1, 3], "partial_rotary_factor": 0.5},
    "zamba2": _ATTENTION | {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "num_mem_blocks": 1, "use_mem_rope": True,
        "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 2, "mamba_d_state": 8, "chunk_size": 8, "adapter_rank": 4,
        "num_key_value_heads": 4, "use_shared_attention_adapter": True,
    },
    "jamba": _ATTENTION | {
        "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
        "expert_layer_period": 2, "expert_layer_offset": 1,
    },
    "nemotron_h": _ATTENTION | {
        "layers_block_type": ["mamba", "attention", "mamba", "moe"], "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2,
        "ssm_state_size": 8, "chunk_size": 8, "head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_shared_expert_intermediate_size": 16,
    },
    "lfm2_moe": _ATTENTION | {
        "layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "num_dense_layers": 1,
    },
    "qwen3_5_text": _ATTENTION | _DELTA | {"head_dim": 16, "linear_num_value_heads": 4},
    "olmo_hybrid": _ATTENTION | _DELTA | {"pad_token_id": 0, "linear_num_value_heads": 4},
    "qwen3_next": _ATTENTION | {
        "layer_types": _HYBRID, "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip
"""What differs from the defaults of each family's config."""


def recurrent(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """Return a tiny random model of the family, ready for inference."""
    torch.manual_seed(0)
    options = _SIZES | CONFIGS[family] | changes
    attention = options.pop("attn_implementation", None)
    config = AutoConfig.for_model(family, **options)
    model = AutoModelForCausalLM.from_config(config, **({"attn_implementation": attention} if attention else {}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "A_log" not in name and "conv" not in name:
                nn.init.normal_(weight, std=0.2)  # larger than usual, so that the past matters
    return model.to(dtype).eval().requires_grad_(False)


def save_recurrent(folder: Path, family: str = "mamba2", vocab: int = 512, **changes: Any) -> Path:
    """Save a tiny model of the family with a tokenizer, for `--model`. Return the folder."""
    recurrent(family, vocab_size=vocab, **changes).save_pretrained(folder)
    make_tokenizer(vocab).save_pretrained(folder)
    return folder


FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {
    family: lambda family=family, **changes: recurrent(family, **changes) for family in CONFIGS
}
