"""`Cache`: the open segment while it is being decoded, as named tensors of fixed size, batch first.

`CacheSlots` batches the rows of all sessions that are generating; rows join and leave. Only `step` writes into a cache, in
place. Everything that outlives a generation is a `MemoryState`.
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

    Around a backbone, the tensor `kv` has the shape (B, layers, 2, kv heads, C, head dim), with a fixed capacity of C
    positions: the memory's context before the segment, the segment, and what the memory appends at its end. A tensor
    `before` (B,) may give the number of context positions; then positions after the segment are not copied with a row.
    """

    tensors: dict[str, Tensor]
    lengths: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def rows(self) -> int:
        """How many rows are in the batch."""
        return self.lengths.shape[0]

    def next_positions(self, count: int) -> Tensor:
        """Return the positions (B, count) in each row's segment of its next tokens."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def slots(self, start: int, end: int) -> Cache:
        """Return the rows [start, end) as a view: writes are shared with this cache."""
        return Cache({name: tensor[start:end] for name, tensor in self.tensors.items()}, self.lengths[start:end])


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Return zeros with the dtype and device of `like`.

    On a CPU, a large tensor takes memory and time only where it is written: an answer uses a few hundred of the
    thousands of positions that a cache has room for. Raises `torch.OutOfMemoryError`, or on a CPU `MemoryError` or
    PyTorch's `RuntimeError`.
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
"""Bytes from which the C allocator maps pages of their own for a tensor in any case."""
_ROOM = 1 << 30
"""Maximum bytes of address space that a batch on a CPU reserves in advance. The system allocates memory only when a row is written."""
_ROWS = 16
"""Maximum number of rows reserved in advance."""


def _copy(to: Cache, source: Cache) -> None:
    # On a GPU, reading the lengths would wait for the device, which costs more than copying all positions.
    only_filled = "before" in source.tensors and source.lengths.device.type == "cpu"
    if only_filled:
        end_before, end = (int((cache["before"] + cache.lengths).max()) for cache in (to, source))
        # Equal if the prefill wrote into this slot (`free_kv`). It may be another slot, since rows can leave during a prefill.
        if to["kv"].data_ptr() != source["kv"].data_ptr():
            to["kv"][..., :end, :].copy_(source["kv"][..., :end, :])
        # Clear the previous row's positions: attention weights them with 0, and 0 · NaN would be NaN.
        to["kv"][..., end:end_before, :].zero_()
    to.lengths.copy_(source.lengths)
    for name, tensor in source.tensors.items():
        if name != "kv" or not only_filled:
            to[name].copy_(tensor)


def _rows_in_advance(cache: Cache) -> int:
    """Return how many rows to reserve in advance: 0 on a GPU, and for rows that are too small to be mapped lazily or larger than `_ROOM`."""
    kv = cache.tensors.get("kv")
    if kv is None or kv.device.type != "cpu" or kv.nbytes < _LARGE:
        return 0
    return min(_ROWS, _ROOM * cache.rows // sum(tensor.nbytes for tensor in cache.tensors.values()))


def _allocated(capacity: int, like: Cache) -> Cache:
    tensors = {name: zeros((capacity, *tensor.shape[1:]), tensor) for name, tensor in like.tensors.items()}
    return Cache(tensors, zeros((capacity,), like.lengths))


class CacheSlots:
    """A batch of cache rows of one kind, stored contiguously. Adding or removing a row copies that row, not the others."""

    def __init__(self, *, keep_allocated: bool = False) -> None:
        """`keep_allocated`: keep the memory when all rows have left, so that CUDA graphs captured on it (`StepGraphs`) stay valid."""
        self._keep_allocated = keep_allocated
        self._all: Cache | None = None
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def rows(self) -> Cache:
        """All rows as one cache, a view that `step` may write into. Raises `IndexError` if there are none."""
        if not self._used:
            raise IndexError("no slot is taken")
        return self.allocated.slots(0, self._used)

    @property
    def allocated(self) -> Cache:
        """The rows and the free slots after them, as one cache. Free slots hold zeros or former rows.

        The object changes only when the slots are reallocated to grow. Raises `IndexError` if there never was a row.
        """
        if self._all is None:
            raise IndexError("no slot was ever taken")
        return self._all

    def add(self, cache: Cache) -> None:
        """Append copies of the rows of `cache`. If the allocation fails, nothing changes and its error is raised."""
        after = self._used + cache.rows
        if self._all is None or after > self._all.rows:
            least = max(after, 2 * self._used)  # doubling, so that a row is rarely moved
            capacity = max(least, _rows_in_advance(cache))
            try:
                larger = _allocated(capacity, cache)
            except (MemoryError, RuntimeError):  # such as a limit on the address space
                if capacity == least:
                    raise
                larger = _allocated(least, cache)
            if self._used:
                _copy(larger.slots(0, self._used), self.rows)
            self._all = larger
        _copy(self._all.slots(self._used, after), cache)
        self._used = after

    def free_kv(self) -> Tensor | None:
        """Return the tensor `kv` (1, …) of the slot that `add` fills next. Prefill into it and pass the cache to `add`, which then does not copy it.

        It may hold the data of a removed row. Returns None if no allocated slot is free, on a GPU, and for caches without `before`: `add` does not
        clear old positions of those.
        """
        if self._all is None or self._used == self._all.rows or "before" not in self._all.tensors:
            return None
        kv = self._all["kv"][self._used : self._used + 1]
        return kv if kv.device.type == "cpu" else None

    def remove(self, row: int) -> None:
        """Remove `row`; the last row moves into its slot. Allocates nothing."""
        if self._all is None or not 0 <= row < self._used:
            raise IndexError(f"row {row} of {self._used}")
        last = self._used - 1
        if row != last:
            _copy(self._all.slots(row, row + 1), self._all.slots(last, last + 1))
        self._used = last
        if not last and not self._keep_allocated:
            self._all = None
