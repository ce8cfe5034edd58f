"""A teacher: a model that answers from the right passage alone, so that another learns to find in many what it finds there.

Context distillation (Snell et al. 2022; Hinton et al. 2015): the reference answers stay half of each target, the other half is what the teacher
thinks likely at each of their tokens, behind the prompt that is easy to read. What nobody could guess, how a person happened to word an
answer, weighs less then, and what is left to learn is where to look.
"""

from __future__ import annotations

import torch

from everlong_models.errors import TokenError
from everlong_models.memory import MemoryModel
from everlong_models.tasks.exchange import Exchange
from everlong_models.tokenizer import Tokenizer

_DIGITS = 4


class Teacher:
    """`top`: so many of the likeliest tokens are kept of each place; what the others have is the answer's own token's."""

    def __init__(self, model: MemoryModel, tokenizer: Tokenizer, top: int = 8) -> None:
        self._model, self._exchange, self._top = model, Exchange(tokenizer), top

    @torch.inference_mode()
    def likely(self, prompt: str, answer: str) -> dict[str, list[list[float]]]:
        """At each token of `answer` and at its end, behind `prompt`: `ids`, the likeliest first, and their `shares`, as files of prompts have
        them. Raises `TokenError` for more tokens than the model sees whole."""
        exchange, model = self._exchange, self._model
        given = exchange.answer(answer)
        ids = [*exchange.head(), *exchange.question(prompt, document=False), *given]
        if len(ids) > model.one_pass:
            raise TokenError(
                f"the teacher sees {model.one_pass} tokens whole, the prompt with its answer has {len(ids)}"
            )
        device = next(iter(model.initial_state(1).tensors.values())).device
        at = torch.arange(len(ids) - len(given) - 1, len(ids) - 1, device=device)
        logits = model.logits_at(torch.tensor([ids], device=device), torch.zeros_like(at), at)
        found = logits.float().softmax(-1).topk(self._top)
        shares = [[round(share, _DIGITS) for share in row] for row in found.values.tolist()]
        return {"ids": found.indices.tolist(), "shares": shares}
