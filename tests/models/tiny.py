"""Tiny random backbones in float64, one of each family."""

from __future__ import annotations

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from everlong_models.backbone.backbone import Backbone

VOCAB = 97


def llama(dtype: torch.dtype = torch.float64, **changes: int) -> Backbone:
    """Two layers, grouped-query attention, rotary positions."""
    config = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    return _backbone(LlamaForCausalLM, LlamaConfig(**(config | changes)), dtype)


def gpt2(dtype: torch.dtype = torch.float64, **changes: int) -> Backbone:
    """Two layers, learned positions."""
    config = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128}
    return _backbone(GPT2LMHeadModel, GPT2Config(**(config | changes), bos_token_id=0, eos_token_id=0), dtype)


FAMILIES = {"llama": llama, "gpt2": gpt2}


def _backbone(kind: type[PreTrainedModel], config: object, dtype: torch.dtype) -> Backbone:
    torch.manual_seed(0)
    model = kind(config)
    for module in list(model.modules()):
        for name, norm in module.named_children():
            if isinstance(norm, LlamaRMSNorm):
                # Transformers' own computes in float32, whatever the weights: too coarse for comparing to 1e-9.
                setattr(module, name, nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon))
    return Backbone(model.to(dtype).eval())
