"""`DecodeBatch`: the answers that are being decoded, one row of a shared KV cache each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from everlong_models import CacheSlots, StepGraphs
from everlong_models.memories.base import SegmentReader
from everlong_server.engine.device.drafting import Drafting
from everlong_server.engine.device.requests import AnswerRequest


class DecodeBatch:
    """Answers in row order. A row caches the answer's open segment; all earlier tokens are in the answer's state."""

    def __init__(
        self,
        memory: SegmentReader,
        device: torch.device,
        graphs: StepGraphs | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        """`graphs`: CUDA graphs of the memory's `steps`; None runs a step without graphs. `drafting`: None guesses no tokens, and so
        does a memory that cannot rewind."""
        self._memory = memory
        self._device = device
        self._graphs = graphs
        self._drafting = drafting if memory.can_rewind else None
        self._width = 1
        """Positions of each row in the last step."""
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
        request.ahead.clear()
        if self._drafting is not None:
            self._drafting.begin(request)
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
        """Run one decode step for all rows. `sampled`: the new token of each answer, by the answer's id.

        The step may also decode guesses of the tokens that follow: see `AnswerRequest.take_guess`. After them, call `rewind`.
        """
        if not self.rows:
            return
        if self._drafting is not None:
            room = self._memory.segment_length - max(len(request.open) for request in self.rows)
            self._width = self._drafting.width(self.rows, room)
        guesses = [request.lookup.guesses(self._width - 1) if request.lookup else [] for request in self.rows]
        tokens = [
            [sampled[request.id], *(guessed or [0] * (self._width - 1))]
            for request, guessed in zip(self.rows, guesses, strict=True)
        ]
        logits = self._logits(torch.tensor(tokens))
        for request, (token, *_), guessed, row_logits in zip(self.rows, tokens, guesses, logits, strict=True):
            request.logits = row_logits[0]
            request.open.append(token)
            request.drafted += len(guessed)
            request.ahead = deque(zip(guessed, row_logits[1:], strict=False))

    def _logits(self, tokens: Tensor) -> Tensor:
        """Append `tokens` (B, n) and return the logits (B, n, V) after each."""
        if self._graphs is not None:
            return self._graphs(self._slots, tokens)
        rows, tokens = self._slots.rows, tokens.to(self._device)
        if tokens.shape[1] == 1:
            return self._memory.step(rows, tokens[:, 0])[:, None]
        return self._memory.steps(rows, tokens)

    def rewind(self) -> None:
        """Take the guesses that were wrong out of the cache."""
        if self._width > 1 and self.rows:
            lengths = [len(request.open) - request.hidden_open for request in self.rows]
            self._slots.rows.lengths.copy_(torch.tensor(lengths))
        self._width = 1

    def clear(self) -> None:
        """Remove all rows."""
        self.rows, self._slots = [], CacheSlots(keep_allocated=self._graphs is not None)
