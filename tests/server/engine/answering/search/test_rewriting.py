"""Follow-up questions are rewritten by the model, from the conversation before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everlong_models import Model, load_model
from everlong_server.engine.answering.search.rewriting import QueryRewriter
from everlong_server.engine.answering.turn_context import Exchange
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.store.tenants.quota import TokenCost

CONVERSATION = [Exchange("Who is the captain?", "Ahab,\nof the Pequod."), Exchange("Who is\nhis mate?", "")]


class FakeEngine:
    """Writes `text`. Each request computes the tokens of its prompt."""

    def __init__(self, model: Model, text: str, reason: str = "stop") -> None:
        self.model = model
        self.requests: list[AnswerRequest] = []
        self._text, self._reason = text, reason

    async def answer(self, request: AnswerRequest) -> AsyncIterator[Any]:
        self.requests.append(request)
        request.prompt_read = len(request.prompt)
        if self._reason == "error":
            raise InterruptedError
        yield AnswerFinished(self._reason, self._text, request.state, [], 4, len(request.prompt), 0.1)


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    options = {"segment_length": 64, "sinks": 4, "window": 128}
    folder = tmp_path_factory.mktemp("models")
    return load_model(str(tiny_model / "backbone"), models_dir=folder, memory="window", options=options)


def rewritten(engine: FakeEngine, question: str, cost: TokenCost | None = None) -> str | None:
    return asyncio.run(QueryRewriter(engine, "alice").standalone(question, CONVERSATION, cost))  # type: ignore[arg-type]


def test_the_model_sees_the_conversation_and_answers_for_the_tenant(model: Model) -> None:
    engine, cost = FakeEngine(model, " Who is the mate of Ahab?\n"), TokenCost(7)
    assert rewritten(engine, "and what is he like", cost) == "Who is the mate of Ahab?"
    [request] = engine.requests
    said = model.tokenizer.decode(request.prompt, skip_special=False)
    conversation = "Question: Who is the captain?\nAnswer: Ahab, of the Pequod.\nQuestion: Who is his mate?\n"
    assert f"{conversation}Follow-up: and what is he like" in said
    assert (request.owner, request.params.temperature, request.auxiliary) == ("alice", 0, True)
    assert cost.tokens == 7 + len(request.prompt)


def test_every_prompt_begins_with_the_same_tokens(model: Model) -> None:
    """So their keys and values are computed once."""
    engine = FakeEngine(model, "Why?")
    for question in ("Why?", "How many were they?"):
        rewritten(engine, question)
    first, second = (request.prompt for request in engine.requests)
    shared = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert "Who is the teacher of the village?" in model.tokenizer.decode(first[:shared])


def test_a_long_earlier_answer_is_shortened(model: Model) -> None:
    engine = FakeEngine(model, "Why?")
    answered = [Exchange("Who?", "word " * 400)]
    asyncio.run(QueryRewriter(engine, "").standalone("Why?", answered))  # type: ignore[arg-type]
    assert model.tokenizer.decode(engine.requests[0].prompt).count("word") < 100


@pytest.mark.parametrize("reason", ["length", "repetition"])
def test_what_does_not_come_to_an_end_is_not_used(model: Model, reason: str) -> None:
    assert rewritten(FakeEngine(model, "Who is the mate of", reason), "Who is his mate?") is None


def test_a_long_message_is_not_rewritten(model: Model) -> None:
    engine = FakeEngine(model, "Why?")
    assert rewritten(engine, "Why did he do it? " * 40) is None
    assert not engine.requests


def test_work_that_ends_in_an_error_is_charged(model: Model) -> None:
    engine, cost = FakeEngine(model, "", "error"), TokenCost()
    with pytest.raises(InterruptedError):
        rewritten(engine, "Why?", cost)
    assert cost.tokens == len(engine.requests[0].prompt)
