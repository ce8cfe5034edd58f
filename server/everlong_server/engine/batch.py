"""`Batch`: the answers that are being generated, a row of one cache each."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from everlong_models import Cache
from everlong_models.memory import SegmentReader
from everlong_server.engine.items import Answer


class Batch:
    """Answers in the order of their rows. Each row holds the answer's open segment; what lies before is in its state."""

    def __init__(self, memory: SegmentReader, device: torch.device) -> None:
        self._memory = memory
        self._device = device
        self._cache: Cache | None = None
        self.rows: list[Answer] = []

    def enter(self, item: Answer) -> None:
        """Reads the answer's open segment (1 … S tokens) into a row, and has the logits of what follows."""
        tokens = torch.tensor([item.open[item.skipped :]], dtype=torch.int64, device=self._device)
        if item.newest is None:
            cache, logits = self._memory.open(item.state, tokens)
        else:
            cache, logits = self._memory.open_near(item.state, tokens, item.newest, sinks=not item.alone)
        item.logits = logits[0]
        self._cache = cache if self._cache is None else Cache.join([self._cache, cache])
        self.rows.append(item)

    def leave(self, item: Answer) -> None:
        """Without the answer's row."""
        row = self.rows.index(item)
        assert self._cache is not None
        others = [r for r in range(len(self.rows)) if r != row]
        cache = self._cache.select(others) if others else None
        # Together: were there no room for the copy, rows would be given others' keys and values.
        self._cache = cache
        del self.rows[row]

    def step(self, drawn: Mapping[int, int]) -> None:
        """One token further for every answer whose id is in `drawn`; the others sit out and get the last rows."""
        rows = [item for item in self.rows if item.id in drawn]
        if not rows:
            return
        assert self._cache is not None
        resting = [item for item in self.rows if item.id not in drawn]
        caches = []
        if resting:
            caches = [self._cache.select([self.rows.index(item) for item in resting])]
            self._cache = self._cache.select([self.rows.index(item) for item in rows])
            self.rows = rows
        logits = self._memory.step(self._cache, torch.tensor([drawn[item.id] for item in rows], device=self._device))
        for row, item in enumerate(rows):
            item.logits = logits[row]
            item.open.append(drawn[item.id])
        if resting:
            self._cache = Cache.join([self._cache, *caches])
            self.rows = rows + resting

    def clear(self) -> None:
        """Without any row."""
        self.rows, self._cache = [], None
