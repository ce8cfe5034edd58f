"""`Decoder`: a Hugging Face decoder driven layer by layer, for memories that stand inside its layers.

transformers' own forward offers no place between self-attention and the residual sum, so the loop over the layers is
the memory's, and these classes give it the halves of a layer as functions of what goes in. The submodules, and so the
weights and whatever was merged into them, are the backbone's; nothing is kept between calls.

    x, call = decoder.begin(embeddings)
    for layer in range(layers):
        queries, context = decoder.attend(layer, decoder.norm(layer, x), call)
        x = decoder.feed_forward(layer, x + context)
    hidden = decoder.end(x)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import BackboneError


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What all layers of one call share.

    `kv` (B, layers, 2, kv heads, C, head dim): where keys and values go, if anywhere. `positions` (B, T): where the
    rows continue behind what `kv` holds; None at the start. `rotary`: cosines and sines (B, T, head dim), or nothing in
    families without them.
    """

    kv: Tensor | None
    positions: Tensor | None
    rotary: tuple[Tensor, ...] = ()


class SelfAttention(NamedTuple):
    """One layer's self-attention."""

    queries: Tensor  # (B, H, T, d), before any rotation by position
    context: Tensor  # (B, T, D): Z_T, what the layer adds to its input


class Decoder(ABC):
    """The halves of every layer of a backbone. B rows, T positions, H heads of dimension d, D width."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    @property
    def _base(self) -> Any:
        return self.backbone.model.base_model

    @abstractmethod
    def begin(self, x: Tensor, kv: Tensor | None = None, at: Tensor | None = None) -> tuple[Tensor, LayerContext]:
        """The first layer's input for embeddings `x` (B, T, D).

        Without `at` they start at position 0; with `at` (B,) each row continues there, behind what `kv` holds for it.
        """

    @abstractmethod
    def norm(self, layer: int, x: Tensor) -> Tensor:
        """`layer`'s input `x` (B, T, D) as its attention sees it."""

    @abstractmethod
    def attend(self, layer: int, normed: Tensor, call: LayerContext) -> SelfAttention:
        """Causal self-attention of `layer` over its normed input (B, T, D)."""

    @abstractmethod
    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        """`layer`'s output (B, T, D) from the sum `x` of its input and what was attended to."""

    @abstractmethod
    def end(self, x: Tensor) -> Tensor:
        """Final hidden states (after the last norm) of the last layer's output."""

    def _positions(self, x: Tensor, at: Tensor | None) -> Tensor:
        steps = torch.arange(x.shape[1], device=x.device)
        return steps[None] if at is None else at[:, None] + steps

    def _attention(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        call: LayerContext,
        scale: float,
        dropout: float,
    ) -> Tensor:
        """Softmax attention (B, T, H·d), storing `keys` and `values` (B, kv heads, T, d) in the call's tensor."""
        mask = None
        if call.positions is not None:
            if call.kv is None:
                raise BackboneError("decoder: continuing at a position needs the keys and values before it")
            stored_keys, stored_values = call.kv[:, layer].unbind(1)
            rows = torch.arange(keys.shape[0], device=keys.device)[:, None]
            stored_keys[rows, :, call.positions] = keys.transpose(1, 2).type_as(
                stored_keys
            )  # autocast's are of its type
            stored_values[rows, :, call.positions] = values.transpose(1, 2).type_as(stored_keys)
            keys, values = stored_keys, stored_values
            mask = (torch.arange(keys.shape[2], device=keys.device) <= call.positions[:, :, None])[:, None]
        elif call.kv is not None:
            call.kv[:, layer, 0, :, : keys.shape[2]], call.kv[:, layer, 1, :, : keys.shape[2]] = keys, values
        context = F.scaled_dot_product_attention(
            queries, keys, values, mask, dropout, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        return context.transpose(1, 2).flatten(2)


class GPT2Decoder(Decoder):
    """Learned positions added at the bottom; one projection for queries, keys and values."""

    def begin(self, x: Tensor, kv: Tensor | None = None, at: Tensor | None = None) -> tuple[Tensor, LayerContext]:
        positions = self._positions(x, at)
        return self._base.drop(x + self._base.wpe(positions)), LayerContext(kv, None if at is None else positions)

    def norm(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, self._base.h[layer].ln_1(x))

    def attend(self, layer: int, normed: Tensor, call: LayerContext) -> SelfAttention:
        attention = self._base.h[layer].attn
        projected = attention.c_attn(normed).unflatten(-1, (3, attention.num_heads, attention.head_dim))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        dropout = attention.attn_dropout.p if attention.training else 0.0
        context = self._attention(layer, queries, keys, values, call=call, scale=attention.scaling, dropout=dropout)
        return SelfAttention(queries, attention.resid_dropout(attention.c_proj(context)))

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        block = self._base.h[layer]
        return torch.add(x, block.mlp(block.ln_2(x)))

    def end(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._base.ln_f(x))


class LlamaDecoder(Decoder):
    """Rotary positions; grouped keys and values."""

    def begin(self, x: Tensor, kv: Tensor | None = None, at: Tensor | None = None) -> tuple[Tensor, LayerContext]:
        positions = self._positions(x, at)
        rotary = self._base.rotary_emb(x, position_ids=positions)
        return x, LayerContext(kv, None if at is None else positions, rotary)

    def norm(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, self._base.layers[layer].input_layernorm(x))

    def attend(self, layer: int, normed: Tensor, call: LayerContext) -> SelfAttention:
        attention = self._base.layers[layer].self_attn
        queries, keys, values = (
            project(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        rotated, keys = apply_rotary_pos_emb(queries, keys, *call.rotary)
        dropout = attention.attention_dropout if attention.training else 0.0
        context = self._attention(layer, rotated, keys, values, call=call, scale=attention.scaling, dropout=dropout)
        return SelfAttention(queries, attention.o_proj(context))

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        block = self._base.layers[layer]
        return torch.add(x, block.mlp(block.post_attention_layernorm(x)))

    def end(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._base.norm(x))


FAMILIES: dict[str, type[Decoder]] = {"gpt2": GPT2Decoder, "llama": LlamaDecoder}
"""transformers' `model_type` of every architecture whose layers can be driven."""


def decoder_of(backbone: Backbone) -> Decoder:
    """The backbone's layers, one by one.

    Raises `BackboneError` for an architecture of another family: layers that merely look alike may scale or order
    their parts differently, and would be wrong without a sign.
    """
    family = backbone.model.config.get_text_config().model_type
    if family not in FAMILIES:
        raise BackboneError(
            f"{type(backbone.model).__name__} ({family}): this memory stands inside the decoder's layers, and lacks a "
            f"way to drive those of {family}; it can drive {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[family](backbone)
