"""`QueryRewriter`: rewrites a question that refers to the conversation, so that it can be searched for, and understood, without it.

The model itself rewrites it: conversational question reformulation (Lin et al. 2020, arXiv 2004.01909), here with examples in the prompt
instead of training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from everlong_models import SamplingParams
from everlong_server.engine.answering.turn_context import Exchange
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
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
"""Tokens of a rewritten question, at most. A longer one is not used."""
_SHOWN = 240
"""Characters of each earlier question and answer that the model sees, at most."""
_MAX_CHARS = 300
"""Characters of a question that can be rewritten, at most. A longer one has words enough to search for."""


class QueryRewriter:
    """Rewrites questions by one model, greedily: the same conversation gives the same question."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        """`tenant`: the tenant that the questions are rewritten for."""
        self._engine = engine
        self._tenant = tenant

    async def standalone(self, question: str, exchanges: Sequence[Exchange], cost: TokenCost | None = None) -> str | None:  # fmt: skip
        """Return the question, rewritten so that it can be understood without `exchanges` (newest last). None if the question has more than
        `_MAX_CHARS` characters, or if the model does not finish within `_MAX_TOKENS`.

        Adds the tokens that the device computes to `cost`.
        """
        if len(question) > _MAX_CHARS:
            return None
        model = self._engine.model
        params = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS, stop=["\n"])
        state, prompt = model.memory.initial_state(1), self._prompt(question, exchanges)
        request = AnswerRequest(state, [], prompt, params, 0, owner=self._tenant, auxiliary=True)
        finished: AnswerFinished | None = None
        try:
            async with contextlib.aclosing(self._engine.answer(request)) as events:
                async for event in events:
                    if isinstance(event, AnswerFinished):
                        finished = event
                        break
        finally:
            if cost is not None:
                cost.tokens += request.computed_tokens
        if finished is None or finished.reason != "stop":
            return None
        return finished.text.strip()

    def _prompt(self, question: str, exchanges: Sequence[Exchange]) -> list[int]:
        """Return the tokens of the prompt. Its instruction and its examples are always the same, so the engine can reuse their keys and values."""
        chat, encode = self._engine.model.chat, self._engine.model.tokenizer.encode
        before, after = chat.system or (chat.head, chat.separator)
        tokens = [*before, *encode(_INSTRUCTION), *after]
        for earlier, follow_up, standalone in _EXAMPLES:
            tokens += [*encode(_shown(earlier, follow_up)), *chat.ask, *encode(standalone), *chat.turn]
        return [*tokens, *encode(_shown(exchanges, question)), *chat.ask]


def _shown(exchanges: Sequence[Exchange], follow_up: str) -> str:
    lines = []
    for exchange in exchanges:
        asked, answered = (" ".join(text.split()) for text in exchange)
        lines += [f"Question: {asked[-_SHOWN:]}", *([f"Answer: {answered[:_SHOWN]}"] if answered else [])]
    return "\n".join([*lines, f"Follow-up: {follow_up}"])
