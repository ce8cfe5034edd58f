"""`SelfConsistency`: answers a question several times, and takes the answer that the others agree with most.

A small model that reads well on the whole makes different mistakes each time, and repeats what is right (Wang et al. 2022, arXiv 2203.11171).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from everlong_models import SamplingParams
from everlong_server.engine.answering.evidence.templates import REFUSAL
from everlong_server.engine.answering.search.question import STOP_WORDS
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.priority import in_background
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.observability.metrics import Metrics, VoteOutcome
from everlong_server.store.tenants.quota import TokenCost

log = logging.getLogger(__name__)

SAMPLES = 8
"""Further answers. With 4, half of the gain is left (docs/research/lab-notes.md, "The same question several times")."""
_TEMPERATURE = 0.8
MOST_TOKENS = 48
"""Maximum number of tokens of an answer that is put to a vote. A longer answer is streamed."""
_SURE = -2.0
"""If the log-probabilities of the first answer's tokens sum to this or more, there is no vote: further answers would agree."""
_HIGHEST_TEMPERATURE = 0.2
"""Highest temperature of a request that is put to a vote. A higher one asks for varied answers."""
_MAX_SECONDS = 10.0
"""Seconds that the further answers may take. If the device is so busy, the first answer is taken."""
_PREFIX = 5
"""Words count as equal if their first five letters are equal, so that forms of one word match."""
_WORD = re.compile(r"\d[\d.,:/]*\d|\d|[^\W_]+")
_NEGATION = re.compile(r"n['’]t\b")
_ANSWERING = frozenset(("yes", "no", "not", "never", "none", "neither", "nor", "nobody", "nothing"))
"""Stop words that can be the whole difference between two answers."""


class SelfConsistency:
    """Answers the question of one turn."""

    def __init__(
        self,
        engine: Engine,
        question: str,
        make: Callable[[SamplingParams], AnswerRequest],
        begin: Callable[[AnswerRequest], None],
        cost: TokenCost,
        metrics: Metrics,
    ) -> None:
        """`make`: makes the request for an answer with other parameters. `begin`: called with each request before it starts, so that it can be
        cancelled. `cost`: counts the tokens that the device generates."""
        self._engine = engine
        self._question = question
        self._make = make
        self._begin = begin
        self._cost = cost
        self._metrics = metrics

    @staticmethod
    def applies(params: SamplingParams) -> bool:
        """Return whether the answer to a request with these parameters can be put to a vote."""
        return params.temperature <= _HIGHEST_TEMPERATURE and not params.logprobs and not params.ignore_eos

    async def answer(self, request: AnswerRequest) -> AsyncGenerator[TokenDelta | AnswerFinished, None]:
        """Yield what `Engine.answer` yields, without log-probabilities.

        A short answer is yielded in one piece, after the vote. The further answers have fixed seeds, so the same first answer gives the same result.
        """
        request.params = request.params.model_copy(update={"logprobs": True})
        held: list[TokenDelta] = []
        async with contextlib.aclosing(self._engine.answer(request)) as events:
            async for event in events:
                if isinstance(event, AnswerFinished):
                    chosen = await self._settled(request.params, event, held)
                    if held:
                        yield TokenDelta(chosen.text, [])
                    yield chosen
                    return
                held.append(event)
                if len(held) > MOST_TOKENS:
                    break
            yield TokenDelta("".join(delta.text for delta in held), [])
            async for event in events:
                yield TokenDelta(event.text, []) if isinstance(event, TokenDelta) else event

    async def _settled(
        self, params: SamplingParams, first: AnswerFinished, deltas: Sequence[TokenDelta]
    ) -> AnswerFinished:
        """Return the answer most similar to the others; `first` if it needs no vote, or if the device is too busy for one."""
        logprob = sum(entry["logprob"] for delta in deltas for entry in delta.logprobs)
        if first.reason != "stop" or first.text == REFUSAL or logprob >= _SURE or not self._has_room():
            return first
        try:
            async with asyncio.timeout(None if in_background() else _MAX_SECONDS) as limit:
                others = await self._others(params)
        except TimeoutError:
            if not limit.expired():
                raise
            self._metrics.record_vote("timeout")
            return first
        if not others:  # they were cancelled, or failed
            return first
        answers = [first, *others]
        best, agreement = most_agreed(self._question, [answer.text for answer in answers])
        outcome: VoteOutcome = "kept" if answers[best].text == first.text else "replaced"
        self._metrics.record_vote(outcome)
        return replace(first if outcome == "kept" else answers[best], agreement=agreement)

    def _has_room(self) -> bool:
        """Return whether the device can generate further answers without a long wait for this user or others."""
        engine = self._engine
        if engine.on_cpu:  # it computes one prompt in seconds, so the prompt of the further answers must be reused
            return engine.admitted == 1 and engine.model.memory.reuses_prompts
        return engine.admitted * (1 + SAMPLES) <= engine.max_streams

    async def _others(self, params: SamplingParams) -> list[AnswerFinished]:
        """Generate further answers, and return those that are complete."""
        longest = min(params.max_tokens, MOST_TOKENS)
        more = {"temperature": _TEMPERATURE, "top_p": 1.0, "top_k": 0, "max_tokens": longest, "logprobs": False}
        requests = [self._make(params.model_copy(update={**more, "seed": seed})) for seed in range(SAMPLES)]
        try:
            results = await asyncio.gather(*map(self._finished, requests), return_exceptions=True)
        finally:
            generated = sum(request.generated for request in requests)
            self._cost.tokens += generated
            self._metrics.tokens_voting.inc(generated)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, InterruptedError):
                log.warning("one answer of a vote failed and is left out: %r", error)
        return [one for one in results if isinstance(one, AnswerFinished) and one.reason == "stop"]

    async def _finished(self, request: AnswerRequest) -> AnswerFinished | None:
        request.auxiliary = True
        self._begin(request)
        async with contextlib.aclosing(self._engine.answer(request)) as events:
            async for event in events:
                if isinstance(event, AnswerFinished):
                    return event
        return None


def most_agreed(question: str, answers: Sequence[str]) -> tuple[int, float]:
    """Return the index of the answer most similar to all answers, and its mean similarity to the others, 0 to 1.

    If several answers are equally similar, the first one counts. The similarity of two answers is that of their sets of words (Dice coefficient),
    without stop words and words of the question, which say nothing new.
    """
    asked = _words(question)
    found = [own - asked or own for own in map(_words, answers)]  # an answer can consist of the question's words alone
    votes = [sum(_similarity(own, other) for other in found) for own in found]
    best = max(range(len(answers)), key=lambda number: (round(votes[number], 6), -number))
    return best, round((votes[best] - 1) / (len(answers) - 1), 3)


def _words(text: str) -> set[str]:
    found = _WORD.findall(_NEGATION.sub(" not", text.casefold()))
    return {
        word if word[0].isdigit() else word[:_PREFIX] for word in found if word in _ANSWERING or word not in STOP_WORDS
    }


def _similarity(one: set[str], other: set[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0
