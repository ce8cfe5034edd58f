"""`Completions`: continues texts without a chat format, and tells how likely their tokens are."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from everlong_models import SamplingParams
from everlong_server.engine.admission import admitted
from everlong_server.engine.answering.grammar_errors import naming_field
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.errors import InvalidRequest
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.tenants.quota import Quota


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The log-probabilities of the prompt's tokens but the first; empty if they were not requested. The first event."""

    logprobs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CompletionFinished:
    """The end of a completion. `reason`: stop, length or repetition. `tokens`: number of generated tokens. The last event."""

    reason: str
    tokens: int


CompletionEvent = PromptScored | TokenDelta | CompletionFinished


class Completions:
    """Continues texts. Nothing is stored."""

    def __init__(self, engine: Engine, quota: Quota, metrics: Metrics, tracing: Tracing) -> None:
        self._engine = engine
        self._quota = quota
        self._metrics = metrics
        self._tracing = tracing

    def require_tokens(self, tokens: Sequence[int], name: str) -> None:
        """Raise `InvalidRequest`, naming the field `name`, unless `tokens` are at least one id of the vocabulary."""
        vocabulary = self._engine.model.memory.vocab_size
        if not tokens:
            raise InvalidRequest(f"{name} is empty; a completion needs at least one token to follow", param=name)
        wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise InvalidRequest(
                f"{name}: token id {wrong} is not in the vocabulary, 0 to {vocabulary - 1}", param=name
            )

    async def complete(
        self, tokens: list[int], params: SamplingParams, *, generate: bool, score: int | None
    ) -> AsyncGenerator[CompletionEvent, None]:
        """Yield the events of the completion of `tokens`. Raises every refusal before the first.

        `generate`: False only scores the prompt. `score`: number of likeliest tokens with each score of the prompt; None: no scores.
        """
        pace = self._metrics.answer_timer()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._tracing.span("complete", gen_ai__request__model=self._engine.model.name))
            cost = await stack.enter_async_context(admitted(self._engine, self._quota))
            stack.enter_context(naming_field("json_schema"))
            grammar = None if params.json_schema is None else await self._engine.grammar(params.json_schema)
            scored: list[dict[str, Any]] = []
            if score is not None:
                cost.tokens = len(tokens)
                scored = await self._engine.score(tokens, score, self._quota.tenant)
            yield PromptScored(scored)
            if not generate:
                yield CompletionFinished("length", 0)
                return
            seed = params.seed if params.seed is not None else secrets.randbits(53)
            state = self._engine.model.memory.initial_state(1)
            request = AnswerRequest(state, [], tokens, params, seed, grammar=grammar, owner=self._quota.tenant)
            try:
                async with contextlib.aclosing(self._engine.answer(request)) as events:
                    async for event in events:
                        if isinstance(event, AnswerFinished):
                            self._metrics.record_answer(
                                event.reason, prompt=event.prompt, generated=event.tokens, reused=0, drafted=event.drafted,
                                accepted=event.accepted,
                            )  # fmt: skip
                            pace.end()
                            yield CompletionFinished(event.reason, event.tokens)
                            return
                        pace.token()
                        yield event
            finally:  # charge the work of the device, even if the caller has left
                cost.tokens += request.computed_tokens
