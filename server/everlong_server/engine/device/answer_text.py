"""`AnswerText`: turns an answer's tokens into text, ends it at a stop string, and holds back what may become a loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from everlong_models import SamplingParams
from everlong_models.generate.repetition import RepetitionDetector
from everlong_models.generate.sampling import CallStart, StopStringFilter
from everlong_models.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """A generated token: the text that it completes (often empty), and its log-probabilities if they were requested."""

    text: str
    logprobs: list[dict[str, Any]]


class AnswerText:
    """The text of one answer, extended token by token.

    A token that repeats earlier ones is held back until the repetition ends, since a loop is cut where it begins, and the
    client must not see text that the answer does not keep. Ordinary text repeats a few tokens at a time.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        may_loop: bool,
        before: Sequence[int] = (),
        call_start: CallStart | None = None,
    ) -> None:
        """`may_loop`: whether loops are kept in the text. `before`: tokens of the text that it continues. `call_start`: finds calls, in which
        stop strings have no effect."""
        self._tokenizer = tokenizer
        self._params = params
        self._stream = tokenizer.text_stream()
        for token in before:  # their text is known, but a space or a character may begin in them
            self._stream.feed(token)
        self._stop = StopStringFilter(params.stop, call_start)
        self._repetition = None if may_loop else RepetitionDetector()
        self._held: deque[TokenDelta] = deque()
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All text that was returned so far, without the stop string that ended it."""
        return "".join(self._parts)

    @property
    def stopped(self) -> bool:
        """Whether the text has reached a stop string."""
        return self._stop.found

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; None if none did."""
        return self._stop.matched

    @property
    def looping(self) -> bool:
        """Whether the held tokens are a loop."""
        return self._repetition is not None and self._repetition.looping

    @property
    def held(self) -> int:
        """Number of tokens at the end that are held back."""
        return len(self._held)

    def feed(self, token: int, logits: Tensor) -> list[TokenDelta]:
        """Add `token`, sampled from `logits` (V,), and return the tokens that are not held back any more.

        Of a returned token, incomplete characters and possible beginnings of a stop string come with later ones.
        """
        text = self._stop.feed(self._stream.feed(token))
        top = self._params.top_logprobs
        more = [logprobs(self._tokenizer, logits, token, top)] if self._params.logprobs else []
        self._held.append(TokenDelta(text, more))
        if self._repetition is None:
            return self._release(0)
        self._repetition.feed(token)
        return self._release(self._repetition.repeated)

    def finish(self) -> list[TokenDelta]:
        """End the text and return what was held back."""
        if not self.stopped:
            rest = self._stop.feed(self._stream.finish())
            rest += "" if self.stopped else self._stop.finish()
            self._held.extend([TokenDelta(rest, [])] if rest else [])
        return self._release(0)

    def drop_held(self) -> int:
        """Drop the tokens that are held back, and return their number."""
        count = len(self._held)
        self._held.clear()
        return count

    def _release(self, keep: int) -> list[TokenDelta]:
        """Return all held tokens but the last `keep`."""
        deltas = [self._held.popleft() for _ in range(len(self._held) - keep)]
        self._parts += [delta.text for delta in deltas]
        return deltas


def logprobs(tokenizer: Tokenizer, logits: Tensor, token: int, top: int) -> dict[str, Any]:
    """Return the log-probability of `token` and the `top` most likely tokens with theirs.

    `logits` (V,): the model's own, before sampling parameters change them.
    """
    log_probabilities = torch.log_softmax(logits.float(), dim=-1)

    def entry(token_id: int) -> dict[str, Any]:
        return {
            "token": tokenizer.token(token_id), "id": token_id, "logprob": float(log_probabilities[token_id]),
            "bytes": list(tokenizer.token_bytes(token_id)),
        }  # fmt: skip

    likeliest = torch.topk(log_probabilities, top).indices.tolist() if top else []
    return entry(token) | {"top_logprobs": [entry(other) for other in likeliest]}
