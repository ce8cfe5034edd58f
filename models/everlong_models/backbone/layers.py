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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from everlong_models.backbone.backbone import Backbone, CacheAdapter
from everlong_models.backbone.description import layer_window, norm_modules, rotary_kind
from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.errors import BackboneError
from everlong_models.kernels.attention import additive_mask
from everlong_models.kernels.yield_point import yield_point


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What the layers of one pass get, by layer.

    `cursor`: where keys and values go. `visible`: the causal mask (B, 1, T, C); None at the start, where attention is
    causal without one. `rotary`: cosines and sines (1 or B, T, head dim); empty in families without rotary positions.
    `arguments`: the keyword arguments of transformers' layer modules.
    """

    cursor: KVCursor
    visible: Sequence[Tensor | None]
    rotary: Sequence[tuple[Tensor, ...]]
    arguments: Sequence[Mapping[str, Any]]


class SelfAttention(NamedTuple):
    """The result of one layer's self-attention."""

    queries: Tensor  # (B, H, T, d), before any rotation by position
    context: Tensor  # (B, T, D): Z_T, what the layer adds to its input


class Layers:
    """The layers of a backbone, one by one. Make one with `layers_of`.

    Shapes: B rows, T positions, H heads of dimension d, D width, C capacity of a key/value tensor.
    """

    cache_argument: ClassVar[str] = "past_key_values"
    """The argument of transformers' layer modules that takes keys and values."""
    parts: ClassVar[tuple[str, ...]] = ("rotary_emb", "layers", "norm")
    """Names of what the base model consists of; the last two are its list of layers and its final norm."""

    def __init__(self, backbone: Backbone) -> None:
        base, config = backbone.model.base_model, backbone.model.config
        missing = [part for part in self.parts if not hasattr(base, part)]
        if missing:
            raise BackboneError(
                f"{type(base).__name__} has no {', '.join(missing)}: its layers cannot be run one by one"
            )
        self._base: Any = base
        self._modules: nn.ModuleList = getattr(base, self.parts[-2])
        self._windows = [layer_window(config, layer) for layer in range(len(self._modules))]
        self._tables = [rotary_kind(config, layer) for layer in range(len(self._modules))]
        self._final_norm: nn.Module = getattr(base, self.parts[-1])
        self._attention: str = config._attn_implementation

    def __len__(self) -> int:
        return len(self._modules)

    @property
    def alike(self) -> bool:
        """Whether the layers differ in nothing but their weights, so that one module can compute several of them at once.

        Layers with experts cannot: which ones they use depends on the input.
        """
        experts = getattr(self._base.config, "num_experts", 0)
        return not experts and len(set(zip(self._windows, self._tables, strict=True))) == 1

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
        visible = {window: self._visible(cursor, window) for window in set(self._windows)}
        masks = {window: self._mask(cursor, visible[window], x.dtype) for window in visible}
        x, tables = self._place(x, cursor.positions)
        cache = None if kv is None else CacheAdapter(cursor)
        rotary = [tables.get(kind, ()) for kind in self._tables]
        arguments: list[dict[str, Any]] = [
            {"attention_mask": masks[window], self.cache_argument: cache}
            | ({"position_embeddings": each} if each else {})
            for window, each in zip(self._windows, rotary, strict=True)
        ]
        return x, LayerContext(cursor, [visible[window] for window in self._windows], rotary, arguments)

    def __call__(self, layer: int, h: Tensor, shared: LayerContext) -> Tensor:
        """Return the output (B, T, D) of `layer` for its input `h` (B, T, D)."""
        yield_point()
        out: Tensor = self._modules[layer](h, **shared.arguments[layer])
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
        out: Tensor = functional_call(self._modules[0], dict(weights), (h,), dict(shared.arguments[0]))
        return out

    def _place(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Mapping[str, tuple[Tensor, ...]]]:
        """Return the first layer's input for embeddings `x` at `positions` (1 or B, T), and rotary tables, if any, by their kind."""
        return x, {
            kind: self._base.rotary_emb(x, position_ids=positions, **({"layer_type": kind} if kind else {}))
            for kind in set(self._tables)
        }

    @staticmethod
    def _visible(cursor: KVCursor, window: int | None) -> Tensor | None:
        """Return the mask (B, 1, T, C) of layers with this window; None where attention is causal without one."""
        if cursor.at_start and (window is None or window >= cursor.positions.shape[1]):
            return None
        return cursor.visible(window)[:, None]

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
        mask = shared.visible[layer]
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

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        block = self._base.h[layer]
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
        dropout = attention.attention_dropout if attention.training else 0.0
        context = self._attention_over(shared, layer, rotated, keys, values, attention.scaling, dropout)
        context = F.dropout(attention.o_proj(context), getattr(attention, "residual_dropout", 0.0), attention.training)
        return SelfAttention(queries, self._normed(layer, "after_attention", _scaled(block, context)))

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        block = self._base.layers[layer]
        added = block.mlp(self._normed(layer, "between", x))
        return torch.add(x, self._normed(layer, "after_mlp", _scaled(block, added)))

    def _normed(self, layer: int, name: str, x: Tensor) -> Tensor:
        """Return `x` after the layer's norm of this name, if it has one (see `norm_modules`)."""
        norm = self._norms[layer].get(name)
        return x if norm is None else cast(Tensor, norm(x))


def _heads(attention: Any, norms: Mapping[str, nn.Module], normed: Tensor) -> Iterator[Tensor]:
    """Yield the heads (B, H, T, d) of queries, keys and values, normalised where the family does. `norms`: of the layer."""
    for name, norm in (("q", norms.get("queries")), ("k", norms.get("keys")), ("v", None)):
        projected = getattr(attention, f"{name}_proj")(normed)
        heads = projected.unflatten(-1, (-1, attention.head_dim))
        if norm is not None:
            whole = cast(Tensor, norm.weight).numel() != attention.head_dim  # OLMo 2's is one norm of all heads
            heads = norm(projected).view_as(heads) if whole else norm(heads)
        yield heads.transpose(1, 2)


def _rotates(attention: Any) -> bool:
    return bool(getattr(attention, "use_rope", True))


def _scaled(block: Any, branch: Tensor) -> Tensor:
    """Return what a branch adds to the residual stream; Granite scales it."""
    multiplier = getattr(block, "residual_multiplier", None)
    return branch if multiplier is None else branch * multiplier


class GPTNeoXLayers(Layers):
    """Attention and feed-forward network side by side."""

    cache_argument = "layer_past"
    parts = ("rotary_emb", "layers", "final_layer_norm")


FAMILIES: dict[str, type[Layers]] = {
    "gpt2": GPT2Layers,
    "gpt_neox": GPTNeoXLayers,
    **dict.fromkeys(
        [
            "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "smollm3", "granite", "arcee", "starcoder2", "seed_oss", "gemma",
            "gemma3_text", "olmo2", "olmo3",
        ],
        LlamaLayers,
    ),
    **dict.fromkeys(
        ["phi3", "gemma2", "olmo", "stablelm", "cohere", "glm", "glm4", "ernie4_5", "helium", "apertus", "nemotron"],
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
