"""`Layers`: the layers of a backbone, one at a time, for memories that act between them.

    h, shared = layers.begin(x)
    for layer in range(len(layers)):
        h = layers(layer, h, shared)
    hidden = layers.end(h)

is `Backbone.hidden(x)`. Two families are known: GPT-2 (learned positions, `transformer.h`) and Llama (rotary positions,
`model.layers`) with the models that share Llama's loop. An unknown family may do something between its layers that
this loop would leave out (scale embeddings, mask by layer), so it is refused instead of being run wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from everlong_models.backbone.backbone import Backbone, CacheAdapter
from everlong_models.errors import BackboneError
from everlong_models.kernels.pause import pause

PARTS = {
    "gpt2": ("wpe", "drop", "h", "ln_f"),
    "llama": ("rotary_emb", "layers", "norm"),
    "mistral": ("rotary_emb", "layers", "norm"),
    "qwen2": ("rotary_emb", "layers", "norm"),
    "qwen3": ("rotary_emb", "layers", "norm"),
}
"""What each known family's base model is made of."""


@dataclass(frozen=True, slots=True)
class LayerArguments:
    """What all layers of one forward pass share: the arguments of a layer module beside the hidden states."""

    arguments: Mapping[str, Any]


class Layers:
    """The decoder layers of `backbone` as callables. Holds no weights of its own and nothing between calls.

    Shapes: B rows, T positions, D width, C capacity of a key/value tensor. Raises `BackboneError` for a family that is
    not known, or attention that cannot be told where its positions are.
    """

    def __init__(self, backbone: Backbone) -> None:
        base, config = backbone.model.base_model, backbone.model.config
        parts = PARTS.get(config.model_type)
        if parts is None:
            raise BackboneError(
                f"how to drive a {config.model_type!r} model layer by layer is not known; known: {', '.join(PARTS)}"
            )
        missing = [part for part in parts if not hasattr(base, part)]
        if missing:
            raise BackboneError(f"{type(base).__name__} has no {', '.join(missing)}: its layers cannot be driven")
        # Ministral-like mixtures of window and full attention need a mask for each layer.
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            raise BackboneError(f"sliding_window={config.sliding_window}: its layers need full causal attention")
        self.attention: str = config._attn_implementation
        if self.attention not in ("sdpa", "eager"):
            raise BackboneError(f"attn_implementation={self.attention!r} takes no explicit mask; use 'sdpa' or 'eager'")
        self._base = base
        self._learned_positions = config.model_type == "gpt2"
        self._modules: nn.ModuleList = base.h if self._learned_positions else base.layers
        self._norm: nn.Module = base.ln_f if self._learned_positions else base.norm
        # One layer's module can stand for all only if nothing but the weights tells them apart.
        self.alike: bool = not getattr(config, "scale_attn_by_inverse_layer_idx", False)

    def __len__(self) -> int:
        return len(self._modules)

    def begin(self, x: Tensor, *, kv: Tensor | None = None, at: Tensor | None = None) -> tuple[Tensor, LayerArguments]:
        """The first layer's input (B, T, D) for embeddings `x` (B, T, D), and what all layers of this pass share.

        As in `Backbone.hidden`: without `at`, `x` starts at position 0 and `kv`, if given, takes its keys and values;
        with `at` (B,), each row continues at its own position behind what `kv` holds for it.
        """
        steps = torch.arange(x.shape[1], device=x.device)
        if at is None:
            positions = steps[None]  # (1, T)
            past = None if kv is None else CacheAdapter(kv, None)
            # SDPA's own causal flag is quicker than a mask.
            visible = None if self.attention == "sdpa" else (steps <= steps[:, None])[None]
        elif kv is None:
            raise BackboneError("begin: continuing at a position needs the keys and values before it")
        else:
            positions = at[:, None] + steps  # (B, T)
            past = CacheAdapter(kv, positions)
            visible = torch.arange(kv.shape[4], device=x.device) <= positions[:, :, None]  # (B, T, C)
        arguments = {"attention_mask": self._mask(visible, x.dtype), "past_key_values": past}
        if self._learned_positions:
            return self._base.drop(x + self._base.wpe(positions)), LayerArguments(arguments)
        return x, LayerArguments(arguments | {"position_embeddings": self._base.rotary_emb(x, positions)})

    def __call__(self, layer: int, h: Tensor, shared: LayerArguments) -> Tensor:
        """The output (B, T, D) of `layer` for its input `h` (B, T, D)."""
        pause()
        out: Tensor = self._modules[layer](h, **shared.arguments)
        return out

    def end(self, h: Tensor) -> Tensor:
        """The final norm of the last layer's output (…, D)."""
        out: Tensor = self._norm(h)
        return out

    def stacked(self) -> dict[str, Tensor]:
        """Every layer's weights by their name within the layer, stacked: (layers, …). A differentiable copy."""
        each = [dict(module.named_parameters()) for module in self._modules]
        return {name: torch.stack([weights[name] for weights in each]) for name in each[0]}

    def call_with(self, weights: Mapping[str, Tensor], h: Tensor, shared: LayerArguments) -> Tensor:
        """The output of the layer that has these `weights`: `torch.vmap` over `stacked` runs several layers at once.

        Only in a pass without keys and values, and where the layers are `alike`.
        """
        out: Tensor = functional_call(self._modules[0], dict(weights), (h,), dict(shared.arguments))
        return out

    def _mask(self, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """(B, T, C) booleans as the attention wants them: (B, 1, T, C), booleans for SDPA, addends for eager."""
        if visible is None:
            return None
        mask = visible[:, None]
        if self.attention == "sdpa":
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
