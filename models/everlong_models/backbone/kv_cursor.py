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
    T): the positions of the pass. `branches` (B, T) int64: rows hold several texts that begin alike: 0 where they are the same, which is at the
    start, then 1, 2, … for each text's own tokens. Every text has the positions, and sees the keys, that it would have alone. Raises
    `BackboneError` for `at` without `kv`, and for `branches` with one.
    """

    def __init__(
        self,
        length: int,
        device: torch.device,
        kv: Tensor | None = None,
        at: Tensor | None = None,
        branches: Tensor | None = None,
    ) -> None:
        if at is not None and kv is None:
            raise BackboneError("continuing at a position needs the keys and values before it: pass `kv` with `at`")
        if branches is not None and kv is not None:
            raise BackboneError("the keys and values of branches cannot be stored: pass `branches` without `kv`")
        steps = torch.arange(length, device=device)
        self.kv = kv
        self.branches = branches
        self.positions = steps[None] if at is None else at[:, None] + steps
        if branches is not None:
            self.positions = steps - _starts(branches) + (branches == 0).sum(1, keepdim=True) * (branches > 0)
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
        if self.branches is None:
            return causal_mask(self.positions, keys, window)
        own = self.branches[:, :, None]
        seen = causal_mask(torch.arange(keys, device=own.device)[None], keys) & (
            (self.branches[:, None] == 0) | (self.branches[:, None] == own)
        )
        return seen if window is None else seen & (self.positions[:, None] > self.positions[:, :, None] - window)


def _starts(branches: Tensor) -> Tensor:
    """Return (B, T) where the branch of each token begins. Raises `BackboneError` unless the branches of each row are in order."""
    if bool((branches.diff(dim=1) < 0).any()):
        raise BackboneError("branches must be in order, those that all texts share (0) first")
    return torch.searchsorted(branches, branches)


def same_position(at: Tensor | None) -> bool:
    """Return whether all rows continue at the same position, as `kernels.attention.causal` needs it. On a GPU False: asking would wait for it."""
    return at is not None and at.device.type == "cpu" and bool((at == at[0]).all())
