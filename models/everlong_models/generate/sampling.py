"""Sampling: from logits to the next token, reproducibly.

Order of operations, as in vLLM and transformers: logit bias, penalties, grammar, temperature, top_k, top_p, min_p, sample.
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
from everlong_models.splitmix import GOLDEN, shift_right, splitmix64

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class SamplingParams(BaseModel):
    """The sampling parameters of a request. Values out of range are errors, never clipped.

    The defaults are those that the default model's authors recommend.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(512, ge=1, le=1_000_000, description="Maximum number of tokens to generate")
    temperature: float = Field(
        0.2, ge=0, le=2, allow_inf_nan=False, description="Sampling temperature; 0 always takes the likeliest token"
    )
    top_p: float = Field(
        0.9,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Sample from the smallest set of likeliest tokens with at least this total probability",
    )
    top_k: int = Field(0, ge=0, le=1_000_000, description="Sample from the k likeliest tokens only; 0 means all tokens")
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Sample only from tokens with at least this probability relative to the likeliest token",
    )
    repetition_penalty: float = Field(
        1.0,
        ge=0.01,
        le=10,
        allow_inf_nan=False,
        description="Divides positive logits of tokens in the context, and multiplies negative ones; 1 has no effect",
    )
    presence_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Subtracted from the logit of a token that was already generated",
    )
    frequency_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Subtracted from a token's logit for each time it was generated",
    )
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="Seed of the sampling; the same seed gives the same answer"
    )
    stop: tuple[StopString, ...] = Field(
        (), max_length=MAX_STOP_STRINGS, description="Strings that end the answer; they are not returned"
    )
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=MAX_STOP_STRINGS)
    ignore_eos: bool = Field(False, description="Continue after the end-of-text token")
    stop_repetition: bool = Field(
        True,
        description="End an answer that repeats itself over and over, and drop what it repeats: `finish_reason` is then "
        '"repetition". No effect with `ignore_eos` or `json_schema`',
    )
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=MAX_LOGIT_BIAS
    )
    json_schema: dict[str, Any] | None = Field(
        None, description="Constrain the answer to JSON that follows this schema"
    )
    logprobs: bool = Field(False, description="Return the log-probability of each token")
    top_logprobs: int = Field(
        0,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Number of likeliest alternatives whose log-probabilities are returned with each token",
    )

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else () if value is None else value


class Sampler:
    """Samples the tokens of one answer. Holds what sampling depends on besides the logits: the number of tokens so far, and which.

    `context`: token ids that repetition_penalty covers in addition to generated ones. `seed` is always set, so the same request on the
    same state gives the same tokens on any replica and after any restart. `grammar`: constrains the answer, or None.
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
            self._counts = torch.zeros(vocab_size, dtype=torch.float32)
        if params.repetition_penalty != 1:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool)
            self._seen[torch.tensor(context, dtype=torch.int64)] = True
        self._bias: tuple[Tensor, Tensor] | None = None
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), dtype=torch.int64)
            self._bias = ids, torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)

    @property
    def adjusts(self) -> bool:
        """Whether `adjust` does more than convert to float32."""
        return any(part is not None for part in (self._bias, self._seen, self._counts, self.grammar))

    def sample(self, logits: Tensor) -> int:
        """Sample the next token id from `logits` (V,), and record it."""
        (token,) = sample_tokens([self], self.adjust(logits)[None])
        self.accept(token)
        return token

    def adjust(self, logits: Tensor) -> Tensor:
        """Return `logits` (V,) in float32 with bias and penalties; −∞ for tokens that the grammar forbids."""
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
        """Record that `token` was sampled."""
        self.generated += 1
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True
        if self.grammar is not None:
            self.grammar.accept(token)


SampleFunction = Callable[..., tuple[Tensor, ...]]
"""A function like `sample_from_logits`."""


def sample_tokens(samplers: Sequence[Sampler], scores: Tensor, draw: SampleFunction | None = None) -> list[int]:
    """Sample a token id for each row of `scores` (B, V), which its sampler has adjusted.

    A row's token depends only on its scores and its sampler, not on the other rows. `draw`: replaces `sample_from_logits` on devices
    other than a CPU, for example by a captured CUDA graph.
    """
    if scores.device.type != "cpu":
        return sample_with_torch(samplers, scores, draw)
    parameters = [(p.temperature, p.top_k, p.top_p, p.min_p) for p in (s.params for s in samplers)]
    tokens, *_ = thread_pool.sample(scores, np.array(parameters), np.array([(s.seed, s.generated) for s in samplers]))
    return tokens[:, 0].tolist()


_LIKELIEST = (256, 4096)
"""How many of the likeliest tokens are sorted, in successive attempts. The first is usually enough: sorting a whole vocabulary takes
longer than a small model's decode step."""
ALL_TOKENS = 0
"""A size that means: no token is filtered out, so none has to be sorted."""


def sample_with_torch(samplers: Sequence[Sampler], scores: Tensor, draw: SampleFunction | None = None) -> list[int]:
    """Compute `sample_tokens` with PyTorch's operations, on any device, for scores without NaN.

    Waits for the device as rarely as possible: per attempt, one transfer there (parameters) and one back (tokens).
    """
    vocabulary, device, chosen = scores.shape[1], scores.device, [0] * len(samplers)
    waiting: dict[int, list[int]] = {
        size: [] for size in (ALL_TOKENS, *(n for n in _LIKELIEST if n < vocabulary), vocabulary)
    }
    few = list(waiting)[1]
    parameters = [
        (p.temperature, min(p.top_k or vocabulary, vocabulary), p.top_p, p.min_p) for p in (s.params for s in samplers)
    ]
    greedy = [row for row, (temperature, *_) in enumerate(parameters) if temperature == 0]
    if greedy:
        best = scores.argmax(-1).tolist()
        for row in greedy:
            chosen[row] = best[row]
    for row, (temperature, *rest) in enumerate(parameters):
        if temperature > 0:
            waiting[ALL_TOKENS if rest == [vocabulary, 1.0, 0.0] else few].append(row)
    draw = draw or sample_from_logits
    while waiting:
        size = next(iter(waiting))
        rows = waiting.pop(size)
        if not rows:
            continue
        numbers = torch.tensor([parameters[row] for row in rows], dtype=torch.float64, device=device)
        counters = torch.tensor([(samplers[row].seed, samplers[row].generated) for row in rows], device=device)
        selected = scores if len(rows) == len(scores) else scores[torch.tensor(rows, device=device)]
        results = torch.stack(draw(selected, numbers, counters, size=size)).tolist()
        for row, token, known in zip(rows, *results, strict=True):
            if known:
                chosen[row] = token
            else:
                waiting[next(iter(waiting))].append(row)
    return chosen


def sample_from_logits(scores: Tensor, numbers: Tensor, counters: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
    """Sample token ids (B,). Also returns a flag for each row: 0 if more than the `size` likeliest tokens must be examined, else 1.

    `numbers` (B, 4), float64: temperature, top_k, top_p, min_p. `counters` (B, 2): each row's seed, and the number of tokens that it has
    sampled. Does not wait for the device.
    """
    ids, probabilities, known = filter_tokens(scores, numbers, size)
    # Divide each probability by its own random number from Exp(1) and take the largest (an exponential race, the Gumbel-max trick).
    # Sampling from a cumulative sum is less stable: the last bits of any logit, which depend on the other rows of a batch, would move
    # the borders of all tokens, and so would a token at the edge of top_p.
    exponential = -torch.log1p(-uniform(counters[:, 0], counters[:, 1], ids))
    winner = (probabilities / exponential).argmax(-1, keepdim=True)
    return ids.gather(1, winner)[:, 0], known.long()


def filter_tokens(scores: Tensor, numbers: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Apply temperature, top_k, top_p and min_p to `scores` (B, V). The arguments are those of `sample_from_logits`.

    Returns token ids (B, K); their probabilities (B, K), not normalised, 0 for tokens that are filtered out; and flags (B,): whether it is
    certain that no other token remains.
    """
    vocabulary = scores.shape[1]
    temperature, top_k, top_p, min_p = numbers.split(1, dim=1)
    # Subtract the largest score first, so that a tiny temperature cannot overflow. Clamp temperatures that float32 rounds to 0.
    temperature = temperature.float().clamp(min=torch.finfo(torch.float32).tiny)
    p = torch.softmax((scores - scores.amax(-1, keepdim=True)) / temperature, dim=-1)
    if size == ALL_TOKENS:
        ids = torch.arange(vocabulary, device=scores.device).expand(len(scores), -1)
        return ids, p.double(), torch.ones_like(ids[:, 0], dtype=torch.bool)
    k = top_k.long()
    best, ids = p.topk(size)
    ids, order = ids.sort()  # ties: the first token, whatever order topk returns
    best, by_size = best.gather(1, order).double().sort(descending=True, stable=True)
    ids = ids.gather(1, by_size)
    # Keep tokens as likely as the k-th. (If k > size, `covered` is False and the row is sampled again.)
    stays = best >= best.gather(1, (k - 1).clamp(max=size - 1))
    whole = torch.where(k[:, 0] < vocabulary, (best * stays).sum(-1), p.sum(-1, dtype=torch.float64))[:, None]
    # Keep a token if those before it do not reach top_p. The likeliest always stays, even if top_p is nearly 0.
    before = best.cumsum(-1) - best
    stays &= (top_p == 1) | (before < top_p * whole)
    stays &= best >= min_p * best[:, :1]
    stays[:, 0] = True
    # No unexamined token can remain if the last examined one is dropped and less likely than the last kept one, and if all tokens
    # of top_k, of which top_p takes its share, were examined.
    last = best.gather(1, stays.sum(-1, keepdim=True) - 1)
    covered = (k <= size) | (k == vocabulary)
    known = (covered & ~stays[:, -1:] & (last > best[:, -1:]))[:, 0]
    return ids, best * stays, known | (size == vocabulary)


def uniform(seeds: Tensor, generated: Tensor, ids: Tensor) -> Tensor:
    """Return random numbers in ]0, 1[, float64 (b, K), for the tokens `ids` (b, K).

    `seeds` (b,): each row's seed; `generated` (b,): the number of tokens that it has sampled. A number is output id + 1 of SplitMix64,
    from a state mixed from both. So a token's number depends on these alone, and only the numbers that are needed are computed, on the
    device that needs them.
    """
    state = splitmix64(splitmix64(seeds) + generated * GOLDEN)
    bits = splitmix64(state[:, None] + (ids + 1) * GOLDEN)
    return (shift_right(bits, 12).double() + 0.5) * 2.0**-52


CallStart = Callable[[str], tuple[int, bool]]
"""Returns where a call of a tool begins, or may begin, in a text (its length if none can), and whether it certainly does."""


class StopStringFilter:
    """Removes stop strings from text that arrives in pieces, and never returns a part of one.

    The stop string that is complete first ends the text; of several, the longest. The result does not depend on how the text is split.
    From the first call on, nothing is a stop string: a line break in the marker of a call must not end it.
    """

    def __init__(self, stop: tuple[str, ...], call_start: CallStart | None = None) -> None:
        """`call_start`: None: the text has no calls."""
        self._stop = stop
        self._call_start = call_start
        self._in_call = False
        self._held = ""
        self.found = False
        self.matched: str | None = None
        """The stop string that ended the text."""

    def feed(self, text: str) -> str:
        """Return the text that cannot be part of a stop string. Once a stop string is complete, `found` is True and no text is returned."""
        if not self._stop or self._in_call or self.found:
            return "" if self.found else text
        self._held += text
        start, self._in_call = (len(self._held), False) if self._call_start is None else self._call_start(self._held)
        hits = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop, 0, start)) >= 0]
        if hits:
            end, at = min(hits)
            self.found, self.matched = True, self._held[at:end]
            shown, self._held = self._held[:at], ""
            return shown
        # If a call may begin at `start`, a stop string that begins before it may end after it.
        keep = 0 if self._in_call else len(self._held) - start + max(overlap(self._held[:start], s) for s in self._stop)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """Return the text held back, which turned out to be no stop string, or no call: it is then cut at its first stop string."""
        self._call_start = None
        shown = self.feed("")
        rest, self._held = self._held, ""
        return shown + rest


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
