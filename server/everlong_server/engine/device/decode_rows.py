"""`DecodeRows`: a shared KV cache with one row for each answer. Knows tokens and states, but no requests."""

from __future__ import annotations

import torch
from torch import Tensor

from everlong_models import CacheSlots, MemoryState, StepGraphs
from everlong_models.backbone.prefix_cache import PrefixCache
from everlong_models.memories.base import SegmentReader


class DecodeRows:
    """Rows that are added at the end. A row caches an open segment; all earlier tokens are in a state."""

    def __init__(self, memory: SegmentReader, device: torch.device, graphs: StepGraphs | None = None) -> None:
        """`graphs`: CUDA graphs of the memory's `steps`; None runs a step without graphs."""
        self._memory = memory
        self._device = device
        self._graphs = graphs
        self._slots = CacheSlots(keep_allocated=graphs is not None)
        self._prefixes = PrefixCache()

    @property
    def segment_length(self) -> int:
        """How many tokens a row has room for."""
        return self._memory.segment_length

    @property
    def can_rewind(self) -> bool:
        """See `SegmentReader`."""
        return self._memory.can_rewind

    def open(self, state: MemoryState, tokens: list[int], newest: int | None, sinks: bool, owner: str = "") -> Tensor:
        """Prefill the open segment `tokens` into a new row, and return the logits (V,) of the next token.

        `newest`, `sinks`, `owner`: see `SegmentReader.open_recent`.
        """
        segment = torch.tensor([tokens], dtype=torch.int64, device=self._device)
        kv = self._slots.free_kv()
        cache, logits = self._memory.open_recent(
            state, segment, newest, sinks=sinks or newest is None, prefixes=self._prefixes, owner=owner, kv=kv
        )
        self._slots.add(cache)
        if kv is not None and cache["kv"] is kv and self._slots.rows["kv"][-1:].data_ptr() != kv.data_ptr():
            kv.zero_()  # a row left during the prefill, so the new one was copied to another slot, and this one is free again
        return logits[0]

    def last_values(self, layer: int) -> Tensor:
        """Return the values (kv heads, head dim) that `layer` has cached for the last token of the newest row."""
        rows = self._slots.rows
        at = int(rows["before"][-1] + rows.lengths[-1]) - 1
        return rows["kv"][-1, layer, 1, :, at]

    def start_next_segment(self, row: int, tokens: list[int], state: MemoryState) -> MemoryState | None:
        """Return the state after the full segment `tokens` of `row`, and reuse the row for the next segment.

        Returns None, having changed nothing, if the memory cannot do that.
        """
        segment = torch.tensor([tokens], device=self._device)
        return self._memory.continue_in_cache(self._slots.rows.slots(row, row + 1), segment, state)

    def remove(self, row: int) -> None:
        """Remove `row`; the last row moves into its slot."""
        self._slots.remove(row)

    def step(self, tokens: list[list[int]]) -> Tensor:
        """Append n tokens to each row, `tokens` (B, n), and return the logits (B, n, V) after each."""
        if self._graphs is not None:
            return self._graphs(self._slots, torch.tensor(tokens))
        rows, columns = self._slots.rows, torch.tensor(tokens, device=self._device)
        if columns.shape[1] == 1:
            return self._memory.step(rows, columns[:, 0])[:, None]
        return self._memory.steps(rows, columns)

    def rewind(self, lengths: list[int]) -> None:
        """Take back the last tokens of each row, until its segment has `lengths` tokens. Only if `can_rewind`."""
        self._slots.rows.lengths.copy_(torch.tensor(lengths))

    def clear(self) -> None:
        """Remove all rows."""
        self._slots = CacheSlots(keep_allocated=self._graphs is not None)
