"""`DecodeBatch`: the answers that are being generated, a row of one cache each."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from everlong_models import CacheSlots, StepGraphs
from everlong_models.memories.base import SegmentReader
from everlong_server.engine.device.requests import Answer


class DecodeBatch:
    """Answers in the order of their rows. Each row holds the answer's open segment; what lies before is in its state."""

    def __init__(self, memory: SegmentReader, device: torch.device, graphs: StepGraphs | None = None) -> None:
        """`graphs`: of the memory's step, where it is to be recorded."""
        self._memory = memory
        self._device = device
        self._graphs = graphs
        self._slots = CacheSlots(keep_allocated=graphs is not None)
        self.rows: list[Answer] = []

    def enter(self, item: Answer) -> None:
        """Reads the answer's open segment (1 … S tokens) into a row, and has the logits of what follows."""
        tokens = torch.tensor([item.open[item.skipped :]], dtype=torch.int64, device=self._device)
        if item.newest is None:
            cache, logits = self._memory.open(item.state, tokens)
        else:
            cache, logits = self._memory.open_recent(item.state, tokens, item.newest, sinks=not item.alone)
        item.logits = logits[0]
        self._slots.add(cache)
        self.rows.append(item)

    def go_on(self, item: Answer) -> bool:
        """Whether the answer's segment, which is full, has gone into its memory and its row stands where the next one begins.
        If not, nothing has changed: the row has to leave, and enter again."""
        row, segment = self.rows.index(item), torch.tensor([item.open], device=self._device)
        state = self._memory.continue_in_cache(self._slots.rows.slots(row, row + 1), segment, item.state)
        if state is not None:
            item.remember(state, len(item.open))
        return state is not None

    def leave(self, item: Answer) -> None:
        """Without the answer's row; the last one takes its place."""
        row = self.rows.index(item)
        self._slots.remove(row)
        self.rows[row] = self.rows[-1]
        del self.rows[-1]

    def step(self, drawn: Mapping[int, int]) -> None:
        """One token further for every answer: `drawn` has it by the answer's id."""
        if not self.rows:
            return
        tokens = [drawn[item.id] for item in self.rows]
        if self._graphs is None:
            logits = self._memory.step(self._slots.rows, torch.tensor(tokens, device=self._device))
        else:
            logits = self._graphs(self._slots, torch.tensor(tokens))
        for item, token, scores in zip(self.rows, tokens, logits, strict=True):
            item.logits = scores
            item.open.append(token)

    def clear(self) -> None:
        """Without any row."""
        self.rows, self._slots = [], CacheSlots(keep_allocated=self._graphs is not None)
