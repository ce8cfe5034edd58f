"""An answer whose evidence lacks the answer begins again with the other prompt, as if that had been the only one."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models import AnswerProbe, SamplingParams, load_model
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, Fallback
from everlong_server.engine.device.runner import Runner
from tests.server.engine.device.conftest import last

OTHER = [30, 31, 32, 33]
HOLDS, LACKS = (AnswerProbe(1, torch.zeros(2, 16), bias) for bias in (1.0, -1.0))


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Any:
    options = {"segment_length": 16, "sinks": 4, "window": 64}
    return load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)


@pytest.mark.parametrize("own", [None, 0, 3])
@pytest.mark.parametrize("long", [False, True], ids=["short", "longer than a segment"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_the_answer_is_that_to_the_prompt_that_is_used(model: Any, long: bool, own: int | None, penalty: float) -> None:
    memory, runner = model.memory, Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1)
    text = torch.randint(5, 500, (1, 48), generator=torch.Generator().manual_seed(0))
    state, prompt = memory.read(text, memory.initial_state(1)), list(range(40, 90 if long else 46))
    other = OTHER * 9 if long else OTHER
    params = SamplingParams(temperature=0.7, max_tokens=9, ignore_eos=True, repetition_penalty=penalty)

    def answered(prompt: list[int], fallback: Fallback | None = None) -> tuple[AnswerFinished, AnswerRequest]:
        events: queue.Queue = queue.Queue()
        request = AnswerRequest(state, [9, 9], list(prompt), params, 5, events.put, 20, own, fallback=fallback)
        runner.submit(request)
        end = last(events)
        assert isinstance(end, AnswerFinished)
        return end, request

    def same(one: AnswerFinished, two: AnswerFinished) -> bool:
        fields = ("text", "open", "tokens", "prompt", "reason")
        return all(getattr(one, field) == getattr(two, field) for field in fields) and (
            one.state.digest() == two.state.digest()
        )

    runner.start()
    try:
        (first, cost), (second, other_cost) = answered(prompt), answered(other)
        assert not same(first, second)
        holds, kept = answered(prompt, Fallback(other, HOLDS))
        assert same(holds, first)
        assert kept.computed_tokens == cost.computed_tokens == len(prompt) + 9
        lacks, fallen = answered(prompt, Fallback(other, LACKS))
        assert same(lacks, second)
        assert fallen.computed_tokens == len(prompt) + other_cost.computed_tokens
        assert fallen.prompt == other
        assert runner.rows == 0
    finally:
        runner.stop()


def test_others_in_the_batch_continue(model: Any) -> None:
    runner = Runner(model, max_streams=3, reading_share=0.3, max_stall=0.1)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    def submit(fallback: Fallback | None, sampling: SamplingParams = params) -> queue.Queue:
        events: queue.Queue = queue.Queue()
        runner.submit(
            AnswerRequest(model.memory.initial_state(1), [], [5, 6, 7], sampling, 0, events.put, fallback=fallback)
        )
        return events

    runner.start()
    try:
        alone = last(submit(None))
        together = [submit(None), submit(Fallback(OTHER, LACKS)), submit(Fallback(OTHER, HOLDS))]
        ends = [last(events) for events in together]
        assert [end.tokens for end in ends if isinstance(end, AnswerFinished)] == [40, 40, 40]
        assert ends[0].text == ends[2].text == alone.text  # type: ignore[union-attr]
        assert ends[1].prompt == len(OTHER)  # type: ignore[union-attr]
    finally:
        runner.stop()


def test_it_can_be_cancelled_after_it_began_again(model: Any) -> None:
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    events: queue.Queue = queue.Queue()
    params = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True, stop_repetition=False)
    request = AnswerRequest(
        model.memory.initial_state(1), [], [5, 6], params, 0, events.put, fallback=Fallback(OTHER, LACKS)
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
        assert end.prompt == len(OTHER)
    finally:
        runner.stop()
