"""`SelfConsistency`: answers a question several times, and takes the answer that the others agree with most.

A small model that reads well on the whole makes different mistakes each time, and repeats what is right (Wang et al. 2022, arXiv 2203.11171).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Sequence

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
"""Tokens of an answer to a fact, at most. A longer answer is streamed as it is."""
_SURE = -2.0
"""Sum of the log-probabilities of the answer's tokens from which it is taken at once: the others would agree."""
_HIGHEST_TEMPERATURE = 0.2
"""Temperature of the request up to which it asks for the likeliest answer, and not for any."""
_MAX_SECONDS = 10.0
"""Seconds that the further answers may take. If the device is so busy, the first answer is taken."""
_PREFIX = 5
"""Letters that two forms of one word have in common."""
_WORD = re.compile(r"[^\W_]+")


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
        """Return whether a request with these parameters asks for the likeliest answer, and for nothing that one answer alone has."""
        return params.temperature <= _HIGHEST_TEMPERATURE and not params.logprobs and not params.ignore_eos

    async def answer(self, request: AnswerRequest) -> AsyncGenerator[TokenDelta | AnswerFinished, None]:
        """Yield what `Engine.answer` yields, without log-probabilities.

        A short answer comes in one piece, when it is certain that it is the answer. Its seeds are fixed: the same first answer gives the same result.
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
        """Return the answer that most others agree with; `first`, if it is sure, or if others cannot be had now."""
        logprob = sum(entry["logprob"] for delta in deltas for entry in delta.logprobs)
        # On a CPU, the further answers would take time from other people's.
        crowded = self._engine.on_cpu and self._engine.admitted > 1
        if first.reason != "stop" or first.text == REFUSAL or logprob >= _SURE or crowded:
            return first
        try:
            async with asyncio.timeout(None if in_background() else _MAX_SECONDS) as limit:
                others = await self._others(params)
        except TimeoutError:
            if not limit.expired():
                raise
            self._metrics.record_vote("timeout")
            return first
        answers = [first, *others]
        chosen = answers[most_agreed(self._question, [answer.text for answer in answers])]
        outcome: VoteOutcome = "kept" if chosen.text == first.text else "replaced"
        self._metrics.record_vote(outcome)
        return first if outcome == "kept" else chosen

    async def _others(self, params: SamplingParams) -> list[AnswerFinished]:
        """Return the complete ones of further answers."""
        more = {"temperature": _TEMPERATURE, "top_p": 1.0, "max_tokens": MOST_TOKENS, "logprobs": False}
        requests = [self._make(params.model_copy(update={**more, "seed": seed})) for seed in range(SAMPLES)]
        try:
            results = await asyncio.gather(*map(self._finished, requests), return_exceptions=True)
        finally:
            generated = sum(request.generated for request in requests)
            self._cost.tokens += generated
            self._metrics.tokens_voting.inc(generated)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, InterruptedError):
                log.warning("a further answer failed, and the vote does without it: %r", error)
        return [one for one in results if isinstance(one, AnswerFinished) and one.reason == "stop"]

    async def _finished(self, request: AnswerRequest) -> AnswerFinished | None:
        request.auxiliary = True
        self._begin(request)
        async with contextlib.aclosing(self._engine.answer(request)) as events:
            async for event in events:
                if isinstance(event, AnswerFinished):
                    return event
        return None


def most_agreed(question: str, answers: Sequence[str]) -> int:
    """Return the number of the answer that is most similar to all of them together; of equal ones, the first.

    Two answers are as similar as their sets of words (Dice coefficient), without stop words and those of the question, which say nothing new.
    """
    asked = _words(question)
    found = [_words(answer) - asked for answer in answers]
    votes = [sum(_similarity(own, other) for other in found) for own in found]
    return max(range(len(answers)), key=lambda number: (round(votes[number], 6), -number))


def _words(text: str) -> set[str]:
    return {word[:_PREFIX] for word in _WORD.findall(text.casefold()) if word not in STOP_WORDS}


def _similarity(one: set[str], other: set[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0
