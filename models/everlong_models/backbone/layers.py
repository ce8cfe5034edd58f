"""`Layers`: run a backbone layer by layer, for memories that act between or inside its layers.

    h, shared = layers.begin(embeddings)
    for layer in range(len(layers)):
        h = layers(layer, h, shared)
    hidden = layers.end(h)

computes `Backbone.hidden(embeddings)`. `SplitLayers` can also run the two halves of each layer, for memories that add
their own contribution to the sum between them:

    for layer in range(len(layers)):
        queries, context = layers.attend(layer, layers.norm(layer, h), shared)
        h = layers.feed_forward(layer, h + context)

The modules and weights are the backbone's; nothing is kept between calls. Only the architectures in `FAMILIES` are
supported. Others may scale embeddings, mask by layer, or order the parts of a layer differently, and would give wrong
results silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from everlong_models.backbone.backbone import Backbone, CacheAdapter
from everlong_models.backbone.description import sliding_window
from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.errors import BackboneError
from everlong_models.kernels.attention import additive_mask
from everlong_models.kernels.yield_point import yield_point


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What all layers of one pass share.

    `cursor`: where keys and values go. `visible`: the causal mask (B, 1, T, C); None at the start, where attention is
    causal without one. `rotary`: cosines and sines (1 or B, T, head dim); empty in families without rotary positions.
    `arguments`: the keyword arguments of transformers' layer modules.
    """

    cursor: KVCursor
    visible: Tensor | None
    rotary: tuple[Tensor, ...]
    arguments: Mapping[str, Any]


class SelfAttention(NamedTuple):
    """The result of one layer's self-attention."""

    queries: Tensor  # (B, H, T, d), before any rotation by position
    context: Tensor  # (B, T, D): Z_T, what the layer adds to its input


class Layers:
    """The layers of a backbone, one by one. Make one with `layers_of`.

    Shapes: B rows, T positions, H heads of dimension d, D width, C capacity of a key/value tensor.
    """

    parts: ClassVar[tuple[str, ...]] = ("rotary_emb", "layers", "norm")
    """Names of what the base model consists of; the last two are its list of layers and its final norm."""

    def __init__(self, backbone: Backbone) -> None:
        base, config = backbone.model.base_model, backbone.model.config
        missing = [part for part in self.parts if not hasattr(base, part)]
        if missing:
            raise BackboneError(
                f"{type(base).__name__} has no {', '.join(missing)}: its layers cannot be run one by one"
            )
        # A mixture of window and full attention needs a mask for each layer.
        if (window := sliding_window(config)) and getattr(config, "use_sliding_window", True):
            raise BackboneError(f"sliding_window={window}: this memory needs full causal attention")
        self._base: Any = base
        self._modules: nn.ModuleList = getattr(base, self.parts[-2])
        self._final_norm: nn.Module = getattr(base, self.parts[-1])
        self._attention: str = config._attn_implementation

    def __len__(self) -> int:
        return len(self._modules)

    @property
    def alike(self) -> bool:
        """Whether the layers differ in nothing but their weights, so that one module can compute any of them."""
        return True

    def require_masks(self) -> None:
        """Raise `BackboneError` unless whole layers accept an explicit mask; halves of layers need none."""
        if self._attention not in ("sdpa", "eager"):
            raise BackboneError(
                f"attn_implementation={self._attention!r} takes no explicit mask; use 'sdpa' or 'eager'"
            )

    def begin(self, x: Tensor, *, kv: Tensor | None = None, at: Tensor | None = None) -> tuple[Tensor, LayerContext]:
        """Return the first layer's input (B, T, D) for embeddings `x` (B, T, D), and what all layers of the pass share.

        As in `Backbone.hidden`: without `at`, `x` starts at position 0, and its keys and values are stored in `kv`, if
        one is given. With `at` (B,) each row continues at its own position, after the positions that `kv` holds.
        """
        cursor = KVCursor(x.shape[1], x.device, kv, at)
        visible = None if cursor.at_start else cursor.visible()[:, None]
        x, rotary = self._place(x, cursor.positions)
        arguments: dict[str, Any] = {
            "attention_mask": self._mask(cursor, visible, x.dtype),
            "past_key_values": None if kv is None else CacheAdapter(cursor),
        }
        if rotary:
            arguments["position_embeddings"] = rotary
        return x, LayerContext(cursor, visible, rotary, arguments)

    def __call__(self, layer: int, h: Tensor, shared: LayerContext) -> Tensor:
        """Return the output (B, T, D) of `layer` for its input `h` (B, T, D)."""
        yield_point()
        out: Tensor = self._modules[layer](h, **shared.arguments)
        return out

    def end(self, h: Tensor) -> Tensor:
        """Return the final hidden states: the final norm of the last layer's output (…, D)."""
        out: Tensor = self._final_norm(h)
        return out

    def stacked(self) -> dict[str, Tensor]:
        """Return every layer's weights by their name within the layer, stacked: (layers, …). A differentiable copy."""
        each = [dict(module.named_parameters()) for module in self._modules]
        return {name: torch.stack([weights[name] for weights in each]) for name in each[0]}

    def call_with(self, weights: Mapping[str, Tensor], h: Tensor, shared: LayerContext) -> Tensor:
        """Return the output of a layer with these `weights`: `torch.vmap` over `stacked` runs several layers at once.

        Works only in a pass without keys and values, and if the layers are `alike`.
        """
        out: Tensor = functional_call(self._modules[0], dict(weights), (h,), dict(shared.arguments))
        return out

    def _place(self, x: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the first layer's input for embeddings `x` at `positions` (1 or B, T), and rotary tables, if any."""
        return x, self._base.rotary_emb(x, position_ids=positions)

    def _mask(self, cursor: KVCursor, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Return the mask as transformers' attention wants it: None or booleans for SDPA, addends for eager."""
        if self._attention != "eager":
            return visible
        return additive_mask(cursor.visible()[:, None] if visible is None else visible, dtype, torch.finfo(dtype).min)


class SplitLayers(Layers, ABC):
    """Layers whose halves can be run one by one: pre-norm attention, then a pre-norm feed-forward network."""

    @abstractmethod
    def norm(self, layer: int, x: Tensor) -> Tensor:
        """Return `layer`'s input `x` (B, T, D), normalised for its attention."""

    @abstractmethod
    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        """Run the causal self-attention of `layer` over its normed input (B, T, D)."""

    @abstractmethod
    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        """Return `layer`'s output (B, T, D) for `x` (B, T, D), the sum of its input and the attention's contexts."""

    @staticmethod
    def _attention_over(
        shared: LayerContext, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float, dropout: float
    ) -> Tensor:
        """Return softmax attention (B, T, H·d) of queries (B, H, T, d); store keys and values (B, kv heads, T, d)."""
        keys, values = shared.cursor.store(layer, keys, values)
        mask = shared.visible
        context = F.scaled_dot_product_attention(
            queries, keys, values, mask, dropout, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        return context.transpose(1, 2).flatten(2)


class GPT2Layers(SplitLayers):
    """Learned positions are added to the embeddings; one projection gives queries, keys and values."""

    parts = ("wpe", "drop", "h", "ln_f")

    @property
    def alike(self) -> bool:
        """Not if attention is scaled by the layer's index."""
        return not self._base.config.scale_attn_by_inverse_layer_idx

    def _place(self, x: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self._base.drop(x + self._base.wpe(positions)), ()

    def norm(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, self._base.h[layer].ln_1(x))

    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        attention = self._base.h[layer].attn
        projected = attention.c_attn(normed).unflatten(-1, (3, attention.num_heads, attention.head_dim))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        dropout = attention.attn_dropout.p if attention.training else 0.0
        context = self._attention_over(shared, layer, queries, keys, values, attention.scaling, dropout)
        return SelfAttention(queries, attention.resid_dropout(attention.c_proj(context)))

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        block = self._base.h[layer]
        return torch.add(x, block.mlp(block.ln_2(x)))


class LlamaLayers(SplitLayers):
    """Rotary positions, grouped keys and values: Llama and architectures whose layers have the same halves."""

    @property
    def alike(self) -> bool:
        """Not if only some layers rotate their keys (SmolLM3)."""
        return all(_rotates(module.self_attn) for module in self._modules)

    def _place(self, x: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        multiplier = getattr(self._base, "embedding_multiplier", None)  # Granite
        x = x if multiplier is None else x * multiplier
        x = F.dropout(x, getattr(self._base, "embedding_dropout", 0.0), self._base.training)  # Starcoder2
        return x, self._base.rotary_emb(x, position_ids=positions)

    def norm(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, self._base.layers[layer].input_layernorm(x))

    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        block = self._base.layers[layer]
        attention = block.self_attn
        queries, keys, values = (_heads(attention, name, normed) for name in "qkv")
        rotated = queries
        if _rotates(attention):
            rotated, keys = apply_rotary_pos_emb(queries, keys, *shared.rotary)
        dropout = attention.attention_dropout if attention.training else 0.0
        context = self._attention_over(shared, layer, rotated, keys, values, attention.scaling, dropout)
        context = F.dropout(attention.o_proj(context), getattr(attention, "residual_dropout", 0.0), attention.training)
        return SelfAttention(queries, _scaled(block, context))

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        block = self._base.layers[layer]
        return torch.add(x, _scaled(block, block.mlp(block.post_attention_layernorm(x))))


def _heads(attention: Any, name: str, normed: Tensor) -> Tensor:
    """Return the heads (B, H, T, d) of projection `name` ("q", "k" or "v"), normalised per head where the family does."""
    heads = getattr(attention, f"{name}_proj")(normed).unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{name}_norm", None)  # Qwen3
    return cast(Tensor, heads if norm is None else norm(heads)).transpose(1, 2)


def _rotates(attention: Any) -> bool:
    return bool(getattr(attention, "use_rope", True))


def _scaled(block: Any, branch: Tensor) -> Tensor:
    """Return what a branch adds to the residual stream; Granite scales it."""
    multiplier = getattr(block, "residual_multiplier", None)
    return branch if multiplier is None else branch * multiplier


FAMILIES: dict[str, type[Layers]] = {
    "gpt2": GPT2Layers,
    **dict.fromkeys(
        ["llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "arcee", "starcoder2", "seed_oss", "gemma"],
        LlamaLayers,
    ),
    **dict.fromkeys(
        ["phi3", "olmo", "olmo2", "stablelm", "cohere", "glm", "glm4", "ernie4_5", "helium", "apertus", "nemotron"],
        Layers,
    ),
}
"""transformers' `model_type` of every architecture whose layers can be run one by one."""


def layers_of(backbone: Backbone) -> Layers:
    """Return the layers of `backbone`.

    Raises `BackboneError` for an architecture that is not in `FAMILIES`, and for layers with a sliding window.
    """
    return _find(backbone, Layers)


def split_layers_of(backbone: Backbone) -> SplitLayers:
    """Return the layers of `backbone`, with their halves.

    Raises `BackboneError` for an architecture that has none in `FAMILIES`, and for layers with a sliding window.
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
