"""An answer whose evidence lacks the answer is the refusal, token by token, and the memory has it like any other answer."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models import AnswerProbe, SamplingParams, load_model
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, Refusal
from everlong_server.engine.device.runner import Runner
from tests.server.engine.device.conftest import last

WORDS = list(range(60, 66))
HOLDS, LACKS = (AnswerProbe(1, torch.zeros(2, 16), bias) for bias in (1.0, -1.0))


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Any:
    options = {"segment_length": 16, "sinks": 4, "window": 64}
    return load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)


@pytest.mark.parametrize("own", [None, 0, 3])
@pytest.mark.parametrize("length", [3, 11, 50], ids=["short", "full in the answer", "longer than a segment"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_the_answer_is_the_refusal_where_the_evidence_lacks_one(
    model: Any, length: int, own: int | None, penalty: float
) -> None:
    memory, runner = model.memory, Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1)
    text = torch.randint(5, 500, (1, 48), generator=torch.Generator().manual_seed(0))
    state, prompt = memory.read(text, memory.initial_state(1)), list(range(100, 100 + length))
    params = SamplingParams(temperature=0.7, max_tokens=9, repetition_penalty=penalty)
    tokens = [*WORDS, model.tokenizer.eos_ids[0]]

    def answered(
        refusal: Refusal | None = None, params: SamplingParams = params
    ) -> tuple[AnswerFinished, AnswerRequest]:
        events: queue.Queue = queue.Queue()
        request = AnswerRequest(state, [9, 9], list(prompt), params, 5, events.put, 20, own, refusal=refusal)
        runner.submit(request)
        end = last(events)
        assert isinstance(end, AnswerFinished)
        return end, request

    runner.start()
    try:
        (plain, _), (holds, _) = answered(), answered(Refusal(tokens, HOLDS))
        assert (holds.text, holds.open, holds.state.digest()) == (plain.text, plain.open, plain.state.digest())
        lacks, request = answered(Refusal(tokens, LACKS))
        assert (lacks.text, lacks.reason, lacks.tokens) == (model.tokenizer.decode(WORDS), "stop", len(WORDS))
        assert lacks.text != plain.text
        assert request.computed_tokens == length + len(WORDS)
        read = [9, 9, *prompt, *WORDS]
        full = len(read) // 16 * 16
        assert lacks.open == read[full:]
        assert lacks.state.digest() == memory.read(torch.tensor([read[:full]]), state).digest()
        cut, _ = answered(Refusal(tokens, LACKS), params.model_copy(update={"max_tokens": 2}))
        assert (cut.text, cut.reason) == (model.tokenizer.decode(WORDS[:2]), "length")
        assert runner.rows == 0
    finally:
        runner.stop()


def test_others_in_the_batch_continue(model: Any) -> None:
    runner = Runner(model, max_streams=3, reading_share=0.3, max_stall=0.1)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    def submit(refusal: Refusal | None) -> queue.Queue:
        events: queue.Queue = queue.Queue()
        runner.submit(
            AnswerRequest(model.memory.initial_state(1), [], [5, 6, 7], params, 0, events.put, refusal=refusal)
        )
        return events

    runner.start()
    try:
        alone = last(submit(None))
        together = [submit(None), submit(Refusal(WORDS, LACKS)), submit(Refusal(WORDS, HOLDS))]
        ends = [last(events) for events in together]
        assert [end.tokens for end in ends if isinstance(end, AnswerFinished)] == [40, 40, 40]
        assert ends[0].text == ends[2].text == alone.text  # type: ignore[union-attr]
        assert ends[1].text.startswith(model.tokenizer.decode(WORDS))  # type: ignore[union-attr]
    finally:
        runner.stop()


def test_it_can_be_cancelled(model: Any) -> None:
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    events: queue.Queue = queue.Queue()
    params = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True, stop_repetition=False)
    request = AnswerRequest(
        model.memory.initial_state(1), [], [5, 6], params, 0, events.put, refusal=Refusal(WORDS * 100, LACKS)
    )
    runner.start()
    try:
        runner.submit(request)
        events.get(timeout=30)
        request.cancelled = True
        runner.wake()
        end = last(events)
        assert isinstance(end, AnswerFinished)
        assert end.reason == "cancelled"
        assert model.tokenizer.decode(WORDS * 100).startswith(end.text)
    finally:
        runner.stop()
