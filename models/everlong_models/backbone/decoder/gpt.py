"""Describe GPT-2, GPT-NeoX and Falcon: layer norms, an MLP without a gate, and one matrix for queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from everlong_models.backbone.decoder.parts import Description, LayerDescription, Part, Rotations, UngatedMLP
from everlong_models.kernels.linear import Activation
from everlong_models.kernels.norms import Norms

FAMILIES = ("gpt2", "gpt_neox", "falcon")
"""transformers' `model_type`."""
ACTIVATIONS = dict.fromkeys(["gelu", "gelu_python"], Activation.EXACT_GELU) | dict.fromkeys(
    ["gelu_new", "gelu_fast", "gelu_pytorch_tanh"], Activation.GELU
)
"""By transformers' names, of which some mean the same."""


def activation(config: Any) -> str:
    """Return transformers' name of the MLP's activation."""
    names = {"gpt2": "activation_function", "gpt_neox": "hidden_act", "falcon": "activation"}
    return str(getattr(config, names[config.model_type]))


def unsupported_reason(config: Any) -> str | None:
    """Return in words what `describe` does not support about a model with this config; None if it supports everything."""
    if activation(config) not in ACTIVATIONS:
        return f"activation {activation(config)!r}"
    if getattr(config, "alibi", False):
        return "positions as biases of the attention (ALiBi)"
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        return "attention that is scaled by the layer's index"
    return None


def is_matrix(kind: type[nn.Module]) -> bool:
    """Return whether this is one of these families' own classes of a matrix. Does not import Falcon, which would take a while."""
    return kind is Conv1D or (kind.__module__, kind.__name__) == (
        "transformers.models.falcon.modeling_falcon",
        "FalconLinear",
    )


def describe(model: PreTrainedModel, rotations: Rotations) -> Description:
    """Describe a model of one of the `FAMILIES`, for which `unsupported_reason` must be None."""
    config, base = model.config, model.base_model
    layers = base.layers if config.model_type == "gpt_neox" else base.h
    norm = base.final_layer_norm if config.model_type == "gpt_neox" else base.ln_f
    heads = config.num_attention_heads
    kv_heads = layers[0].self_attention.num_kv_heads if config.model_type == "falcon" else heads
    d = config.hidden_size // heads
    return Description(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=d,
        eps=norm.eps,
        activation=ACTIVATIONS[activation(config)],
        scale=layers[0].attn.scaling if config.model_type == "gpt2" else d**-0.5,
        layers=[_layer(config.model_type, layer, (heads, kv_heads, d)) for layer in layers],
        rotations=rotations,
        norm=norm.weight.detach(),
        norm_bias=norm.bias.detach(),
        parallel=is_parallel(config),
        positions=base.wpe if config.model_type == "gpt2" else None,
        centred=True,
    )


def is_parallel(config: Any) -> bool:
    """Return whether attention and MLP of a layer have the same input, the residual stream before both."""
    if config.model_type == "falcon":
        return bool(config.new_decoder_architecture or config.parallel_attn)
    return bool(getattr(config, "use_parallel_residual", False))


def _layer(kind: str, layer: Any, sizes: tuple[int, int, int]) -> LayerDescription:
    mlp, (heads, _, d) = layer.mlp, sizes
    if kind == "gpt2":
        qkv, o = _stacked(layer.attn.c_attn, heads * d), Part(layer.attn.c_proj)
        ungated, (before, between) = UngatedMLP(Part(mlp.c_fc), Part(mlp.c_proj)), (layer.ln_1, layer.ln_2)
    else:
        attention = layer.attention if kind == "gpt_neox" else layer.self_attention
        qkv, o = _interleaved(attention.query_key_value, *sizes), Part(attention.dense)
        ungated, (before, between) = UngatedMLP(Part(mlp.dense_h_to_4h), Part(mlp.dense_4h_to_h)), norms_of(layer)
    q, k, v = qkv
    return LayerDescription(
        q, k, v, o, ungated,
        norms=Norms(before=before.weight.detach(), between=between.weight.detach()), window=None, rotation=0,
        norm_biases=(before.bias.detach(), between.bias.detach()),
    )  # fmt: skip


def _stacked(module: Conv1D, width: int) -> tuple[Part, Part, Part]:
    """Return queries, keys and values of a matrix that has all queries, then all keys, then all values, each of the same width."""
    return Part(module, slice(width)), Part(module, slice(width, 2 * width)), Part(module, slice(2 * width, None))


def _interleaved(module: nn.Linear, heads: int, kv_heads: int, d: int) -> tuple[Part, Part, Part]:
    """Return queries, keys and values of a matrix that has, for each key head, its queries, then the key and the value."""
    rows = torch.arange((heads + 2 * kv_heads) * d).view(kv_heads, heads // kv_heads + 2, d)
    q, k, v = (which.flatten() for which in (rows[:, :-2], rows[:, -2], rows[:, -1]))
    return Part(module, q), Part(module, k), Part(module, v)


def norms_of(layer: Any) -> tuple[nn.LayerNorm, nn.LayerNorm]:
    """Return the norms before attention and before the MLP, of GPT-NeoX or Falcon."""
    if hasattr(layer, "ln_attn"):  # Falcon 40B
        return layer.ln_attn, layer.ln_mlp
    # Falcon 7B has one norm for both.
    return layer.input_layernorm, getattr(layer, "post_attention_layernorm", layer.input_layernorm)
