"""The device thread survives the failure of one batch, and reports it to every sink. What is cancelled or stopped ends."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models import MemoryState, SamplingParams, load_model
from everlong_models.backbone.cache import Cache
from everlong_models.errors import StateNotFinite
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, PrefillRequest, RequestFailed
from everlong_server.engine.device.runner import Runner
from tests.server.engine.device.conftest import answer, last


@pytest.mark.parametrize("method", ["open", "step", "read"])
def test_an_error_in_the_batch_ends_its_answers_and_nothing_else(model, monkeypatch, method: str) -> None:
    runner = Runner(model, max_streams=4, reading_share=0.3, max_stall=0.1)
    runner.start()
    real, calls = getattr(model.memory, method), [0]

    def fails_once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == (3 if method == "open" else 1):  # at the end of a segment, with two rows in the batch
            raise MemoryError("no room")
        return real(*args)

    try:
        monkeypatch.setattr(model.memory, method, fails_once)
        events: list[queue.Queue] = [queue.Queue(), queue.Queue()]
        for q in events:
            runner.submit(answer(model, q, 200))
        ends = [last(q) for q in events]
        assert any(isinstance(end, RequestFailed) and isinstance(end.error, MemoryError) for end in ends)
        again: queue.Queue = queue.Queue()
        runner.submit(answer(model, again, 3))
        assert isinstance(last(again), AnswerFinished)
        assert runner.dead is None
    finally:
        runner.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_has_failed_ends_the_engine(model, monkeypatch) -> None:
    """Nothing can be computed on the device any more: a server that continued would fail every request."""
    runner = Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1)

    def broken(*args: Any) -> Any:
        raise torch.AcceleratorError("device-side assert triggered")

    monkeypatch.setattr(model.memory, "step", broken)
    events: queue.Queue = queue.Queue()
    runner.submit(answer(model, events, 10))
    runner.start()
    assert isinstance(last(events), RequestFailed)
    runner.stop()
    assert isinstance(runner.dead, torch.AcceleratorError)


def test_a_batch_that_is_out_of_memory_is_halved(model, monkeypatch) -> None:
    memory, S = model.memory, model.memory.segment_length
    texts = [torch.randint(5, 500, (3 * S,), generator=torch.Generator().manual_seed(n)) for n in range(5)]
    expected = []
    for text in texts:
        state = memory.initial_state(1)
        for segment in text.split(S):
            state = memory.read(segment[None], state)
        expected.append(state.digest())
    real, rows = memory.read, []

    def read(tokens: torch.Tensor, state: Any) -> Any:
        rows.append(len(tokens))
        if len(tokens) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(tokens, state)

    monkeypatch.setattr(memory, "read", read)
    runner = Runner(model, max_streams=1, reading_share=0.5, max_stall=0.1, reading_rows=5)
    ends: list[queue.Queue] = [queue.Queue() for _ in texts]
    for text, sink in zip(texts, ends, strict=True):
        runner.submit(PrefillRequest(memory.initial_state(1), text, sink.put))
    runner.start()
    try:
        assert [sink.get(timeout=30).digest() for sink in ends] == expected
    finally:
        runner.stop()
    assert rows[:5] == [5, 2, 3, 1, 2], "halves, and halves of these"
    assert max(rows[5:]) == 1, "and not tried again"


def test_a_cancelled_answer_that_cannot_end_harms_no_other(model) -> None:
    runner = Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1)
    heard: queue.Queue = queue.Queue()

    def deaf(event: Any) -> None:
        heard.put(event)
        if isinstance(event, AnswerFinished):
            raise OSError("nobody listens")

    other: queue.Queue = queue.Queue()
    bad, good = answer(model, queue.Queue(), 1_000_000), answer(model, other, 150)
    bad.sink = deaf
    try:
        runner.submit(bad)
        runner.submit(good)
        runner.start()
        assert isinstance(other.get(timeout=30), TokenDelta)
        bad.cancelled = True
        assert isinstance(last(heard), AnswerFinished)
        assert isinstance(heard.get(timeout=30), RequestFailed)
        assert isinstance(last(other), AnswerFinished)
        assert runner.dead is None
    finally:
        runner.stop()


def test_stop_fails_unfinished_and_late_requests(model) -> None:
    runner = Runner(model, max_streams=4, reading_share=0.3, max_stall=0.1)
    runner.start()
    events: queue.Queue = queue.Queue()
    runner.submit(answer(model, events, 1_000_000))
    assert isinstance(events.get(timeout=30), TokenDelta)
    runner.stop()
    assert isinstance(last(events), RequestFailed)
    late: queue.Queue = queue.Queue()
    runner.submit(answer(model, late, 1))
    assert isinstance(last(late), RequestFailed)


def test_an_error_at_the_end_of_a_segment_fails_its_own_answer_only(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"segment_length": 16, "sinks": 4, "window": 32}
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    memory, runner = model.memory, Runner(model, max_streams=3, reading_share=0.3, max_stall=0.1)
    real = memory.continue_in_cache

    def continue_in_cache(cache: Cache, segment: torch.Tensor, state: MemoryState) -> MemoryState | None:
        if int(segment[0, 0]) == 20:
            raise RuntimeError("no room")
        return real(cache, segment, state)

    monkeypatch.setattr(memory, "continue_in_cache", continue_in_cache)
    waiting: list[queue.Queue] = []
    runner.start()
    try:
        for first in (30, 20, 40):
            waiting.append(queue.Queue())
            params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
            prompt = list(range(first, first + 4))
            runner.submit(AnswerRequest(memory.initial_state(1), [], prompt, params, 0, waiting[-1].put))
        one, failed, other = map(last, waiting)
    finally:
        runner.stop()
    assert isinstance(failed, RequestFailed)
    assert str(failed.error) == "no room"
    assert isinstance(one, AnswerFinished)
    assert isinstance(other, AnswerFinished)
    assert (one.tokens, other.tokens) == (40, 40)


def test_the_text_of_a_cancelled_answer_is_the_beginning_of_the_whole(model) -> None:
    """Even in the middle of a character or of a possible stop string."""
    params = SamplingParams(temperature=1, max_tokens=24, ignore_eos=True, stop=("no such words",))
    state = model.memory.initial_state(1)
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    runner.start()

    def run(most: int | None) -> tuple[str, AnswerFinished]:
        events: queue.Queue = queue.Queue()
        said: list[str] = []
        item = AnswerRequest(state, [], [5, 6, 7], params, 3, events.put)

        def sink(event: TokenDelta | AnswerFinished | RequestFailed) -> None:
            if isinstance(event, TokenDelta):
                said.append(event.text)
                item.cancelled = len(said) == most
            else:
                events.put(event)

        item.sink = sink
        runner.submit(item)
        finished = events.get(timeout=30)
        assert isinstance(finished, AnswerFinished)
        assert finished.text == "".join(said)
        return finished.text, finished

    try:
        whole, _ = run(None)
        held_back = 0
        for most in range(1, 24):
            said, finished = run(most)
            assert finished.reason == "cancelled"
            assert finished.tokens == most
            assert whole.startswith(said)
            held_back += len(said) < len(model.tokenizer.decode(finished.open[3:]))
        assert held_back, "no answer was cancelled in the middle of a character"
    finally:
        runner.stop()


def test_a_damaged_state_does_not_affect_the_rest_of_its_batch(model) -> None:
    memory, S = model.memory, model.memory.segment_length
    good = memory.initial_state(1)
    bad = MemoryState({name: torch.full_like(tensor, torch.nan) for name, tensor in good.tensors.items()})
    runner = Runner(model, max_streams=1, reading_share=0.5, max_stall=0.1, reading_rows=4)
    ends: list[queue.Queue] = [queue.Queue() for _ in range(3)]
    for state, sink in zip((good, bad, good), ends, strict=True):
        runner.submit(PrefillRequest(state, torch.arange(2 * S) + 5, sink.put))
    runner.start()
    try:
        first, failed, third = (sink.get(timeout=30) for sink in ends)
    finally:
        runner.stop()
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, StateNotFinite)
    assert first.digest() == third.digest()
