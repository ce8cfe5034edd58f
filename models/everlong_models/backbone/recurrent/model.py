"""`Recurrent`: a pretrained model with recurrent layers, computed by transformers, whose state the caller owns.

Everything that the model keeps between tokens is in named tensors, batch first (`state_cache`): states of convolutions and recurrences,
and for layers with attention the keys and values of the first tokens and of the last ones. Rows differ in how much they have read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from everlong_models.backbone.description import FIXED_FREQUENCIES
from everlong_models.backbone.recurrent.families import FAMILIES, Family, supported
from everlong_models.backbone.recurrent.mixers import call_before_each_layer, half_life
from everlong_models.backbone.recurrent.state_cache import LayerLayout, layouts, named, present, unsupported_layer
from everlong_models.backbone.rotary import turned
from everlong_models.errors import BackboneError
from everlong_models.kernels.attention import additive_mask
from everlong_models.kernels.yield_point import yield_point

_PROBE = 11
"""Tokens of the passes that a constructor makes."""
_NEAR, _FAR = 1, 8
"""Positions at which the constructor compares keys. RecurrentGemma treats position 0 differently."""


def recurrent_kernels(device: torch.device) -> str:
    """Return what computes recurrent layers on this device, in words. transformers uses compiled kernels where they are installed."""
    found = [name for name in ("mamba_ssm", "causal_conv1d", "fla") if find_spec(name)] if device.type == "cuda" else []
    return f"PyTorch and the kernels of {', '.join(found)}" if found else "PyTorch"


class Recurrent(nn.Module):
    """A Hugging Face causal language model with recurrent layers.

    Shapes: B rows, T tokens, V vocabulary, C slots for keys and values. The constructor raises `BackboneError`, naming the kind of layer,
    for a model whose layers do not all keep their state in transformers' cache, or do not continue from it. `digest`: see `Backbone`.
    """

    def __init__(self, model: PreTrainedModel, *, digest: str | None = None) -> None:
        super().__init__()
        self.model, self.digest = model, digest
        config = model.config
        if config.model_type in FAMILIES:
            FAMILIES[config.model_type].prepare(model)
        self.vocab_size: int = config.vocab_size
        self._cache_name = next(
            (name for name in ("cache_params", "past_key_values") if name in inspect.signature(model.base_model.forward).parameters),
            None,
        )  # fmt: skip
        training = model.training
        model.eval()
        with torch.no_grad():
            self.layers = self._find_layouts()
            self._turning = self._find_turning()
            self._require_continuing()
        model.train(training)
        call_before_each_layer(model, yield_point)

    def unfit(self, reason: str) -> BackboneError:
        kind = f"{type(self.model).__name__} ({self.model.config.model_type})"
        return BackboneError(f"{kind}: {reason}. The memory `native` supports {supported()}")

    def _probe_tokens(self) -> Tensor:
        return (torch.arange(_PROBE, device=self.device) * 7 % self.vocab_size)[None]

    def _find_layouts(self) -> list[LayerLayout]:
        """Return what every layer keeps."""
        try:
            cache = DynamicCache(config=self.model.config)
        except Exception as error:  # a kind of layer that transformers has no cache for
            raise self.unfit(f"transformers has no cache for its layers ({error})") from error
        kinds = getattr(self.model.config, "layer_types", None) or ["full_attention"] * len(cache.layers)
        if (index := unsupported_layer(cache)) is not None:
            raise self.unfit(f"its layer {index} is of the kind {kinds[index]!r}, whose state is not supported")
        if self._cache_name is None:
            raise self.unfit(
                f"its layers ({', '.join(sorted(set(kinds)))}) keep their state outside transformers' cache"
            )
        try:
            self.model(self._probe_tokens()[:, :2], use_cache=True, **{self._cache_name: cache})
            found = layouts(cache)
        except Exception as error:  # models raise all kinds of errors for a cache that is not their own
            raise self.unfit(
                f"its layers keep no state in transformers' cache ({' '.join(str(error).split())})"
            ) from error
        if not any(layout.states for layout in found):
            raise self.unfit("it has no recurrent layer; use the memory `window`")
        for index, layout in enumerate(found):
            if kinds[index] not in ("moe", "mlp") and not layout.states and layout.keys is None:
                raise self.unfit(
                    f"its layer {index} of the kind {kinds[index]!r} keeps no state in transformers' cache"
                )
        return found

    def _find_turning(self) -> list[Tensor | None]:
        """Return for every layer the frequencies of its rotary positions, None if it has none. Raises for other positions."""
        if not self.has_attention:
            return [None] * len(self.layers)
        base = self.model.base_model
        found: list[Tensor | None] = []
        near, far = (self._keys_at(position) for position in (_NEAR, _FAR))
        for index, (start, end) in enumerate(zip(near, far, strict=True)):
            if start is None or end is None or torch.equal(start, end):
                found.append(None)
                continue
            modules = (*base.children(), *base.layers[index].modules())
            frequencies: Any = next((module.inv_freq for module in modules if hasattr(module, "inv_freq")), None)
            rope = getattr(self.model.config, "rope_parameters", None) or {}
            if frequencies is None or rope.get("rope_type", "default") not in FIXED_FREQUENCIES:
                raise self.unfit(f"its layer {index} has positions that cannot be moved")
            moved = turned(start, frequencies, torch.tensor([_FAR - _NEAR], device=self.device))
            if (moved - end).norm() > 0.05 * (start - end).norm():
                raise self.unfit(f"its layer {index} has positions that cannot be moved")
            found.append(frequencies)
        return found

    def _keys_at(self, position: int) -> list[Tensor | None]:
        """Return every layer's keys (1, G, 1, d) of a text of one token at `position`."""
        tensors = self.new_tensors(1, 1)
        at = torch.full((1, 1), position, device=self.device)
        visible = torch.ones(1, 1, 1, dtype=torch.bool, device=self.device)
        self._run(self._probe_tokens()[:, :1], tensors, at * 0, visible, positions=at)
        return [tensors[named(n, "keys")] if layout.keys else None for n, layout in enumerate(self.layers)]

    def _require_continuing(self) -> None:
        """Raise `BackboneError` unless reading in chunks, the last of one token, gives the logits of reading at once."""
        tokens = self._probe_tokens()
        whole = self.model(tokens, use_cache=False).logits[:, -1].float()
        state, at = self.new_tensors(1, _PROBE), 0
        for size in (_PROBE - 4, 3, 1):
            logits = self.run(tokens[:, at : at + size], state, torch.tensor([at], device=self.device), keep=1)
            at += size
        if not (logits[:, -1].float() - whole).norm() <= 0.02 * whole.norm():
            raise self.unfit("its layers do not continue from their state")

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.get_input_embeddings().weight.device

    def half_life(self, layer: int) -> float | None:
        """See `mixers.half_life`."""
        return half_life(self.model.base_model.layers[layer])

    @property
    def family(self) -> Family:
        """What is known of the model's family."""
        kind = self.model.config.model_type
        return FAMILIES.get(kind) or Family(kind, "recurrent layers")

    @property
    def has_attention(self) -> bool:
        """Whether a layer has attention, so that positions and slots for keys and values matter."""
        return any(layout.keys is not None for layout in self.layers)

    @property
    def attention_windows(self) -> set[int | None]:
        """How many tokens the layers with attention see: numbers, or None for all."""
        return {layout.window for layout in self.layers if layout.keys is not None}

    @property
    def max_positions(self) -> int:
        """The largest number of positions that layers with rotary positions were made for."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return limit if limit and any(turning is not None for turning in self._turning) else 1 << 30

    def optimize(self, *, quantize: bool = False, bfloat16: bool = False) -> str | None:
        """Return why there is no faster path: transformers' layers compute this model."""
        return "recurrent layers"

    def new_tensors(self, rows: int, slots: int) -> dict[str, Tensor]:
        """Return the tensors of an empty state, all zero, with room for `slots` keys and values."""
        return {
            named(index, name): torch.zeros((rows, *shape), dtype=dtype, device=self.device)
            for index, layout in enumerate(self.layers)
            for name, (shape, dtype) in layout.tensors(slots).items()
        }

    def run(self, tokens: Tensor, tensors: Mapping[str, Tensor], at: Tensor, *, keep: int | None) -> Tensor:
        """Read `tokens` (B, T) into `tensors`, in place. Keys and values go to the slots from `at` (B,) on.

        Returns the logits (B, keep, V) at the last `keep` positions, (B, T, V) for None; for 0 the final hidden states.
        """
        slots = at[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        keys = [tensors[named(n, "keys")] for n, layout in enumerate(self.layers) if layout.keys is not None]
        if not keys:
            return self._run(tokens, tensors, slots, None, keep=keep)
        slot = torch.arange(keys[0].shape[2], device=tokens.device)
        visible = slot <= slots[..., None]  # (B, T, C)
        return self._run(tokens, tensors, slots, visible, keep=keep)

    def _run(
        self, tokens: Tensor, tensors: Mapping[str, Tensor], slots: Tensor, visible: Tensor | None, *,
        positions: Tensor | None = None, keep: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Read `tokens` with a mask `visible` (B, T, C). `positions` (B, T): default `slots`."""
        arguments: dict[str, Any] = {self._cache_name or "": present(self.layers, tensors, slots), "use_cache": True}
        if visible is not None:
            arguments["position_ids"] = slots if positions is None else positions
            full = self._mask(visible)
            masks: dict[str, Tensor | None] = {"full_attention": full, "linear_attention": None, "conv": None}
            windows = self.attention_windows - {None}
            if windows:
                (window,) = windows
                assert window is not None
                near = torch.arange(visible.shape[-1], device=visible.device) > slots[..., None] - window
                masks["sliding_attention"] = self._mask(visible & near)
            arguments["attention_mask"] = masks
        if keep == 0:
            return self.model.base_model(tokens, **arguments).last_hidden_state
        return self.model(tokens, logits_to_keep=keep or 0, **arguments).logits

    def _mask(self, visible: Tensor) -> Tensor:
        mask = visible[:, None]
        if self.model.config._attn_implementation != "eager":
            return mask
        dtype = self.model.dtype  # eager attention adds the mask to the scores
        return additive_mask(mask, dtype, torch.finfo(dtype).min)

    def evicted(self, tensors: Mapping[str, Tensor], used: Tensor, sinks: int, slots: int) -> dict[str, Tensor]:
        """Return the tensors with the first `slots` slots only: the first `sinks` that are `used` (B,), and the last ones.

        The keys that move are turned to the position of their new slot. What they learnt from evicted tokens stays in them.
        """
        kept: dict[str, Tensor] = {}
        over = (used - slots).clamp_min(0)
        index = torch.arange(slots, device=used.device)
        source = torch.where(index < sinks, index, index + over[:, None])  # (B, slots)
        filled = (index < used[:, None])[:, None, :, None]
        for n, layout in enumerate(self.layers):
            for name in layout.tensors(slots):
                tensor = tensors[named(n, name)]
                if name in layout.states:
                    kept[named(n, name)] = tensor.clone()
                    continue
                wide = source[:, None, :, None].expand(len(used), tensor.shape[1], slots, tensor.shape[3])
                moved = tensor.gather(2, wide)
                frequencies = self._turning[n]
                if name == "keys" and frequencies is not None:
                    moved = turned(moved, frequencies, torch.where(index < sinks, 0, -over[:, None])).to(tensor.dtype)
                kept[named(n, name)] = torch.where(filled, moved, 0)
        return kept
