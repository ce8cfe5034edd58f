"""`Cache`: the open segment while it is being decoded. Named tensors, batch first, of fixed size.

Its rows come and go with the sessions that are generating: `CacheSlots` has a place for each. Only `step` writes into a cache,
where it is; everything that outlives a generation is a `MemoryState`.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Cache:
    """`tensors`: named, batch first. `lengths`: (B,) int64, how many tokens each row's open segment holds.

    Around a backbone the tensor `kv` has the shape (B, layers, 2, kv heads, C, head dim), with C positions of fixed
    capacity: context that the memory puts before the segment, the segment, and what it appends at its end. How many positions
    the context has may be told by a tensor `before` (B,); then what lies behind the segment is not copied with a row.
    """

    tensors: dict[str, Tensor]
    lengths: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def rows(self) -> int:
        """How many rows are in the batch."""
        return self.lengths.shape[0]

    def slots(self, start: int, end: int) -> Cache:
        """The rows [start, end) where they are: what is written into one is written into the other."""
        return Cache({name: tensor[start:end] for name, tensor in self.tensors.items()}, self.lengths[start:end])


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of the type of `like` and where it is. On a CPU a large one takes memory, and time, only where it is written: of a
    place for the keys and values of some thousand positions an answer uses a few hundred.

    Raises `torch.OutOfMemoryError`, or on a CPU `MemoryError` or what PyTorch raises there.
    """
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _LARGE:
        return like.new_zeros(tuple(shape))
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes: {error}") from error
    return torch.frombuffer(pages, dtype=like.dtype).view(*shape)


_LARGE = 1 << 20
"""Bytes from which the system hands out pages by themselves anyhow."""


def _copy(to: Cache, of: Cache) -> None:
    # Elsewhere, asking for a length costs more than not knowing it.
    apart = "before" in of.tensors and of.lengths.device.type == "cpu"
    if apart:
        before, reached = (int((cache["before"] + cache.lengths).max()) for cache in (to, of))
        to["kv"][..., :reached, :].copy_(of["kv"][..., :reached, :])
        # What was there must not stay: a step may look at it, with a weight of 0, and what is no number would be none then.
        to["kv"][..., reached:before, :].zero_()
    to.lengths.copy_(of.lengths)
    for name, tensor in of.tensors.items():
        if name != "kv" or not apart:
            to[name].copy_(tensor)


class CacheSlots:
    """The rows of caches of one kind, one behind the other: who comes or goes is copied, the others stay where they are."""

    def __init__(self, *, keep_allocated: bool = False) -> None:
        """`keep_allocated`: places stay when all rows have left, so that what was recorded of them (`StepGraphs`) still holds."""
        self._keep_allocated = keep_allocated
        self._all: Cache | None = None
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def rows(self) -> Cache:
        """All rows as one cache, which `step` may write into. Raises `IndexError` if there are none."""
        if not self._used:
            raise IndexError("no slot is taken")
        return self.allocated.slots(0, self._used)

    @property
    def allocated(self) -> Cache:
        """Another cache only when all were moved to make room: the rows, and behind them what is free. That holds zeros or
        what was a row. Raises `IndexError` if there never was a row."""
        if self._all is None:
            raise IndexError("no slot was ever taken")
        return self._all

    def add(self, cache: Cache) -> None:
        """Its rows, behind the others. Where there is no memory for more, all is as it was."""
        after = self._used + cache.rows
        if self._all is None or after > self._all.rows:
            room = max(after, 2 * self._used)  # so that a row is moved a few times at most, however many come
            more = Cache(
                {name: zeros((room, *tensor.shape[1:]), tensor) for name, tensor in cache.tensors.items()},
                zeros((room,), cache.lengths),
            )
            if self._used:
                _copy(more.slots(0, self._used), self.rows)
            self._all = more
        _copy(self._all.slots(self._used, after), cache)
        self._used = after

    def remove(self, row: int) -> None:
        """Without that row; the last one takes its place. Needs no memory."""
        if self._all is None or not 0 <= row < self._used:
            raise IndexError(f"row {row} of {self._used}")
        last = self._used - 1
        if row != last:
            _copy(self._all.slots(row, row + 1), self._all.slots(last, last + 1))
        self._used = last
        if not last and not self._keep_allocated:
            self._all = None
