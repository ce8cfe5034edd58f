"""Sampling: from logits to the next token, reproducibly.

Order of operations, as in vLLM and transformers: logit bias, penalties, grammar, temperature, top_k, top_p, min_p, draw.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from everlong_models.grammar import Grammar

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class SamplingParams(BaseModel):
    """What a request may say about how its answer is drawn. Values out of range are errors, never clipped.

    The defaults are those that the default model's authors recommend.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(512, ge=1, le=1_000_000, description="tokens to generate at most")
    temperature: float = Field(0.2, ge=0, le=2, allow_inf_nan=False, description="0 takes the likeliest token")
    top_p: float = Field(
        0.9, gt=0, le=1, allow_inf_nan=False, description="smallest set of tokens with this probability"
    )
    top_k: int = Field(0, ge=0, le=1_000_000, description="only the k likeliest tokens; 0 is all")
    min_p: float = Field(
        0.0, ge=0, le=1, allow_inf_nan=False, description="only tokens this likely against the likeliest"
    )
    repetition_penalty: float = Field(
        1.0, ge=0.01, le=10, allow_inf_nan=False, description="divides logits of tokens in context"
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, allow_inf_nan=False, description="subtracted once a token was generated"
    )
    frequency_penalty: float = Field(0.0, ge=-2, le=2, allow_inf_nan=False, description="subtracted for each time")
    seed: int | None = Field(None, ge=0, lt=2**63, description="same seed, same answer")
    stop: tuple[StopString, ...] = Field((), max_length=MAX_STOP_STRINGS, description="strings that end the answer")
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=MAX_STOP_STRINGS)
    ignore_eos: bool = Field(False, description="go on after the end-of-text token")
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=MAX_LOGIT_BIAS
    )
    json_schema: dict[str, Any] | None = Field(None, description="the answer is JSON of this schema, and nothing else")
    logprobs: bool = Field(False, description="return the log-probability of each token")
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS, description="and of the likeliest beside it")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else () if value is None else value


class Sampler:
    """Draws the tokens of one answer. Holds the random generator and the counts that penalties need.

    `context`: token ids that repetition_penalty looks at beside what is generated. `seed` is always given, so that the
    same request on the same state gives the same tokens on any replica and after any restart. `grammar`: what the answer
    may be, if that is not anything.
    """

    def __init__(
        self, params: SamplingParams, seed: int, context: list[int], vocab_size: int, grammar: Grammar | None = None
    ) -> None:
        self.params = params
        self.grammar = grammar
        self._generator = torch.Generator().manual_seed(seed)
        self._counts: Tensor | None = None
        self._seen: Tensor | None = None
        if params.presence_penalty or params.frequency_penalty:
            self._counts = torch.zeros(vocab_size)
        if params.repetition_penalty != 1:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool)
            self._seen[torch.tensor(context, dtype=torch.int64)] = True
        self._bias: tuple[Tensor, Tensor] | None = None
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), dtype=torch.int64)
            self._bias = ids, torch.tensor(list(params.logit_bias.values()))

    def draw(self, logits: Tensor) -> int:
        """The next token id from `logits` (V,)."""
        token = self._draw(self.adjust(logits))
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True
        if self.grammar is not None:
            self.grammar.take(token)
        return token

    def adjust(self, logits: Tensor) -> Tensor:
        """`logits` (V,) in float32 on the CPU, with bias and penalties; -∞ where the grammar allows no token."""
        params, scores = self.params, logits.detach().float().cpu()
        if self._bias is not None:
            scores = scores.index_add(0, *self._bias)
        if self._seen is not None:
            r = params.repetition_penalty
            scores = torch.where(self._seen, torch.where(scores > 0, scores / r, scores * r), scores)
        if self._counts is not None:
            scores = scores - params.frequency_penalty * self._counts - params.presence_penalty * (self._counts > 0)
        if self.grammar is not None:
            scores = scores.masked_fill(~self.grammar.allowed(), -torch.inf)
        return scores

    def _draw(self, scores: Tensor) -> int:
        if self.params.temperature == 0:
            return int(scores.argmax())
        probabilities = self.filter(scores)
        kept = probabilities.nonzero()[:, 0]
        # The likeliest after each is divided by a number of its own from Exp(1) (an exponential race, the Gumbel-max trick).
        # By a cumulative sum, the last bits of any logit, which depend on the rows beside it, would move the borders of
        # all tokens, and one that top_p lets in or out by a hair would move all places.
        uniform = torch.rand(len(probabilities), generator=self._generator, dtype=torch.float64)
        return int(kept[(probabilities[kept] / -torch.log1p(-uniform[kept])).argmax()])

    def filter(self, scores: Tensor) -> Tensor:
        """Probabilities (V,), not normalised, of what temperature, top_k, top_p and min_p leave of `scores` (V,)."""
        params = self.params
        # The largest score goes to 0 first, so that a tiny temperature cannot overflow; one that float32 does not know
        # would be 0.
        temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
        probabilities = torch.softmax((scores - scores.max()) / temperature, dim=0)
        if 0 < params.top_k < probabilities.numel():
            threshold = probabilities.topk(params.top_k).values[-1]
            probabilities = probabilities.where(probabilities >= threshold, 0.0)
        if params.top_p < 1:
            ordered, order = probabilities.sort(descending=True, stable=True)
            # A token stays if those before it do not reach top_p: the likeliest always does, also where float32 takes
            # top_p for 0.
            before = ordered.cumsum(0) - ordered
            dropped = order[1:][before[1:] >= params.top_p * ordered.sum()]
            probabilities = probabilities.index_fill(0, dropped, 0.0)
        if params.min_p > 0:
            probabilities = probabilities.where(probabilities >= params.min_p * probabilities.max(), 0.0)
        return probabilities


class StopStrings:
    """Finds stop strings in text that arrives in pieces, and never lets through a part of one.

    The stop string that is complete first ends the text, the longest of them if several are: that does not depend on
    the pieces in which the text arrives.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that is safe to show; ends before the first stop string, after which `found` is true and none comes."""
        if not self._stop or self.found:
            return "" if self.found else text
        self._held += text
        hits = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if hits:
            self.found = True
            shown, self._held = self._held[: min(hits)[1]], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stop)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
