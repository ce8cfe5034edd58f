"""`DecodeBatch`: the answers that are being decoded, one row of a shared KV cache each."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from everlong_models import CacheSlots, StepGraphs
from everlong_models.memories.base import SegmentReader
from everlong_server.engine.device.requests import AnswerRequest


class DecodeBatch:
    """Answers in row order. A row caches the answer's open segment; all earlier tokens are in the answer's state."""

    def __init__(self, memory: SegmentReader, device: torch.device, graphs: StepGraphs | None = None) -> None:
        """`graphs`: CUDA graphs of the memory's decode step; None runs the step without graphs."""
        self._memory = memory
        self._device = device
        self._graphs = graphs
        self._slots = CacheSlots(keep_allocated=graphs is not None)
        self.rows: list[AnswerRequest] = []

    def add(self, request: AnswerRequest) -> None:
        """Prefill the answer's open segment (1 … S tokens) into a new row, and set the logits of the next token."""
        tokens = torch.tensor([request.open[request.hidden_open :]], dtype=torch.int64, device=self._device)
        if request.visible_kept is None:
            cache, logits = self._memory.open(request.state, tokens)
        else:
            cache, logits = self._memory.open_recent(
                request.state, tokens, request.visible_kept, sinks=request.own_before is None
            )
        request.logits = logits[0]
        self._slots.add(cache)
        self.rows.append(request)

    def start_next_segment(self, request: AnswerRequest) -> bool:
        """Commit the answer's full segment to its memory and reuse its row for the next segment.

        Returns False, having changed nothing, if the memory cannot do that. Then remove the row and add it again.
        """
        row, segment = self.rows.index(request), torch.tensor([request.open], device=self._device)
        state = self._memory.continue_in_cache(self._slots.rows.slots(row, row + 1), segment, request.state)
        if state is not None:
            request.commit_segment(state, len(request.open))
        return state is not None

    def remove(self, request: AnswerRequest) -> None:
        """Remove the answer's row; the last row moves into its slot."""
        row = self.rows.index(request)
        self._slots.remove(row)
        self.rows[row] = self.rows[-1]
        del self.rows[-1]

    def step(self, sampled: Mapping[int, int]) -> None:
        """Run one decode step for all rows. `sampled`: the new token of each answer, by the answer's id."""
        if not self.rows:
            return
        tokens = [sampled[request.id] for request in self.rows]
        if self._graphs is None:
            logits = self._memory.step(self._slots.rows, torch.tensor(tokens, device=self._device))
        else:
            logits = self._graphs(self._slots, torch.tensor(tokens))
        for request, token, row_logits in zip(self.rows, tokens, logits, strict=True):
            request.logits = row_logits
            request.open.append(token)

    def clear(self) -> None:
        """Remove all rows."""
        self.rows, self._slots = [], CacheSlots(keep_allocated=self._graphs is not None)
