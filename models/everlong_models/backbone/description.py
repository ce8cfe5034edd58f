"""`describe`: what the layers of a decoder consist of, in one description for all supported families.

    a = h,           or n(h) with `before`           m likewise, with `between`
    h ← h + ρ A(a),  or h + n(A(a)) with `after_attention`
    h ← h + ρ M(m),  or h + n(M(m)) with `after_mlp`
    A(x) = O attention(rope(Q x), rope(K x), V x),   M(x) = D (act(G x) · U x),   n = RMS norm

M may also be a mixture of experts (`kernels.cpu.experts`). Each expert then has the form of M. Queries and keys may pass norms before their
rotation. Layers may have a sliding window, rotary tables of their own, or no rotation. The description refers to the model's own matrices;
only Gemma's norm weights are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from everlong_models.kernels.experts import Router
from everlong_models.kernels.linear import Activation
from everlong_models.kernels.low_rank import Update, has_float_weight, split_update
from everlong_models.kernels.norms import Norms

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "granite", "smollm3", "olmo2", "olmo3",
)  # fmt: skip
"""transformers' `model_type` of the families that `describe` supports."""
FIXED_FREQUENCIES = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose frequencies do not depend on the length of the text."""


@dataclass(frozen=True, slots=True)
class Part:
    """A matrix: the rows `first` … `end` of a module's weight, because some families store several matrices in one module."""

    module: nn.Linear
    first: int = 0
    end: int | None = None

    @property
    def weight(self) -> Tensor:
        """The rows, with the module's low-rank update."""
        return self.module.weight[self.first : self.end]

    @property
    def bias(self) -> Tensor | None:
        """The bias of these rows."""
        return None if self.module.bias is None else self.module.bias[self.first : self.end]

    @property
    def split(self) -> tuple[Tensor, Update | None]:
        """The rows without the module's low-rank update, and their update."""
        weight, update = split_update(self.module)
        rows = slice(self.first, self.end)
        return weight[rows], None if update is None else (update[0], update[1][rows])


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """The matrices of a gated MLP."""

    gate: Part
    up: Part
    down: Part


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of experts. `gate`: transformers' router, weight (E, D). `experts`: `gate_up_proj` (E, 2 F, D) and `down_proj` (E, D, F)."""

    gate: Any
    experts: Any

    @property
    def router(self) -> Router:
        """What chooses the experts."""
        return Router(self.gate.weight.detach(), self.gate.top_k, self.gate.norm_topk_prob)

    @property
    def matrices(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Gate (F, D), up (F, D) and down (D, F) of each expert."""
        pairs = zip(self.experts.gate_up_proj.detach(), self.experts.down_proj.detach(), strict=True)
        return [(*both.chunk(2), down) for both, down in pairs]

    def drop_weights(self) -> None:
        """Leave the modules without weights, on `meta`."""
        for module in (self.gate, self.experts):
            module.to("meta")


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One layer. `window`: how many positions a query sees, its own included; None: all. `rotation`: index in `Description.rotations`."""

    q: Part
    k: Part
    v: Part
    o: Part
    mlp: GatedMLP | Mixture
    norms: Norms
    window: int | None
    rotation: int

    @property
    def matrices(self) -> list[Part]:
        """All of them, in the order of the fields, without those of experts."""
        mlp = [self.mlp.gate, self.mlp.up, self.mlp.down] if isinstance(self.mlp, GatedMLP) else []
        return [self.q, self.k, self.v, self.o, *mlp]


class Rotations:
    """The rotary tables of a model's layers.

    `kinds`: names of transformers' tables, if it has several; "" for the only one; None for layers that rotate nothing. `short`: texts of
    up to so many positions have other frequencies than longer ones (Phi 3's `longrope`); None if all have the same.
    """

    def __init__(self, module: nn.Module, kinds: Sequence[str | None], short: int | None = None) -> None:
        self._module, self.kinds, self._short = module, tuple(kinds), short

    def __call__(self, x: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return cosines and sines (1 or B, T, r) of each kind, in the type of `x`, for `positions` (1 or B, T); r is 0 without rotation."""
        return [self._table(kind, x, positions) for kind in self.kinds]

    def _table(self, kind: str | None, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if kind is None:
            nothing = x.new_empty(*positions.shape, 0)
            return nothing, nothing
        if self._short is not None and len(positions) > 1:  # transformers would choose by the longest row for all
            cos, sin = (
                torch.cat(rows) for rows in zip(*(self._module(x, row[None]) for row in positions), strict=True)
            )
        else:
            cos, sin = self._module(x, positions, kind) if kind else self._module(x, positions)
        return cos.to(x.dtype), sin.to(x.dtype)

    def of_steps(self, x: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return the tables of decode steps at the positions 0 … `count` - 1, each as if it were the last of its text."""
        positions = torch.arange(count, device=x.device)[None]
        if self._short is None or count <= self._short:
            return self(x, positions)
        parts = zip(self(x, positions[:, : self._short]), self(x, positions[:, self._short :]), strict=True)
        return [(torch.cat([a[0], b[0]], dim=1), torch.cat([a[1], b[1]], dim=1)) for a, b in parts]

    def frequencies(self) -> list[Tensor | None]:
        """Return the frequencies (r/2,) of each kind, in radians per position."""
        return [
            None if kind is None else getattr(self._module, f"{kind}_inv_freq" if kind else "inv_freq")
            for kind in self.kinds
        ]


@dataclass(frozen=True, slots=True)
class Description:
    """A decoder. `scale`: of the attention; `residual`: ρ; `cap`: of attention scores (see `kernels.attention`); `embedding`: factor of the
    first layer's input (Gemma's is in its embedding module); `head`: factor of the logits, which are then capped by `head_cap`."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: Activation
    scale: float
    layers: list[LayerDescription]
    rotations: Rotations
    norm: Tensor
    residual: float = 1.0
    cap: float | None = None
    embedding: float = 1.0
    head: float = 1.0
    head_cap: float | None = None

    @property
    def plain(self) -> bool:
        """Whether every layer is one of Llama's, up to its rotation and window: norms before, none after, none of heads, SiLU, no experts."""
        return (
            self.activation == Activation.SILU
            and self.cap is None
            and all(isinstance(layer.mlp, GatedMLP) for layer in self.layers)
            and all(layer.norms.tensors().keys() == {"before", "between"} for layer in self.layers)
        )


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return in words what `describe` does not support about `model`; None if it supports everything."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"architecture {config.model_type!r}"
    if _activation(config) not in {kind.value for kind in Activation}:
        return f"activation {_activation(config)!r}"
    if not has_fixed_frequencies(config) and _short_positions(model) is None:
        return f"rotary positions {config.rope_parameters}"
    if getattr(config, "use_bidirectional_attention", False):
        return "attention to later positions"
    layers = describe(model).layers
    if (reason := _unsupported_experts([layer.mlp for layer in layers if isinstance(layer.mlp, Mixture)])) is not None:
        return reason
    matrices = [part.module for layer in layers for part in layer.matrices]
    # Not isinstance: adapters and quantised matrices derive from nn.Linear and compute something else.
    others = {_kind(matrix) for matrix in [*matrices, model.get_output_embeddings()]} - {nn.Linear}
    return f"matrices of type {', '.join(map(str, others))}" if others else None


def _unsupported_experts(mixtures: Sequence[Mixture]) -> str | None:
    for mixture in mixtures:
        if (device := mixture.gate.weight.device).type != "cpu":
            return f"a mixture of experts on {device}"
        if any(parametrize.is_parametrized(module) for module in (mixture.gate, mixture.experts)):
            return "experts with an update of their weights"
    return None


def has_fixed_frequencies(config: Any) -> bool:
    """Return whether the rotary frequencies never change, in any layer."""
    return all(rope.get("rope_type", "default") in FIXED_FREQUENCIES for rope in _ropes(config))


def _short_positions(model: PreTrainedModel) -> int | None:
    """Return how long a text may be for the frequencies of short ones (`short` of `Rotations`)."""
    config = model.config
    if [rope.get("rope_type") for rope in _ropes(config)] != ["longrope"]:
        return None
    return int(config.rope_parameters["original_max_position_embeddings"])


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of the rotary positions: one for all layers, or one for each kind of layer."""
    rope = config.rope_parameters
    return [each for each in rope.values() if each] if _by_kind(rope) else [rope]


def _by_kind(rope: dict[str, Any]) -> bool:
    """Return whether these are parameters for each kind of layer, by its name."""
    return all(value is None or isinstance(value, dict) for value in rope.values())


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def describe(model: PreTrainedModel) -> Description:
    """Describe a model of one of the `FAMILIES`."""
    config, base = model.config, model.base_model
    first = base.layers[0].self_attn
    kinds = [_rotation(config, layer.self_attn, index) for index, layer in enumerate(base.layers)]
    distinct = list(dict.fromkeys(kinds))
    return Description(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=first.head_dim,
        eps=config.rms_norm_eps,
        activation=Activation(_activation(config)),
        scale=first.scaling,
        layers=[
            _layer(config, layer, index, distinct.index(kind)) for index, (layer, kind) in enumerate(zip(base.layers, kinds, strict=True))
        ],
        rotations=Rotations(base.rotary_emb, distinct, _short_positions(model)),
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
        qkv = (Part(a.qkv_proj, 0, q), Part(a.qkv_proj, q, q + k), Part(a.qkv_proj, q + k))
        F = config.intermediate_size
        described = GatedMLP(Part(mlp.gate_up_proj, 0, F), Part(mlp.gate_up_proj, F), Part(mlp.down_proj))
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
    if type(matrix) is nn.Linear and not has_float_weight(matrix):
        return type(matrix.weight)
    return type(matrix) if split_update(matrix)[1] is None else type(matrix).__bases__[0]
