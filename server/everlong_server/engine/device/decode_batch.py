"""`DecodeBatch`: the answers that are being decoded, one row of a shared KV cache each."""

from __future__ import annotations

from collections.abc import Mapping

from everlong_server.engine.device.decode_rows import DecodeRows
from everlong_server.engine.device.requests import AnswerRequest


class DecodeBatch:
    """Answers in row order. A row caches the answer's open segment; all earlier tokens are in the answer's state."""

    def __init__(self, cached: DecodeRows) -> None:
        """`cached`: the rows of the KV cache, which this object alone changes."""
        self._cached = cached
        self.rows: list[AnswerRequest] = []

    def add(self, request: AnswerRequest) -> None:
        """Prefill the answer's open segment (1 … S tokens) into a new row, and set the logits of the next token."""
        tokens = request.open[request.hidden_open :]
        request.logits = self._cached.open(request.state, tokens, request.visible_kept, request.own_before is None)
        self.rows.append(request)

    def start_next_segment(self, request: AnswerRequest) -> bool:
        """Commit the answer's full segment to its memory and reuse its row for the next segment.

        Returns False, having changed nothing, if the memory cannot do that. Then remove the row and add it again.
        """
        state = self._cached.start_next_segment(self.rows.index(request), request.open, request.state)
        if state is not None:
            request.commit_segment(state, len(request.open))
        return state is not None

    def remove(self, request: AnswerRequest) -> None:
        """Remove the answer's row; the last row moves into its slot."""
        row = self.rows.index(request)
        self._cached.remove(row)
        self.rows[row] = self.rows[-1]
        del self.rows[-1]

    def step(self, sampled: Mapping[int, int]) -> None:
        """Run one decode step for all rows. `sampled`: the new token of each answer, by the answer's id."""
        if not self.rows:
            return
        tokens = [sampled[request.id] for request in self.rows]
        for request, token, row_logits in zip(self.rows, tokens, self._cached.step(tokens), strict=True):
            request.logits = row_logits
            request.open.append(token)

    def clear(self) -> None:
        """Remove all rows."""
        self.rows = []
        self._cached.clear()
