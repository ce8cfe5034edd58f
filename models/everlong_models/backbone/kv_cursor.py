"""Keys and values of one forward pass: where they are stored in a cache, and which of them each query sees."""

from __future__ import annotations

import torch
from torch import Tensor

from everlong_models.errors import BackboneError
from everlong_models.kernels.attention import causal_mask


class KVCursor:
    """Stores the keys and values of one pass in a tensor `kv` that the caller owns.

    `kv` (B, layers, 2, kv heads, C, head dim); None stores nothing. Without `at` the pass starts at position 0. With
    `at` (B,) each row continues at its own position, after the positions that `kv` holds for it. `positions` (1 or B,
    T): the positions of the pass. Raises `BackboneError` for `at` without `kv`.
    """

    def __init__(self, length: int, device: torch.device, kv: Tensor | None = None, at: Tensor | None = None) -> None:
        if at is not None and kv is None:
            raise BackboneError("continuing at a position needs the keys and values before it: pass `kv` with `at`")
        steps = torch.arange(length, device=device)
        self.kv = kv
        self.positions = steps[None] if at is None else at[:, None] + steps
        self._rows = None if at is None else torch.arange(at.shape[0], device=device)[:, None]

    @property
    def at_start(self) -> bool:
        """Whether the pass starts at position 0. Then it attends to its own keys and values only."""
        return self._rows is None

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's `keys` and `values` (B, kv heads, T, d).

        Returns what the queries attend to: at the start the arguments, otherwise all stored ones (B, kv heads, C, d).
        """
        if self.kv is None:
            return keys, values
        # Not `unbind`: its views cannot be written to while gradients are enabled.
        return self._write(self.kv[:, layer, 0], keys), self._write(self.kv[:, layer, 1], values)

    def store_pair(self, layer: int, pair: Tensor) -> Tensor:
        """Like `store`, for keys and values in one tensor (B, 2, kv heads, T, d)."""
        return pair if self.kv is None else self._write(self.kv[:, layer], pair)

    def _write(self, stored: Tensor, new: Tensor) -> Tensor:
        """Write `new` (B, …, T, d) into `stored` (B, …, C, d)."""
        if self._rows is None:
            stored[..., : new.shape[-2], :] = new
            return new
        # Under autocast, new keys and values have another dtype.
        stored.movedim(-2, 1)[self._rows, self.positions] = new.movedim(-2, 1).type_as(stored)
        return stored

    def visible(self, window: int | None = None) -> Tensor:
        """Return the causal mask of the pass (1 or B, T, C): C is T at the start, otherwise the capacity of `kv`.

        `window`: how many keys a query sees, its own included; None: all.
        """
        keys = self.positions.shape[1] if self.kv is None or self.at_start else self.kv.shape[4]
        return causal_mask(self.positions, keys, window)


def same_position(at: Tensor | None) -> bool:
    """Return whether all rows continue at the same position, as `kernels.attention.causal` needs it. On a GPU False: asking would wait for it."""
    return at is not None and at.device.type == "cpu" and bool((at == at[0]).all())
