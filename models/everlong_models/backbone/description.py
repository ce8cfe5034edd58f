"""`describe`: what the layers of a decoder consist of, in one description (`decoder.parts`) for all supported families.

The description refers to the model's own matrices; only Gemma's norm weights are computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from everlong_models.backbone.decoder import gpt
from everlong_models.backbone.decoder.fusing import can_fuse
from everlong_models.backbone.decoder.parts import Description, GatedMLP, LayerDescription, Mixture, Part, Rotations
from everlong_models.kernels.linear import Activation
from everlong_models.kernels.low_rank import has_float_weight
from everlong_models.kernels.norms import Norms

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "granite", "smollm3", "olmo2", "olmo3",
    *gpt.FAMILIES,
)  # fmt: skip
"""transformers' `model_type` of the families that `describe` supports."""
_GATES = (Activation.SILU, Activation.GELU)
FIXED_FREQUENCIES = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose frequencies do not depend on the length of the text."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return in words what `describe` does not support about `model`; None if it supports everything."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"architecture {config.model_type!r}"
    if config.model_type in gpt.FAMILIES:
        if (reason := gpt.unsupported_reason(config)) is not None:
            return reason
    elif _activation(config) not in {kind.value for kind in _GATES}:
        return f"activation {_activation(config)!r}"
    if not has_fixed_frequencies(config) and _short_positions(model) is None:
        return f"rotary positions {config.rope_parameters}"
    if getattr(config, "use_bidirectional_attention", False):
        return "attention to later positions"
    shape, head = describe(model), model.get_output_embeddings()
    matrices = [part.module for layer in shape.layers for part in layer.matrices]
    # Not isinstance: adapters and quantised matrices derive from nn.Linear and compute something else.
    kinds = {_kind(matrix) for matrix in [*matrices, head]}
    others = {kind for kind in kinds if kind is not nn.Linear and not gpt.is_matrix(kind)}
    if others:
        return f"matrices of type {', '.join(map(str, others))}"
    return _unsupported_experts(shape, head)


def _unsupported_experts(shape: Description, head: Any) -> str | None:
    mixtures = [layer.mlp for layer in shape.layers if isinstance(layer.mlp, Mixture)]
    for mixture in mixtures:
        if any(parametrize.is_parametrized(module) for module in (mixture.gate, mixture.experts)):
            return "experts with an update of their weights"
        if not all(has_float_weight(mixture.experts, name) for name in ("gate_up_proj", "down_proj")):
            return "experts with quantised weights"
    # `Experts` would wait for the device in every layer.
    if mixtures and (device := head.weight.device).type != "cpu" and not can_fuse(shape, head.weight):
        return f"a mixture of experts on {device} without Triton"
    return None


def has_fixed_frequencies(config: Any) -> bool:
    """Return whether the rotary frequencies never change, in any layer."""
    return all(rope.get("rope_type", "default") in FIXED_FREQUENCIES for rope in _ropes(config))


def has_movable_keys(config: Any) -> bool:
    """Return whether `rotary` can move keys to other positions: no learned positions or biases, and frequencies that never change."""
    other = config.model_type == "gpt2" or getattr(config, "alibi", False)
    return config.model_type in FAMILIES and not other and has_fixed_frequencies(config)


def _short_positions(model: PreTrainedModel) -> int | None:
    """Return how long a text may be for the frequencies of short ones (`short` of `Rotations`)."""
    config = model.config
    if [rope.get("rope_type") for rope in _ropes(config)] != ["longrope"]:
        return None
    return int(config.rope_parameters["original_max_position_embeddings"])


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of the rotary positions: one for all layers, or one for each kind of layer; none for learned positions."""
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        return []
    return [each for each in rope.values() if each] if _by_kind(rope) else [rope]


def _by_kind(rope: dict[str, Any]) -> bool:
    """Return whether these are parameters for each kind of layer, by its name."""
    return all(value is None or isinstance(value, dict) for value in rope.values())


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def rotations_of(model: PreTrainedModel) -> tuple[Rotations, list[int]]:
    """Return the rotary tables of a model of one of the `FAMILIES`, and which of them each layer uses."""
    config, base = model.config, model.base_model
    if config.model_type in gpt.FAMILIES:
        kind = "" if _ropes(config) else None
        return Rotations(getattr(base, "rotary_emb", base), [kind]), [0] * config.num_hidden_layers
    kinds = [_rotation(config, layer.self_attn, index) for index, layer in enumerate(base.layers)]
    distinct = list(dict.fromkeys(kinds))
    return Rotations(base.rotary_emb, distinct, _short_positions(model)), [distinct.index(kind) for kind in kinds]


def describe(model: PreTrainedModel) -> Description:
    """Describe a model of one of the `FAMILIES`."""
    config, base = model.config, model.base_model
    rotations, of_layers = rotations_of(model)
    if config.model_type in gpt.FAMILIES:
        return gpt.describe(model, rotations)
    first = base.layers[0].self_attn
    return Description(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=first.head_dim,
        eps=config.rms_norm_eps,
        activation=Activation(_activation(config)),
        scale=first.scaling,
        layers=[
            _layer(config, layer, index, rotation) for index, (layer, rotation) in enumerate(zip(base.layers, of_layers, strict=True))
        ],
        rotations=rotations,
        norm=_norm_weight(base.norm),
        residual=getattr(config, "residual_multiplier", 1.0),
        # Gemma 3 has the field, too, but its attention does not use it.
        cap=config.attn_logit_softcapping if config.model_type == "gemma2" else None,
        embedding=getattr(config, "embedding_multiplier", 1.0),
        head=1 / getattr(config, "logits_scaling", 1.0),
        head_cap=getattr(config, "final_logit_softcapping", None),
    )  # fmt: skip


def _layer(config: Any, layer: Any, index: int, rotation: int) -> LayerDescription:
    a, mlp = layer.self_attn, layer.mlp
    described: GatedMLP | Mixture
    if hasattr(a, "qkv_proj"):  # Phi 3
        q, k = config.num_attention_heads * a.head_dim, config.num_key_value_heads * a.head_dim
        rows = slice(0, q), slice(q, q + k), slice(q + k, None)
        qkv = (Part(a.qkv_proj, rows[0]), Part(a.qkv_proj, rows[1]), Part(a.qkv_proj, rows[2]))
        gate, up = slice(0, config.intermediate_size), slice(config.intermediate_size, None)
        described = GatedMLP(Part(mlp.gate_up_proj, gate), Part(mlp.gate_up_proj, up), Part(mlp.down_proj))
    else:
        qkv = (Part(a.q_proj), Part(a.k_proj), Part(a.v_proj))
        described = (
            Mixture(mlp.gate, mlp.experts)
            if hasattr(mlp, "experts")
            else GatedMLP(Part(mlp.gate_proj), Part(mlp.up_proj), Part(mlp.down_proj))
        )
    return LayerDescription(
        *qkv, Part(a.o_proj), described,
        norms=_norms(layer), window=layer_window(config, index), rotation=rotation,
    )  # fmt: skip


def norm_modules(layer: Any) -> dict[str, nn.Module]:
    """Return a layer's norms by the fields of `Norms`."""
    after = hasattr(layer, "post_feedforward_layernorm")  # then "post attention" is a norm of what attention adds
    names = {
        "before": (layer, "input_layernorm"),
        "between": (layer, "pre_feedforward_layernorm" if after else "post_attention_layernorm"),
        "after_attention": (layer, "post_attention_layernorm" if after else ""),
        "after_mlp": (layer, "post_feedforward_layernorm"),
        "queries": (layer.self_attn, "q_norm"),
        "keys": (layer.self_attn, "k_norm"),
    }
    found = {field: getattr(owner, name, None) for field, (owner, name) in names.items()}
    return {field: norm for field, norm in found.items() if norm is not None}


def _norms(layer: Any) -> Norms:
    weights = {field: _norm_weight(norm) for field, norm in norm_modules(layer).items()}
    return Norms(**weights, whole="queries" in weights and len(weights["queries"]) != layer.self_attn.head_dim)


def _norm_weight(norm: Any) -> Tensor:
    """Return what a norm multiplies by. Gemma stores this minus one."""
    weight: Tensor = norm.weight.detach()
    return (
        1 + weight.to(torch.promote_types(weight.dtype, torch.float32))
        if type(norm).__name__.startswith("Gemma")
        else weight
    )


def layer_window(config: Any, index: int) -> int | None:
    """Return how many positions a query of a layer sees, its own included; None: all."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[index] != "sliding_attention":
        return None
    return sliding_window(config)


def sliding_window(config: Any) -> int | None:
    """Return how many positions layers with a sliding window see; None if the architecture has no such layers, whatever its config says."""
    window: int | None = getattr(config, "sliding_window", None)
    return window if hasattr(type(config), "sliding_window") else None


def _rotation(config: Any, attention: Any, index: int) -> str | None:
    """Return the name of a layer's rotary tables (see `Rotations`)."""
    if not getattr(attention, "use_rope", True):
        return None
    return rotary_kind(config, index)


def rotary_kind(config: Any, index: int) -> str:
    """Return the name of a layer's rotary tables in transformers' module; "" for the only ones."""
    rope = getattr(config, "rope_parameters", None)
    return str(config.layer_types[index]) if rope and _by_kind(rope) else ""


def _kind(matrix: nn.Module) -> type:
    """Return the class of a matrix. For one with a low-rank update, whose class PyTorch derives, the original class; for a quantised one,
    that of its weight."""
    if parametrize.is_parametrized(matrix, "weight"):
        return type(matrix).__bases__[0]
    own = type(matrix) is nn.Linear or gpt.is_matrix(type(matrix))
    return type(matrix.weight) if own and not has_float_weight(matrix) else type(matrix)
