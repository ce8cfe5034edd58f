"""`QueryRewriter`: rewrites a question that refers to the conversation, so that it can be searched for, and understood, without it.

The model itself rewrites it: conversational question reformulation (Lin et al. 2020, arXiv 2004.01909), here with examples in the prompt
instead of training.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from everlong_models import SamplingParams
from everlong_server.engine.answering.search.faithful import is_faithful
from everlong_server.engine.answering.search.question import search_query
from everlong_server.engine.answering.turn_context import Exchange
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.priority import in_background
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.observability.metrics import Metrics, RewritingOutcome
from everlong_server.store.search.query import Query
from everlong_server.store.search.terms import words
from everlong_server.store.tenants.quota import TokenCost

_INSTRUCTION = "Write each follow-up as a full question that can be understood alone."
_EXAMPLES = (
    (
        (Exchange("Who is the teacher of the village?", "The teacher is Anna Berg."),),
        "Where did she live before?",
        "Where did Anna Berg, the teacher of the village, live before?",
    ),
    (
        (Exchange("How many ships sailed in May?", "Three ships sailed in May."),),
        "And in June?",
        "How many ships sailed in June?",
    ),
    (
        (
            Exchange("What did the doctor tell Mr. Hill?", "The doctor told Mr. Hill that he should rest."),
            Exchange("For how long?", "For two weeks."),
        ),
        "why",
        "Why did the doctor tell Mr. Hill that he should rest for two weeks?",
    ),
)
_MAX_TOKENS = 48
"""Tokens of a rewritten question, at most. A longer one is not used, and a message that is longer itself is not rewritten."""
_MAX_SECONDS = 30.0
"""Seconds that a rewriting may take. If the device is so busy, the search does without: a stream sends nothing before its first event.
In the background, nobody waits for the stream."""
_SHOWN = 240
"""Characters of each earlier question and answer that the model sees, at most."""
_MAX_CHARS = 300
"""Characters of a question that can be rewritten, at most. A longer one has words enough to search for."""


class QueryRewriter:
    """Rewrites the question of one turn, greedily: the same conversation gives the same question."""

    def __init__(
        self, engine: Engine, tenant: str, metrics: Metrics, cost: TokenCost,
        begin: Callable[[AnswerRequest], None] = lambda request: None,
    ) -> None:  # fmt: skip
        """`tenant`: the tenant that the question is rewritten for. `cost`: counts the tokens that the device computes. `begin`: called with the
        request to the engine before it starts, so that it can be cancelled."""
        self._engine = engine
        self._tenant = tenant
        self._metrics = metrics
        self._cost = cost
        self._begin = begin

    async def standalone(self, question: str, exchanges: Sequence[Exchange]) -> tuple[str, Query] | None:
        """Return the question, rewritten so that it can be understood without `exchanges` (newest last), and its query.

        None if the question is too long, if the request was cancelled, or if the result is no good: it is not complete, it says the
        same as `question` or an earlier question, it asks nothing, or it is not faithful to `question`.
        """
        if len(question) > _MAX_CHARS:
            return None
        prompt = await asyncio.to_thread(self._prompt, question, exchanges)
        if prompt is None:
            return None
        try:
            async with asyncio.timeout(None if in_background() else _MAX_SECONDS) as limit:
                finished = await self._generate(prompt)
        except TimeoutError:
            if not limit.expired():
                raise
            self._metrics.record_rewriting("timeout")
            return None
        except InterruptedError:  # cancelled before the prompt was prefilled
            return None
        if finished is None or finished.reason == "cancelled":
            return None
        outcome, found = await asyncio.to_thread(_judge, finished, question, exchanges)
        self._metrics.record_rewriting(outcome)
        return found

    async def _generate(self, prompt: list[int]) -> AnswerFinished | None:
        """Return what the model makes of the prompt."""
        params = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS, stop=["\n"])
        state = self._engine.model.memory.initial_state(1)
        request = AnswerRequest(state, [], prompt, params, 0, owner=self._tenant, auxiliary=True)
        self._begin(request)
        try:
            async with contextlib.aclosing(self._engine.answer(request)) as events:
                async for event in events:
                    if isinstance(event, AnswerFinished):
                        return event
        finally:
            self._cost.tokens += request.computed_tokens
            self._metrics.tokens_rewriting.inc(request.computed_tokens)
        return None

    def _prompt(self, question: str, exchanges: Sequence[Exchange]) -> list[int] | None:
        """Return the tokens of the prompt; None if the question has more than `_MAX_TOKENS`.

        Its instruction and its examples are always the same, so the engine can reuse their keys and values.
        """
        chat, encode = self._engine.model.chat, self._engine.model.tokenizer.encode
        if len(encode(question)) > _MAX_TOKENS:
            return None
        before, after = chat.system or (chat.head, chat.separator)
        tokens = [*before, *encode(_INSTRUCTION), *after]
        for earlier, follow_up, standalone in _EXAMPLES:
            tokens += [*encode(_shown(earlier, follow_up)), *chat.ask, *encode(standalone), *chat.turn]
        return [*tokens, *encode(_shown(exchanges, question)), *chat.ask]


def _judge(
    finished: AnswerFinished, question: str, exchanges: Sequence[Exchange]
) -> tuple[RewritingOutcome, tuple[str, Query] | None]:
    """Return whether what the model wrote can take the place of `question`; if so, with its query."""
    rewritten = finished.text.strip()
    # A question that comes back as it was stands alone already, or the model does not see what it refers to.
    if _same_words(rewritten, question):
        return "unchanged", None
    # Small models sometimes repeat an earlier question, which would be answered once more instead of this one.
    repeats = any(_same_words(rewritten, exchange.question) for exchange in exchanges)
    if finished.reason != "stop" or repeats or not is_faithful(rewritten, question):
        return "rejected", None
    query = search_query(rewritten, None)
    return ("rewritten", (rewritten, query)) if query is not None and query.asks else ("rejected", None)


def _shown(exchanges: Sequence[Exchange], follow_up: str) -> str:
    lines = []
    for exchange in exchanges:
        asked, answered = _one_line(exchange.question)[-_SHOWN:], _one_line(exchange.answer)[:_SHOWN]
        lines += [f"Question: {asked}", *([f"Answer: {answered}"] if answered else [])]
    return "\n".join([*lines, f"Follow-up: {_one_line(follow_up)}"])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _same_words(one: str, other: str) -> bool:
    return [*map(str.casefold, words(one))] == [*map(str.casefold, words(other))]
