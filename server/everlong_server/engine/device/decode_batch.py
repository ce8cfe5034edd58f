"""`DecodeBatch`: the answers that are being decoded, one row of a shared KV cache each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from everlong_server.engine.device.decode_rows import DecodeRows
from everlong_server.engine.device.drafting import Drafting
from everlong_server.engine.device.requests import AnswerRequest


class DecodeBatch:
    """Answers in row order. A row caches the answer's open segment; all earlier tokens are in the answer's state."""

    def __init__(self, cached: DecodeRows, drafting: Drafting | None = None) -> None:
        """`cached`: the rows of the KV cache, which this object alone changes. `drafting`: None guesses no tokens, and so does a memory
        that cannot rewind."""
        self._cached = cached
        self._drafting = drafting if cached.can_rewind else None
        self._width = 1
        """Positions of each row in the last step."""
        self.rows: list[AnswerRequest] = []

    def add(self, request: AnswerRequest) -> None:
        """Prefill the answer's open segment (1 … S tokens) into a new row, and set the logits of the next token.

        If the evidence in its prompt lacks the answer, the tokens of its refusal come next.
        """
        tokens = request.open[request.hidden_open :]
        request.logits = self._cached.open(
            request.state, tokens, request.visible_kept, request.attended_before is None, request.owner
        )
        self.rows.append(request)  # first: whatever fails after this removes the row, too
        request.ahead.clear()
        refusal, request.refusal = request.refusal, None
        if refusal is not None and not refusal.probe.holds_answer(self._cached.last_values(refusal.probe.layer)):
            request.forced.extend(refusal.tokens)
        if self._drafting is not None:
            self._drafting.begin(request)

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
        """Run one decode step for all rows. `sampled`: the new token of each answer, by the answer's id.

        The step may also decode guesses of the tokens that follow: see `AnswerRequest.take_guess`. After them, call `rewind`.
        """
        if not self.rows:
            return
        if self._drafting is not None:
            room = self._cached.segment_length - max(len(request.open) for request in self.rows)
            self._width = self._drafting.width(self.rows, room)
        guesses = [request.lookup.guesses(self._width - 1) if request.lookup else [] for request in self.rows]
        tokens = [
            [sampled[request.id], *(guessed or [0] * (self._width - 1))]
            for request, guessed in zip(self.rows, guesses, strict=True)
        ]
        logits = self._cached.step(tokens)
        for request, (token, *_), guessed, row_logits in zip(self.rows, tokens, guesses, logits, strict=True):
            request.logits = row_logits[0]
            request.open.append(token)
            request.drafted += len(guessed)
            request.ahead = deque(zip(guessed, row_logits[1:], strict=False))

    def rewind(self) -> None:
        """Take the guesses that were wrong out of the cache."""
        if self._width > 1 and self.rows:
            self._cached.rewind([len(request.open) - request.hidden_open for request in self.rows])
        self._width = 1

    def clear(self) -> None:
        """Remove all rows."""
        self.rows = []
        self._cached.clear()
