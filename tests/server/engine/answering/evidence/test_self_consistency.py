"""A question is answered several times, and the answer that most of them agree with is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everlong_models import MemoryState, SamplingParams
from everlong_server.engine.answering.evidence import self_consistency
from everlong_server.engine.answering.evidence.self_consistency import (
    MOST_TOKENS,
    SAMPLES,
    SelfConsistency,
    most_agreed,
)
from everlong_server.engine.answering.evidence.templates import REFUSAL
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.observability.metrics import Metrics
from everlong_server.store.tenants.quota import TokenCost

QUESTION = "What does the Scarecrow want?"
WRONG, RIGHT = "The Scarecrow wants a heart.", "The Scarecrow wants brains."


@pytest.mark.parametrize(
    ("answers", "best"),
    [
        ([WRONG, RIGHT, "He wants some brains.", "A pair of brains"], 1),
        ([WRONG, "Brains", "A heart"], 0),
        (["In May", "In June", "In July"], 0),
        (["", "brains", "brains"], 1),
        (["Two", "two", "Three"], 0),
        (["No, he lived alone.", "Yes, he was.", *["No, he was not.", "No.", "He never was."] * 2], 3),
        (["It was 1500750.", *["It was 1500250."] * 3], 1),
        (["He didn't.", "He did.", "He did not."], 0),
    ],
)
def test_the_answer_that_is_most_like_the_others_wins(answers: Sequence[str], best: int) -> None:
    assert most_agreed(QUESTION, answers)[0] == best


def test_words_of_the_question_say_nothing_new() -> None:
    answers = [
        "The Scarecrow wants what the Scarecrow wants: a heart.", "The Scarecrow wants a lion.", "brains", "The brains"
    ]  # fmt: skip
    assert most_agreed(QUESTION, answers)[0] == 2


def test_an_answer_can_have_no_other_words_than_the_question() -> None:
    answers = ["Jefferson Hope.", "Stangerson.", *["Hope."] * 7]
    assert most_agreed("Who killed Drebber, Hope or Stangerson?", answers)[0] == 2


@pytest.mark.parametrize(
    ("answers", "agreement"),
    [
        ([RIGHT] * 9, 1.0),
        (["In May", "In June", "In July"], 0.0),
        ([RIGHT, RIGHT, WRONG], 0.5),
        (["red boots", "red shoes", "red shoes and boots"], 0.8),
        # "red shoes": 1/2 and 4/5, the last one: 4/5 and 4/5
    ],
)
def test_agreement_is_the_mean_similarity_to_the_others(answers: Sequence[str], agreement: float) -> None:
    assert most_agreed(QUESTION, answers)[1] == agreement


class FakeEngine:
    """The first request gets `first`, and each further one the next of `others`: a text, a reason with a text, or an error."""

    on_cpu, admitted, max_streams = True, 1, 9
    model = SimpleNamespace(memory=SimpleNamespace(reuses_prompts=True))

    def __init__(self, first: tuple[str, str], others: Sequence[Any], *, logprob: float = -1.0) -> None:
        self.requests: list[AnswerRequest] = []
        self._first, self._others, self._logprob = first, list(others), logprob

    async def answer(self, request: AnswerRequest) -> AsyncIterator[Any]:
        is_first = not self.requests
        self.requests.append(request)
        answer = self._first if is_first else self._others.pop(0)
        if answer == "busy":
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        reason, text = answer if isinstance(answer, tuple) else ("stop", answer)
        tokens = text.split(" ")
        for n, token in enumerate(tokens):
            request.generated += 1
            entry = [{"logprob": self._logprob}] if request.params.logprobs else []
            yield TokenDelta(token if n == 0 else f" {token}", entry)
        yield AnswerFinished(reason, text, request.state, [], len(tokens), len(request.prompt), 0.1)


class Vote:
    """One answer by `engine`, with what it streams and counts."""

    def __init__(self, engine: FakeEngine, **params: Any) -> None:
        self.metrics, self.cost, self.begun = Metrics(), TokenCost(), list[AnswerRequest]()
        self.deltas: list[TokenDelta] = []
        self.finished: AnswerFinished | None = None
        voting = SelfConsistency(
            engine, QUESTION, self._make, self.begun.append, self.cost, self.metrics  # type: ignore[arg-type]
        )  # fmt: skip
        asyncio.run(self._run(voting.answer(self._make(SamplingParams(temperature=0, **params)))))

    @staticmethod
    def _make(params: SamplingParams) -> AnswerRequest:
        return AnswerRequest(MemoryState({"seen": torch.zeros(1)}), [], [1, 2, 3], params, params.seed or 0)

    async def _run(self, events: AsyncIterator[TokenDelta | AnswerFinished]) -> None:
        async for event in events:
            if isinstance(event, AnswerFinished):
                self.finished = event
            else:
                self.deltas.append(event)

    @property
    def text(self) -> str:
        """The text that was streamed, which is that of the answer."""
        assert self.finished is not None
        text = "".join(delta.text for delta in self.deltas)
        assert self.finished.text == text
        assert not any(delta.logprobs for delta in self.deltas)
        return text

    @property
    def agreement(self) -> float | None:
        assert self.finished is not None
        return self.finished.agreement

    @property
    def counted(self) -> dict[str, float]:
        """The outcomes that were counted."""
        samples = self.metrics.votes.collect()[0].samples
        return {s.labels["outcome"]: s.value for s in samples if s.name.endswith("_total") and s.value}


def test_an_unsure_answer_is_replaced_by_what_the_others_agree_on() -> None:
    engine = FakeEngine(("stop", WRONG), [RIGHT] * SAMPLES)
    vote = Vote(engine, stop=["###"])
    assert vote.text == RIGHT
    assert vote.counted == {"replaced": 1}
    assert vote.agreement == round((SAMPLES - 1) / SAMPLES, 3)
    others = engine.requests[1:]
    assert vote.begun == others
    assert [request.params.seed for request in others] == list(range(SAMPLES)), "the same question has the same answer"
    assert all(request.params.temperature > 0 and request.params.stop == ("###",) for request in others)
    assert all(request.auxiliary and not request.params.logprobs for request in others)
    generated = SAMPLES * len(RIGHT.split())
    assert vote.cost.tokens == generated
    assert vote.metrics.registry.get_sample_value("everlong_tokens_voting_total") == generated


def test_the_first_answer_is_kept_if_the_others_agree_with_it_or_with_nothing() -> None:
    for others, agreement in (([RIGHT] * SAMPLES, 1.0), ([f"{n}" for n in range(SAMPLES)], 0.0)):
        vote = Vote(FakeEngine(("stop", RIGHT), others))
        assert vote.text == RIGHT
        assert vote.counted == {"kept": 1}
        assert vote.agreement == agreement


@pytest.mark.parametrize(
    ("first", "logprob"),
    [(("stop", WRONG), -0.1), (("stop", REFUSAL), -1.0), (("length", WRONG), -1.0), (("cancelled", WRONG), -1.0)],
    ids=["sure", "declined", "cut", "cancelled"],
)
def test_other_answers_are_taken_as_they_are(first: tuple[str, str], logprob: float) -> None:
    engine = FakeEngine(first, [], logprob=logprob)
    vote = Vote(engine)
    assert vote.text == first[1]
    assert len(engine.requests) == 1
    assert not vote.counted
    assert vote.agreement is None


def test_a_long_answer_is_streamed() -> None:
    text = " ".join(["word"] * (MOST_TOKENS + 5))
    engine = FakeEngine(("stop", text), [])
    vote = Vote(engine)
    assert vote.text == text
    assert len(vote.deltas) == 5
    assert len(engine.requests) == 1


def test_others_that_fail_or_are_not_complete_have_no_vote(caplog: pytest.LogCaptureFixture) -> None:
    others = [MemoryError("no room"), InterruptedError(), ("length", WRONG), RIGHT, RIGHT, RIGHT, "", WRONG]
    vote = Vote(FakeEngine(("stop", WRONG), others))
    assert vote.text == RIGHT
    assert "no room" in caplog.text
    assert "Interrupted" not in caplog.text


def test_a_busy_device_does_not_hold_up_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_consistency, "_MAX_SECONDS", 0.0)
    vote = Vote(FakeEngine(("stop", WRONG), ["busy"] * SAMPLES))
    assert vote.text == WRONG
    assert vote.counted == {"timeout": 1}


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({"admitted": 2}, WRONG),
        ({"model": SimpleNamespace(memory=SimpleNamespace(reuses_prompts=False))}, WRONG),
        ({"on_cpu": False, "admitted": 7, "max_streams": 64}, RIGHT),
        ({"on_cpu": False, "admitted": 8, "max_streams": 64}, WRONG),
    ],
    ids=["a CPU with other answers", "a CPU that computes the prompt again", "a GPU with room", "a GPU without room"],
)
def test_nobody_waits_long_for_a_vote(changed: dict[str, Any], taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in changed.items():
        monkeypatch.setattr(FakeEngine, name, value)
    assert Vote(FakeEngine(("stop", WRONG), [RIGHT] * SAMPLES)).text == taken


def test_an_answer_is_never_longer_than_the_request_allows() -> None:
    engine = FakeEngine(("stop", WRONG), [RIGHT] * SAMPLES)
    Vote(engine, max_tokens=6, top_k=1)
    assert {request.params.max_tokens for request in engine.requests} == {6}
    assert {request.params.top_k for request in engine.requests[1:]} == {0}, "else all would be the same"


def test_a_vote_without_other_answers_is_none() -> None:
    vote = Vote(FakeEngine(("stop", WRONG), [("cancelled", "The")] * SAMPLES))
    assert vote.text == WRONG
    assert not vote.counted
    assert vote.agreement is None


@pytest.mark.parametrize(
    ("params", "applies"),
    [({}, True), ({"temperature": 0}, True), ({"temperature": 0.7}, False), ({"logprobs": True}, False)],
)
def test_only_the_likeliest_answer_is_put_to_the_vote(params: dict[str, Any], applies: bool) -> None:
    assert SelfConsistency.applies(SamplingParams(**params)) is applies
