"""Sampling: from logits to the next token, reproducibly.

Order of operations, as in vLLM and transformers: logit bias, penalties, grammar, temperature, top_k, top_p, min_p, draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from everlong_models.generate.grammar import Grammar
from everlong_models.kernels.cpu import thread_pool

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
    """Draws the tokens of one answer. Holds what that depends on beside the logits: how many were drawn, and which.

    `context`: token ids that repetition_penalty looks at beside what is generated. `seed` is always given, so that the
    same request on the same state gives the same tokens on any replica and after any restart. `grammar`: what the answer
    may be, if that is not anything.
    """

    def __init__(
        self, params: SamplingParams, seed: int, context: list[int], vocab_size: int, grammar: Grammar | None = None
    ) -> None:
        self.params = params
        self.seed = seed
        self.generated = 0
        self.grammar = grammar
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

    @property
    def adjusts(self) -> bool:
        """Whether `adjust` does anything but to make it float32."""
        return any(part is not None for part in (self._bias, self._seen, self._counts, self.grammar))

    def sample(self, logits: Tensor) -> int:
        """The next token id from `logits` (V,)."""
        (token,) = sample_tokens([self], self.adjust(logits)[None])
        self.accept(token)
        return token

    def adjust(self, logits: Tensor) -> Tensor:
        """`logits` (V,) in float32 with bias and penalties; -∞ where the grammar allows no token."""
        params, scores = self.params, logits.detach().float()
        if self._bias is not None:
            ids, bias = self._bias
            scores = scores.index_add(0, ids.to(scores.device), bias.to(scores.device))
        if self._seen is not None:
            self._seen = self._seen.to(scores.device)
            r = params.repetition_penalty
            scores = torch.where(self._seen, torch.where(scores > 0, scores / r, scores * r), scores)
        if self._counts is not None:
            self._counts = self._counts.to(scores.device)
            scores = scores - params.frequency_penalty * self._counts - params.presence_penalty * (self._counts > 0)
        if self.grammar is not None:
            scores = scores.masked_fill(~self.grammar.allowed_tokens().to(scores.device), -torch.inf)
        return scores

    def accept(self, token: int) -> None:
        """`token` was drawn."""
        self.generated += 1
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True
        if self.grammar is not None:
            self.grammar.accept(token)


SampleFunction = Callable[..., tuple[Tensor, ...]]
"""As `drawn`."""


def sample_tokens(samplers: Sequence[Sampler], scores: Tensor, draw: SampleFunction | None = None) -> list[int]:
    """A token id for each row of `scores` (B, V), which its sampler has adjusted.

    A row's token depends on nothing but its scores and its sampler: not on the rows beside it. `draw`: a recording of `drawn`, which
    computes it elsewhere than on a CPU.
    """
    if scores.device.type != "cpu":
        return sample_with_torch(samplers, scores, draw)
    how = [(p.temperature, p.top_k, p.top_p, p.min_p) for p in (s.params for s in samplers)]
    found, *_ = thread_pool.sample(scores, np.array(how), np.array([(s.seed, s.generated) for s in samplers]))
    return found[:, 0].tolist()


_LIKELIEST = (256, 4096)
"""So many tokens are looked at first: they are mostly enough, and putting a whole vocabulary in order takes longer than a small
model's step."""
ALL_TOKENS = 0
"""In their place: no token is left out, and none has to be put in order."""


def sample_with_torch(samplers: Sequence[Sampler], scores: Tensor, draw: SampleFunction | None = None) -> list[int]:
    """The same of scores that are numbers, by PyTorch's operations, on any device. It is waited for as seldom as can be: what tells
    how to draw goes there at once, and what was drawn comes back at once."""
    vocabulary, device, chosen = scores.shape[1], scores.device, [0] * len(samplers)
    waiting: dict[int, list[int]] = {
        size: [] for size in (ALL_TOKENS, *(n for n in _LIKELIEST if n < vocabulary), vocabulary)
    }
    few = list(waiting)[1]
    how = [
        (p.temperature, min(p.top_k or vocabulary, vocabulary), p.top_p, p.min_p) for p in (s.params for s in samplers)
    ]
    greedy = [row for row, (temperature, *_) in enumerate(how) if temperature == 0]
    if greedy:
        best = scores.argmax(-1).tolist()
        for row in greedy:
            chosen[row] = best[row]
    for row, (temperature, *rest) in enumerate(how):
        if temperature > 0:
            waiting[ALL_TOKENS if rest == [vocabulary, 1.0, 0.0] else few].append(row)
    draw = draw or sample_from_logits
    while waiting:
        size = next(iter(waiting))
        rows = waiting.pop(size)
        if not rows:
            continue
        numbers = torch.tensor([how[row] for row in rows], dtype=torch.float64, device=device)
        counters = torch.tensor([(samplers[row].seed, samplers[row].generated) for row in rows], device=device)
        some = scores if len(rows) == len(scores) else scores[torch.tensor(rows, device=device)]
        found = torch.stack(draw(some, numbers, counters, size=size)).tolist()
        for row, token, known in zip(rows, *found, strict=True):
            if known:
                chosen[row] = token
            else:
                waiting[next(iter(waiting))].append(row)
    return chosen


def sample_from_logits(scores: Tensor, numbers: Tensor, counters: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
    """Token ids (B,) by chance, and (B,) of each 1, or 0 if more than the `size` likeliest have to be looked at.

    `numbers` (B, 4) in float64: temperature, top_k, top_p, min_p; `counters` (B, 2): each row's seed, and how many it has drawn. Nothing
    waits for the device.
    """
    ids, probabilities, known = filter_tokens(scores, numbers, size)
    # The likeliest after each is divided by a number of its own from Exp(1) (an exponential race, the Gumbel-max trick).
    # By a cumulative sum, the last bits of any logit, which depend on the rows beside it, would move the borders of
    # all tokens, and one that top_p lets in or out by a hair would move all places.
    exponential = -torch.log1p(-uniform(counters[:, 0], counters[:, 1], ids))
    winner = (probabilities / exponential).argmax(-1, keepdim=True)
    return ids.gather(1, winner)[:, 0], known.long()


def filter_tokens(scores: Tensor, numbers: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """What temperature, top_k, top_p and min_p leave of `scores` (B, V); arguments as of `drawn`.

    Token ids (B, K) and their probabilities (B, K), not normalised, 0 for those that are left out; and whether it is known (B,) that
    nothing else is left.
    """
    vocabulary = scores.shape[1]
    temperature, top_k, top_p, min_p = numbers.split(1, dim=1)
    # The largest score goes to 0 first, so that a tiny temperature cannot overflow; one that float32 does not know
    # would be 0.
    temperature = temperature.float().clamp(min=torch.finfo(torch.float32).tiny)
    p = torch.softmax((scores - scores.amax(-1, keepdim=True)) / temperature, dim=-1)
    if size == ALL_TOKENS:
        ids = torch.arange(vocabulary, device=scores.device).expand(len(scores), -1)
        return ids, p.double(), torch.ones_like(ids[:, 0], dtype=torch.bool)
    k = top_k.long()
    best, ids = p.topk(size)
    ids, order = ids.sort()  # of equals the first, whatever order topk has given them
    best, by_size = best.gather(1, order).double().sort(descending=True, stable=True)
    ids = ids.gather(1, by_size)
    # As likely as the k-th. (Where k is more than is looked at, the row is looked at again: see `seen`.)
    stays = best >= best.gather(1, (k - 1).clamp(max=size - 1))
    whole = torch.where(k[:, 0] < vocabulary, (best * stays).sum(-1), p.sum(-1, dtype=torch.float64))[:, None]
    # A token stays if those before it do not reach top_p: the likeliest always does, also where top_p is as good as 0.
    before = best.cumsum(-1) - best
    stays &= (top_p == 1) | (before < top_p * whole)
    stays &= best >= min_p * best[:, :1]
    stays[:, 0] = True
    # Nothing that was not looked at could stay: the least of the looked at does not, nor does what is as likely. And
    # what top_k leaves, of which top_p takes its share, was looked at as a whole.
    last = best.gather(1, stays.sum(-1, keepdim=True) - 1)
    seen = (k <= size) | (k == vocabulary)
    known = (seen & ~stays[:, -1:] & (last > best[:, -1:]))[:, 0]
    return ids, best * stays, known | (size == vocabulary)


def uniform(seeds: Tensor, drawn: Tensor, ids: Tensor) -> Tensor:
    """Numbers in ]0, 1[ (b, K) in float64 for the tokens `ids` (b, K), of generators with `seeds` (b,) that have `drawn`
    (b,) tokens: output id + 1 of SplitMix64 (Steele, Lea, Flood 2014) from a state that is mixed from both. So a token's
    number follows from these alone, and only those that are wanted are computed, where they are wanted."""
    state = _mixed(_mixed(seeds) + drawn * _GOLDEN)
    bits = _mixed(state[:, None] + (ids + 1) * _GOLDEN)
    return (_shifted(bits, 12).double() + 0.5) * 2.0**-52


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser of 64 bits, which int64 holds as they are; its products wrap."""
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> by) & ((1 << (64 - by)) - 1)


_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15


class StopStringFilter:
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
