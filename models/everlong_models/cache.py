"""`Cache`: the open segment while it is being decoded. Named tensors, batch first, of fixed size.

Its rows come and go with the sessions that are generating: `join` and `select` are all that a batch needs. Only `step`
writes into it; everything that outlives a generation is a `MemoryState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Cache:
    """`tensors`: named, batch first. `lengths`: (B,) int64, how many tokens each row's open segment holds.

    Around a backbone the tensor `kv` has the shape (B, layers, 2, kv heads, C, head dim), with C positions of fixed
    capacity: context that the memory puts before the segment, the segment, and what it appends at its end.
    """

    tensors: dict[str, Tensor]
    lengths: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def rows(self) -> int:
        """How many rows are in the batch."""
        return self.lengths.shape[0]

    @staticmethod
    def join(caches: Sequence[Cache]) -> Cache:
        """One cache with the rows of all `caches`, in order. The tensors are copied."""
        first = caches[0]
        return Cache(
            {name: torch.cat([cache[name] for cache in caches]) for name in first.tensors},
            torch.cat([cache.lengths for cache in caches]),
        )

    def select(self, rows: Sequence[int]) -> Cache:
        """A cache with only `rows`, in that order. The tensors are copied."""
        index = torch.tensor(rows, device=self.lengths.device, dtype=torch.int64)
        return Cache({name: tensor[index] for name, tensor in self.tensors.items()}, self.lengths[index])
