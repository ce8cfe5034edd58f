"""`Detokeniser`: what an answer says, out of its tokens, up to a stop string; and how likely each token was."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everlong_models.generate.sampling import StopStrings
from everlong_models.text.tokenizer import Tokenizer


class Detokeniser:
    """Text that grows by a token at a time."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._stream = tokenizer.text_stream()
        self._stop = StopStrings(stop)
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All that was said so far, without the stop string that ended it."""
        return "".join(self._parts)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stop.found

    def feed(self, token: int) -> str:
        """What can be said with `token`: none of half a character, and nothing that may become a stop string."""
        return self._append(self._stop.feed(self._stream.feed(token)))

    def finish(self) -> str:
        """What was held back and is said at the end."""
        if self.stopped:
            return ""
        rest = self._stop.feed(self._stream.finish())
        return self._append(rest + ("" if self.stopped else self._stop.finish()))

    def _append(self, text: str) -> str:
        self._parts.append(text)
        return text


def logprobs(tokenizer: Tokenizer, logits: Tensor, token: int, top: int) -> dict[str, Any]:
    """Of `token` and the `top` likeliest, by the model's own `logits` (V,), before sampling changes them."""
    found = torch.log_softmax(logits.float(), dim=-1)

    def entry(token_id: int) -> dict[str, Any]:
        return {
            "token": tokenizer.token(token_id), "id": token_id, "logprob": float(found[token_id]),
            "bytes": list(tokenizer.token_bytes(token_id)),
        }  # fmt: skip

    others = torch.topk(found, top).indices.tolist() if top else []
    return entry(token) | {"top_logprobs": [entry(other) for other in others]}
