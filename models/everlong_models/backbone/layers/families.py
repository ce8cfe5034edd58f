"""The architectures whose layers can be run one by one: `layers_of` and `split_layers_of` make the layers of a backbone.

Only the architectures in `FAMILIES` are supported. Others may scale embeddings, mask by layer, or order the parts of a layer differently,
and would give wrong results silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.decoder import gpt
from everlong_models.backbone.description import norm_modules
from everlong_models.backbone.layers.base import LayerContext, Layers, SelfAttention, SplitLayers
from everlong_models.errors import BackboneError
from everlong_models.kernels.yield_point import yield_point


class GPT2Layers(SplitLayers):
    """Learned positions are added to the embeddings; one projection gives queries, keys and values."""

    parts = ("wpe", "drop", "h", "ln_f")

    @property
    def alike(self) -> bool:
        """Not if attention is scaled by the layer's index."""
        return not self._base.config.scale_attn_by_inverse_layer_idx

    def _place(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Mapping[str, tuple[Tensor, ...]]]:
        return self._base.drop(x + self._base.wpe(positions)), {}

    def norm(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, self._base.h[layer].ln_1(x))

    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        attention = self._base.h[layer].attn
        projected = attention.c_attn(normed).unflatten(-1, (3, attention.num_heads, attention.head_dim))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        dropout = attention.attn_dropout.p if attention.training else 0.0
        context = self._attention_over(shared, layer, queries, keys, values, attention.scaling, dropout)
        return SelfAttention(queries, attention.resid_dropout(attention.c_proj(context)))

    def feed_forward(self, layer: int, h: Tensor, context: Tensor) -> Tensor:
        block, x = self._base.h[layer], h + context
        return torch.add(x, block.mlp(block.ln_2(x)))


class LlamaLayers(SplitLayers):
    """Rotary positions, grouped keys and values: Llama and architectures whose layers have the same halves.

    They may have norms before, between and after the halves, and norms of queries and keys.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self._norms = [norm_modules(module) for module in self._modules]

    @property
    def alike(self) -> bool:
        """Not if only some layers rotate their keys (SmolLM3)."""
        return super().alike and all(_rotates(module.self_attn) for module in self._modules)

    def _place(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Mapping[str, tuple[Tensor, ...]]]:
        multiplier = getattr(self._base, "embedding_multiplier", None)  # Granite
        x = x if multiplier is None else x * multiplier
        x = F.dropout(x, getattr(self._base, "embedding_dropout", 0.0), self._base.training)  # Starcoder2
        return super()._place(x, positions)

    def norm(self, layer: int, x: Tensor) -> Tensor:
        return self._normed(layer, "before", x)

    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        block = self._base.layers[layer]
        attention = block.self_attn
        queries, keys, values = _heads(attention, self._norms[layer], normed)
        rotated = queries
        if _rotates(attention):
            rotated, keys = apply_rotary_pos_emb(queries, keys, *shared.rotary[layer])
        dropout, cap = (
            attention.attention_dropout if attention.training else 0.0,
            getattr(attention, "attn_logit_softcapping", None),
        )
        context = self._attention_over(shared, layer, rotated, keys, values, attention.scaling, dropout, cap)
        context = F.dropout(attention.o_proj(context), getattr(attention, "residual_dropout", 0.0), attention.training)
        return SelfAttention(queries, self._normed(layer, "after_attention", _scaled(block, context)))

    def feed_forward(self, layer: int, h: Tensor, context: Tensor) -> Tensor:
        block, x = self._base.layers[layer], h + context
        added = block.mlp(self._normed(layer, "between", x))
        return torch.add(x, self._normed(layer, "after_mlp", _scaled(block, added)))

    def _normed(self, layer: int, name: str, x: Tensor) -> Tensor:
        """Return `x` after the layer's norm of this name, if it has one (see `norm_modules`)."""
        norm = self._norms[layer].get(name)
        return x if norm is None else cast(Tensor, norm(x))


def _heads(attention: Any, norms: Mapping[str, nn.Module], normed: Tensor) -> Iterator[Tensor]:
    """Yield the heads (B, H, T, d) of queries, keys and values, normalised where the family does. `norms`: of the layer."""
    for projected, norm in zip(
        _projected(attention, normed), (norms.get("queries"), norms.get("keys"), None), strict=True
    ):
        heads = projected.unflatten(-1, (-1, attention.head_dim))
        if norm is not None:
            whole = cast(Tensor, norm.weight).numel() != attention.head_dim  # OLMo 2's is one norm of all heads
            heads = norm(projected).view_as(heads) if whole else norm(heads)
        yield heads.transpose(1, 2)


def _projected(attention: Any, normed: Tensor) -> list[Tensor]:
    """Return queries, keys and values (B, T, …): of three projections, or of one."""
    if not hasattr(attention, "qkv_proj"):
        return [getattr(attention, f"{name}_proj")(normed) for name in ("q", "k", "v")]
    projected, keys = attention.qkv_proj(normed), attention.num_key_value_heads * attention.head_dim
    return list(projected.split([projected.shape[-1] - 2 * keys, keys, keys], -1))


def _rotates(attention: Any) -> bool:
    return bool(getattr(attention, "use_rope", True))


def _scaled(block: Any, branch: Tensor) -> Tensor:
    """Return what a branch adds to the residual stream; Granite scales it."""
    multiplier = getattr(block, "residual_multiplier", None)
    return branch if multiplier is None else branch * multiplier


class Phi3Layers(LlamaLayers):
    """Dropout of what both halves add, in training."""

    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        queries, context = super().attend(layer, normed, shared)
        return SelfAttention(queries, self._base.layers[layer].resid_attn_dropout(context))

    def feed_forward(self, layer: int, h: Tensor, context: Tensor) -> Tensor:
        block, x = self._base.layers[layer], h + context
        return torch.add(x, block.resid_mlp_dropout(block.mlp(self._normed(layer, "between", x))))


class GPTNeoXLayers(SplitLayers):
    """Attention and feed-forward network side by side, or one after the other. One projection has queries, key and value of each key head."""

    cache_argument = "layer_past"
    parts = ("rotary_emb", "layers", "final_layer_norm")

    def norm(self, layer: int, x: Tensor) -> Tensor:
        block: Any = self._modules[layer]
        return cast(Tensor, block.input_layernorm(x))

    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        block: Any = self._modules[layer]
        attention, heads = block.attention, self._base.config.num_attention_heads
        queries, keys, values = _interleaved(attention.query_key_value(normed), heads, attention.head_size)
        rotated, keys = apply_rotary_pos_emb(queries, keys, *shared.rotary[layer])
        dropout = attention.attention_dropout if attention.training else 0.0
        context = self._attention_over(shared, layer, rotated, keys, values, attention.scaling, dropout)
        return SelfAttention(queries, block.post_attention_dropout(attention.dense(context)))

    def feed_forward(self, layer: int, h: Tensor, context: Tensor) -> Tensor:
        block: Any = self._modules[layer]
        x = h + context
        added = block.mlp(block.post_attention_layernorm(h if block.use_parallel_residual else x))
        return torch.add(x, block.post_mlp_dropout(added))


class FalconLayers(SplitLayers):
    """Like GPT-NeoX, with fewer keys and values, and with one or two norms. Not with ALiBi.

    `__call__` runs the two halves, because transformers' own layer needs other arguments and returns attention weights, too.
    """

    parts = ("rotary_emb", "h", "ln_f")

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        if self._base.config.alibi:
            raise BackboneError(
                "Falcon with positions as biases of the attention (ALiBi): this memory supports rotary positions only"
            )

    @property
    def alike(self) -> bool:
        """False: `call_with` needs transformers' own module."""
        return False

    def __call__(self, layer: int, h: Tensor, shared: LayerContext) -> Tensor:
        yield_point()
        return self.feed_forward(layer, h, self.attend(layer, self.norm(layer, h), shared).context)

    def norm(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, gpt.norms_of(self._modules[layer])[0](x))

    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        attention: Any = self._modules[layer].self_attention
        queries, keys, values = _interleaved(
            attention.query_key_value(normed), attention.num_kv_heads, attention.head_dim
        )
        rotated, keys = apply_rotary_pos_emb(queries, keys, *shared.rotary[layer])
        # The cache has keys of all heads, as transformers' own forward needs them.
        copies = attention.num_heads // attention.num_kv_heads
        keys, values = keys.repeat_interleave(copies, 1), values.repeat_interleave(copies, 1)
        context = attention.dense(
            self._attention_over(shared, layer, rotated, keys, values, attention.head_dim**-0.5, 0.0)
        )
        if not gpt.is_parallel(self._base.config):
            context = F.dropout(context, self._base.config.attention_dropout, attention.training)
        return SelfAttention(queries, context)

    def feed_forward(self, layer: int, h: Tensor, context: Tensor) -> Tensor:
        block: Any = self._modules[layer]
        norm, dropout = gpt.norms_of(block)[1], block.hidden_dropout
        if gpt.is_parallel(block.config):
            return torch.add(h, F.dropout(block.mlp(norm(h)) + context, dropout, block.training))
        x = h + context
        return torch.add(x, F.dropout(block.mlp(norm(x)), dropout, block.training))


def _interleaved(projected: Tensor, groups: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (B, H, T, d), keys and values (B, groups, T, d) of a projection (B, T, …) with, for each group, its queries, key and value."""
    parts = projected.unflatten(-1, (groups, -1, d)).transpose(1, 2)  # (B, groups, T, H / groups + 2, d)
    queries, keys, values = parts[:, :, :, :-2], parts[:, :, :, -2], parts[:, :, :, -1]
    return queries.transpose(2, 3).flatten(1, 2), keys, values


FAMILIES: dict[str, type[Layers]] = {
    "gpt2": GPT2Layers,
    "gpt_neox": GPTNeoXLayers,
    "falcon": FalconLayers,
    "phi3": Phi3Layers,
    **dict.fromkeys(
        [
            "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "smollm3", "granite", "arcee", "starcoder2", "seed_oss", "gemma",
            "gemma2", "gemma3_text", "olmo2", "olmo3",
        ],
        LlamaLayers,
    ),
    **dict.fromkeys(
        ["olmo", "stablelm", "cohere", "glm", "glm4", "ernie4_5", "helium", "apertus", "nemotron"],
        Layers,
    ),
}  # fmt: skip
"""transformers' `model_type` of every architecture whose layers can be run one by one."""


def layers_of(backbone: Backbone) -> Layers:
    """Return the layers of `backbone`.

    Raises `BackboneError` for an architecture that is not in `FAMILIES`.
    """
    return _find(backbone, Layers)


def split_layers_of(backbone: Backbone) -> SplitLayers:
    """Return the layers of `backbone`, with their halves.

    Raises `BackboneError` for an architecture that has none in `FAMILIES`.
    """
    return _find(backbone, SplitLayers)


L = TypeVar("L", bound=Layers)


def _find(backbone: Backbone, kind: type[L]) -> L:
    supported = {name: family for name, family in FAMILIES.items() if issubclass(family, kind)}
    name = backbone.model.config.get_text_config().model_type
    if name not in supported:
        raise BackboneError(
            f"{type(backbone.model).__name__} ({name}): this memory works in the layers of its backbone, which is "
            f"supported for {', '.join(sorted(supported))}; use one of these, or the memory `window` or `rmt`"
        )
    return supported[name](backbone)
