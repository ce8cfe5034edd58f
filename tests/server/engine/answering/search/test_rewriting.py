"""Follow-up questions are rewritten by the model, from the conversation before them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everlong_models import Model, load_model
from everlong_server.engine.answering.search import rewriting
from everlong_server.engine.answering.search.rewriting import QueryRewriter
from everlong_server.engine.answering.turn_context import Exchange
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.observability.metrics import Metrics
from everlong_server.store.tenants.quota import TokenCost

CONVERSATION = [Exchange("Who is the captain?", "Ahab,\nof the Pequod."), Exchange("Who is\nhis mate?", "")]


class FakeEngine:
    """Writes `text`. Each request computes the tokens of its prompt."""

    def __init__(self, model: Any, text: str, reason: str = "stop") -> None:
        self.model = model
        self.requests: list[AnswerRequest] = []
        self._text, self._reason = text, reason

    async def answer(self, request: AnswerRequest) -> AsyncIterator[Any]:
        self.requests.append(request)
        request.prompt_read = len(request.prompt)
        if self._reason == "busy":
            await asyncio.Event().wait()
        if self._reason in ("error", "early"):
            raise (MemoryError if self._reason == "error" else InterruptedError)
        yield AnswerFinished(self._reason, self._text, request.state, [], 4, len(request.prompt), 0.1)


class Rewriting:
    """One rewriting by `engine`, with what it counts."""

    def __init__(self, engine: FakeEngine, begin: Callable[[AnswerRequest], None] = lambda request: None) -> None:
        self.metrics, self.cost = Metrics(), TokenCost(7)
        self._rewriter = QueryRewriter(engine, "alice", self.metrics, self.cost, begin)  # type: ignore[arg-type]

    def of(self, question: str, exchanges: Sequence[Exchange] = CONVERSATION) -> str | None:
        found = asyncio.run(self._rewriter.standalone(question, exchanges))
        return None if found is None else found[0]

    @property
    def counted(self) -> dict[str, float]:
        """The outcomes that were counted."""
        samples = self.metrics.rewritings.collect()[0].samples
        return {s.labels["outcome"]: s.value for s in samples if s.name.endswith("_total") and s.value}

    @property
    def tokens(self) -> float | None:
        return self.metrics.registry.get_sample_value("everlong_tokens_rewriting_total")


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    options = {"segment_length": 64, "sinks": 4, "window": 128}
    folder = tmp_path_factory.mktemp("models")
    return load_model(str(tiny_model / "backbone"), models_dir=folder, memory="window", options=options)


def test_the_model_sees_the_conversation_and_answers_for_the_tenant(model: Model) -> None:
    engine = FakeEngine(model, " Who is the mate of Ahab?\n")
    one = Rewriting(engine)
    assert one.of("and what\nis he like") == "Who is the mate of Ahab?"
    [request] = engine.requests
    said = model.tokenizer.decode(request.prompt, skip_special=False)
    conversation = "Question: Who is the captain?\nAnswer: Ahab, of the Pequod.\nQuestion: Who is his mate?\n"
    assert f"{conversation}Follow-up: and what is he like" in said
    assert (request.owner, request.params.temperature, request.auxiliary) == ("alice", 0, True)
    assert one.cost.tokens == 7 + len(request.prompt)
    assert one.tokens == len(request.prompt)


@pytest.mark.parametrize(
    ("question", "written", "reason", "outcome"),
    [
        ("Why did she do that?", "Why did the queen leave?", "stop", "rewritten"),
        ("Why did she do that?", "why did she do that", "stop", "unchanged"),
        ("Why did she do that?", "Because she was tired.", "stop", "rejected"),
        ("Why did she do that?", "", "stop", "rejected"),
        ("Why, and where to?", "Who is the captain?", "stop", "rejected"),
        ("And who in chapter 6?", "Who is the captain of the Pequod?", "stop", "rejected"),
        ("Who is his mate?", "Who is the mate of", "length", "rejected"),
        ("Who is his mate?", "Who is the mate of", "repetition", "rejected"),
    ],
)
def test_what_the_model_writes_is_used_only_if_it_can_take_the_place_of_the_question(
    model: Model, question: str, written: str, reason: str, outcome: str
) -> None:
    one = Rewriting(FakeEngine(model, written, reason))
    assert one.of(question) == (written if outcome == "rewritten" else None)
    assert one.counted == {outcome: 1}


def test_every_prompt_begins_with_the_same_tokens(model: Model) -> None:
    """So their keys and values are computed once."""
    engine = FakeEngine(model, "Why?")
    for question in ("Why?", "How many were they?"):
        Rewriting(engine).of(question)
    first, second = (request.prompt for request in engine.requests)
    shared = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert "Who is the teacher of the village?" in model.tokenizer.decode(first[:shared])


def test_a_long_earlier_answer_is_shortened(model: Model) -> None:
    engine = FakeEngine(model, "Why?")
    Rewriting(engine).of("Why?", [Exchange("Who?", "word " * 400)])
    assert model.tokenizer.decode(engine.requests[0].prompt).count("word") < 100


@pytest.mark.parametrize("question", ["Why did he do it? " * 40, "Why? " + "\u2603" * 60])
def test_a_long_message_is_not_rewritten(model: Model, question: str) -> None:
    """One of more tokens than a rewritten question may have cannot be kept in it."""
    one = Rewriting(engine := FakeEngine(model, "Why?"))
    assert one.of(question) is None
    assert not engine.requests
    assert not one.counted


def test_the_prompt_is_made_on_a_thread(model: Model) -> None:
    """Messages can be long, and other requests must not wait for them."""
    threads: set[threading.Thread] = set()

    def encode(text: str) -> list[int]:
        threads.add(threading.current_thread())
        return model.tokenizer.encode(text)

    seen = SimpleNamespace(chat=model.chat, memory=model.memory, tokenizer=SimpleNamespace(encode=encode))
    assert Rewriting(FakeEngine(seen, "Who is the mate of Ahab?")).of("and what is he like") is not None
    assert threads
    assert threading.main_thread() not in threads


def test_work_that_ends_in_an_error_is_charged(model: Model) -> None:
    one = Rewriting(engine := FakeEngine(model, "", "error"))
    with pytest.raises(MemoryError):
        one.of("Why?")
    assert one.cost.tokens == 7 + len(engine.requests[0].prompt)


@pytest.mark.parametrize("reason", ["early", "cancelled"])
def test_a_cancelled_rewriting_ends_without_a_result(model: Model, reason: str) -> None:
    """The turn goes on to its end, which says that it was cancelled."""
    begun: list[AnswerRequest] = []
    one = Rewriting(engine := FakeEngine(model, "Who is the mate", reason), begun.append)
    assert one.of("Why?") is None
    assert begun == engine.requests
    assert not one.counted


def test_a_busy_device_does_not_hold_up_the_answer(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "_MAX_SECONDS", 0.0)
    one = Rewriting(FakeEngine(model, "", "busy"))
    assert one.of("Why?") is None
    assert one.counted == {"timeout": 1}
