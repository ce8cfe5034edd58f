"""`Detokeniser`: turns an answer's tokens into text and stops at a stop string. `logprobs`: a token's log-probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everlong_models.generate.sampling import StopStringFilter
from everlong_models.text.tokenizer import Tokenizer


class Detokeniser:
    """The text of one answer, extended token by token."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._stream = tokenizer.text_stream()
        self._stop = StopStringFilter(stop)
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All text so far, without the stop string that ended it."""
        return "".join(self._parts)

    @property
    def stopped(self) -> bool:
        """Whether the text has reached a stop string."""
        return self._stop.found

    def feed(self, token: int) -> str:
        """Add `token` and return the new text. Holds back incomplete characters and possible beginnings of a stop string."""
        return self._append(self._stop.feed(self._stream.feed(token)))

    def finish(self) -> str:
        """End the text and return what was held back."""
        if self.stopped:
            return ""
        rest = self._stop.feed(self._stream.finish())
        return self._append(rest + ("" if self.stopped else self._stop.finish()))

    def _append(self, text: str) -> str:
        self._parts.append(text)
        return text


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
