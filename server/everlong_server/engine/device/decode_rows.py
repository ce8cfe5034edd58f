"""`DecodeRows`: a shared KV cache with one row for each answer. Knows tokens and states, but no requests."""

from __future__ import annotations

import torch
from torch import Tensor

from everlong_models import CacheSlots, MemoryState, StepGraphs
from everlong_models.memories.base import SegmentReader


class DecodeRows:
    """Rows that are added at the end. A row caches an open segment; all earlier tokens are in a state."""

    def __init__(self, memory: SegmentReader, device: torch.device, graphs: StepGraphs | None = None) -> None:
        """`graphs`: CUDA graphs of the memory's decode step; None runs the step without graphs."""
        self._memory = memory
        self._device = device
        self._graphs = graphs
        self._slots = CacheSlots(keep_allocated=graphs is not None)

    def open(self, state: MemoryState, tokens: list[int], newest: int | None, sinks: bool) -> Tensor:
        """Prefill the open segment `tokens` into a new row, and return the logits (V,) of the next token.

        `newest`, `sinks`: see `SegmentReader.open_recent`; `newest` None attends to all that `state` keeps.
        """
        segment = torch.tensor([tokens], dtype=torch.int64, device=self._device)
        if newest is None:
            cache, logits = self._memory.open(state, segment)
        else:
            cache, logits = self._memory.open_recent(state, segment, newest, sinks=sinks)
        self._slots.add(cache)
        return logits[0]

    def start_next_segment(self, row: int, tokens: list[int], state: MemoryState) -> MemoryState | None:
        """Return the state after the full segment `tokens` of `row`, and reuse the row for the next segment.

        Returns None, having changed nothing, if the memory cannot do that.
        """
        segment = torch.tensor([tokens], device=self._device)
        return self._memory.continue_in_cache(self._slots.rows.slots(row, row + 1), segment, state)

    def remove(self, row: int) -> None:
        """Remove `row`; the last row moves into its slot."""
        self._slots.remove(row)

    def step(self, tokens: list[int]) -> Tensor:
        """Append a token to each row, and return the logits (B, V) of the next ones."""
        if self._graphs is None:
            return self._memory.step(self._slots.rows, torch.tensor(tokens, device=self._device))
        return self._graphs(self._slots, torch.tensor(tokens))

    def clear(self) -> None:
        """Remove all rows."""
        self._slots = CacheSlots(keep_allocated=self._graphs is not None)
