"""Presents named tensors as one of transformers' caches, so that its layers read and write them.

Shapes: B rows, G kv heads, C slots, d head dimension. A recurrent layer has `conv` and `recurrent` tensors, an attention layer `keys`
and `values` (B, G, C, d); some layers have both. A name starts with the layer's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

_KINDS: dict[type, tuple[bool, bool]] = {
    LinearAttentionLayer: (True, False),
    DynamicLayer: (False, True),
    DynamicSlidingWindowLayer: (False, True),
    LinearAttentionAndFullAttentionLayer: (True, True),
    LinearAttentionAndSlidingWindowAttentionLayer: (True, True),
    DummyLayer: (False, False),
}
"""Whether a layer of transformers' cache has recurrent states, and keys and values."""


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """What one layer keeps for one row.

    `states`: shapes and types of its recurrent states, by name. `keys`, `values`: (G, d), None without attention. `window`: how many
    tokens its attention sees, None for all.
    """

    states: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    keys: tuple[int, int] | None = None
    values: tuple[int, int] | None = None
    dtype: torch.dtype | None = None
    window: int | None = None

    def tensors(self, slots: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shapes (without the row) and types of all tensors, with room for `slots` keys and values."""
        tensors = dict(self.states)
        for name, shape in (("keys", self.keys), ("values", self.values)):
            if shape is not None and self.dtype is not None:
                tensors[name] = ((shape[0], slots, shape[1]), self.dtype)
        return tensors


def named(layer: int, name: str) -> str:
    """Return the name of a layer's tensor. Sorting names sorts layers."""
    return f"{layer:03}.{name}"


def unsupported_layer(cache: DynamicCache) -> int | None:
    """Return the first layer of a kind that `layouts` does not know, or None."""
    return next((index for index, layer in enumerate(cache.layers) if type(layer) not in _KINDS), None)


def layouts(cache: DynamicCache) -> list[LayerLayout]:
    """Return what each layer keeps, from a `cache` of one row that some tokens were read into."""
    found = []
    for layer in cache.layers:
        recurrent, attention = _KINDS[type(layer)]
        states = dict(_states(layer)) if recurrent else {}
        shapes = {name: (tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in states.items()}
        if attention and layer.keys is not None:
            keys, values = ((x.shape[1], x.shape[3]) for x in (layer.keys, layer.values))
            window = getattr(layer, "sliding_window", None)
            found.append(LayerLayout(shapes, keys, values, layer.keys.dtype, window))
        else:
            found.append(LayerLayout(shapes))
    return found


def _states(layer: Any) -> Iterable[tuple[str, Tensor]]:
    for kind in ("conv", "recurrent"):
        for index, tensor in getattr(layer, f"{kind}_states").items():
            if tensor is not None:
                yield f"{kind}{index or ''}", tensor


class _Slots(DynamicLayer):  # type: ignore[misc]
    """Keys and values in slots of fixed number. Each row writes at its own `positions` (B, T)."""

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self._positions = positions
        self._rows = torch.arange(len(keys), device=keys.device)[:, None]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store keys and values (B, G, T, d). Return those of all slots."""
        assert self.keys is not None
        assert self.values is not None
        for stored, new in ((self.keys, key_states), (self.values, value_states)):
            stored.movedim(2, 1)[self._rows, self._positions] = new.movedim(2, 1).to(stored.dtype)
        return self.keys, self.values


class _Recurrent(LinearAttentionLayer):  # type: ignore[misc]
    """Recurrent states that layers overwrite in place. They are never empty: before the first token they are zero."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        _load(self, tensors)


class _Both(LinearAttentionLayer, _Slots):  # type: ignore[misc]
    """A layer with recurrent states, keys and values."""

    def __init__(self, tensors: Mapping[str, Tensor], positions: Tensor) -> None:
        _Slots.__init__(self, tensors["keys"], tensors["values"], positions)
        _load(self, tensors)


def _load(layer: LinearAttentionLayer, tensors: Mapping[str, Tensor]) -> None:
    conv = {name: tensor for name, tensor in tensors.items() if name.startswith("conv")}
    LinearAttentionLayer.__init__(layer, number_of_states=max(1, len(conv)))
    for name, tensor in tensors.items():
        kind = name.rstrip("0123456789")
        if kind not in ("conv", "recurrent"):
            continue
        index = int(name.removeprefix(kind) or 0)
        getattr(layer, f"{kind}_states")[index] = tensor
        getattr(layer, f"is_{kind}_states_initialized")[index] = True
        layer.has_previous_state[index] = True
        if kind == "conv":
            layer.conv_kernel_size[index] = tensor.shape[-1]
            layer.dtype, layer.device = tensor.dtype, tensor.device


def present(layouts: Iterable[LayerLayout], tensors: Mapping[str, Tensor], positions: Tensor) -> Cache:
    """Return a cache of transformers whose layers read and write `tensors`, at the `positions` (B, T) of the pass."""
    layers: list[Any] = []
    for index, layout in enumerate(layouts):
        own = {name: tensors[named(index, name)] for name in layout.tensors(0)}
        if layout.keys is None:
            layers.append(_Recurrent(own) if layout.states else DummyLayer())
        elif layout.states:
            layers.append(_Both(own, positions))
        else:
            layers.append(_Slots(own["keys"], own["values"], positions))
    return Cache(layers=layers)
