"""`Layers`: run a backbone layer by layer, for memories that act between or inside its layers.

    h, shared = layers.begin(embeddings)
    for layer in range(len(layers)):
        h = layers(layer, h, shared)
    hidden = layers.end(h)

computes `Backbone.hidden(embeddings)`. `SplitLayers` can also run the two halves of each layer, for memories that add
their own contribution to the sum between them:

    for layer in range(len(layers)):
        queries, context = layers.attend(layer, layers.norm(layer, h), shared)
        h = layers.feed_forward(layer, h, context)

The modules and weights are the backbone's; nothing is kept between calls. `families` has the architectures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from everlong_models.backbone.backbone import Backbone, CacheAdapter
from everlong_models.backbone.description import layer_window, rotary_kind
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
    """The layers of a backbone, one by one. Make one with `families.layers_of`.

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
    """Layers whose halves can be run one by one: pre-norm attention, and a pre-norm feed-forward network after it or beside it."""

    @abstractmethod
    def norm(self, layer: int, x: Tensor) -> Tensor:
        """Return `layer`'s input `x` (B, T, D), normalised for its attention."""

    @abstractmethod
    def attend(self, layer: int, normed: Tensor, shared: LayerContext) -> SelfAttention:
        """Run the causal self-attention of `layer` over its normed input (B, T, D)."""

    @abstractmethod
    def feed_forward(self, layer: int, h: Tensor, context: Tensor) -> Tensor:
        """Return `layer`'s output (B, T, D) for its input `h` (B, T, D) and the sum of the attention's contexts (B, T, D)."""

    @staticmethod
    def _attention_over(
        shared: LayerContext,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        dropout: float,
        cap: float | None = None,
    ) -> Tensor:
        """Return softmax attention (B, T, H·d) of queries (B, H, T, d); store keys and values (B, kv heads, T, d).

        `cap`: scores s become cap · tanh(s / cap), as in Gemma 2.
        """
        keys, values = shared.cursor.store(layer, keys, values)
        mask = shared.visible[layer]
        if cap is not None:
            return _capped_attention(shared, mask, queries * scale, keys, values, cap, dropout)
        context = F.scaled_dot_product_attention(
            queries, keys, values, mask, dropout, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        return context.transpose(1, 2).flatten(2)


def _capped_attention(
    shared: LayerContext, mask: Tensor | None, queries: Tensor, keys: Tensor, values: Tensor, cap: float, dropout: float
) -> Tensor:
    """Return what `SplitLayers._attention_over` does, for scaled queries, stored keys and values, and a cap. No kernel of PyTorch has one."""
    visible = shared.cursor.visible()[:, None, None] if mask is None else mask[:, None]
    scores = queries.unflatten(1, (keys.shape[1], -1)) @ keys[:, :, None].mT  # (B, G, R, T, C)
    capped = (cap * (scores / cap).tanh()).masked_fill(~visible, -torch.inf)
    weights = capped.softmax(-1, dtype=torch.promote_types(capped.dtype, torch.float32)).to(values.dtype)
    context = F.dropout(weights, dropout) @ values[:, :, None]
    return context.flatten(1, 2).transpose(1, 2).flatten(2)
