"""The device thread survives the failure of one batch, and reports it to every sink."""

from __future__ import annotations

import asyncio
import math
import queue
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models import MemoryState, SamplingParams, load_model
from everlong_models.backbone.cache import Cache
from everlong_models.errors import StateNotFinite
from everlong_models.kernels.yield_point import yield_point
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.event_loop_bridge import EventLoopBridge
from everlong_server.engine.device.priority import background_priority
from everlong_server.engine.device.requests import (
    AnswerFinished,
    AnswerRequest,
    PrefillRequest,
    RequestFailed,
)
from everlong_server.engine.device.runner import Runner
from everlong_server.errors import Overloaded


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path):
    return load_model(str(tiny_model), models_dir=tmp_path)


def answer(model: Any, events: queue.Queue, tokens: int, open: list[int] | None = None) -> AnswerRequest:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return AnswerRequest(model.memory.initial_state(1), open or [], [5, 6, 7], params, 0, events.put)


def last(events: queue.Queue) -> AnswerFinished | RequestFailed:
    while isinstance(event := events.get(timeout=30), TokenDelta):
        pass
    return event


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


class Loop:
    """The part of an event loop that `EventLoopBridge` uses, on the calling thread."""

    def __init__(self) -> None:
        self.came: list[list[Any]] = []
        """The arguments of each batch of calls."""

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        self.came.append([])
        call(*arguments)

    def call_soon(self, call: Callable[[Any], None], argument: Any) -> None:
        self.came[-1].append(argument)
        call(argument)


def test_the_tokens_of_a_step_are_delivered_in_one_batch_while_the_next_runs(model, monkeypatch) -> None:
    bridge, loop, real, rows = EventLoopBridge(), Loop(), model.memory.step, []

    def step(cache: Cache, tokens: torch.Tensor) -> torch.Tensor:
        before = len(loop.came)
        yield_point()
        assert len(loop.came) == before + 1
        assert sum(isinstance(event, TokenDelta) for event in loop.came[-1]) >= len(
            tokens
        )  # and those of answers that ended
        rows.append(len(tokens))
        return real(cache, tokens)

    monkeypatch.setattr(model.memory, "step", step)
    runner = Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1, bridge=bridge)
    events: list[queue.Queue] = [queue.Queue(), queue.Queue()]
    for q in events:
        work = answer(model, q, 9)
        work.sink = partial(bridge.call_soon, loop, q.put)  # type: ignore[arg-type]
        runner.submit(work)
    runner.start()
    try:
        ends = [last(q) for q in events]
        assert [isinstance(end, AnswerFinished) for end in ends] == [True, True], ends
        assert rows.count(2) >= 7
    finally:
        runner.stop()


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


def test_an_answer_that_attends_to_few_kept_tokens_leaves_the_whole_state(tiny_model: Path, tmp_path: Path) -> None:
    """Across segments: the answer attends to the tokens that it and its prompt add to the window."""
    options = {"segment_length": 16, "sinks": 4, "window": 64}
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    memory, runner = model.memory, Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    text = torch.randint(5, 500, (1, 48), generator=torch.Generator().manual_seed(0))
    state, prompt = memory.read(text, memory.initial_state(1)), list(range(20, 40))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    runner.start()
    try:
        ends = []
        for newest, by_itself in ((None, False), (0, False), (48, False), (48, True)):
            events: queue.Queue = queue.Queue()
            runner.submit(AnswerRequest(state, [9, 9], prompt, params, 0, events.put, newest, by_itself))
            ends.append(last(events))
        whole, alone, all_of_it, anew = ends
        assert all_of_it.state.digest() == whole.state.digest()
        assert all_of_it.open == whole.open
        # The expected tokens: the backbone over sinks, prompt and answer.
        for end, seen in ((alone, [*text[0, :4].tolist(), 9, 9]), (anew, [])):
            context, drawn = [*seen, *prompt], []
            for _ in range(4):
                drawn.append(int(model.memory.backbone.logits(memory.backbone.hidden(
                    memory.backbone.embed(torch.tensor([context + drawn])), keep=1))[0, -1].argmax()))  # fmt: skip
            kept = [*memory.kept_tokens(end.state), *end.open]
            assert kept[-12:-8] == drawn
            behind = [*text[0].tolist(), 9, 9, *prompt]
            assert kept[:-12] == behind[-len(kept[:-12]) :], (
                "tokens that the answer did not attend to are in the window"
            )
            assert len(kept) > 34
    finally:
        runner.stop()


def test_nothing_is_prefilled_again_at_the_end_of_a_segment(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows that reach the end of a segment at different steps. While the window holds all tokens, they are the backbone's
    own. After that, they are those of each answer alone."""
    options = {"segment_length": 16, "sinks": 4, "window": 64}
    exact = {"quantize": False, "bfloat16": False}
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options, **exact)
    memory, runner = model.memory, Runner(model, max_streams=3, reading_share=0.3, max_stall=0.1)
    opened, real = [], memory.open
    monkeypatch.setattr(memory, "open", lambda state, tokens: opened.append(tokens.shape[1]) or real(state, tokens))
    lengths = (3, 9, 15)

    def answered(tokens: int, lengths: Sequence[int] = lengths) -> list[AnswerFinished]:
        waiting: list[queue.Queue] = []
        for length in lengths:
            waiting.append(queue.Queue())
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
            runner.submit(
                AnswerRequest(memory.initial_state(1), [], list(range(20, 20 + length)), params, 0, waiting[-1].put)
            )
        return [end for end in map(last, waiting) if isinstance(end, AnswerFinished)]

    runner.start()
    try:
        for length, end in zip(lengths, answered(50), strict=True):
            read = list(range(20, 20 + length))
            for _ in range(50):
                hidden = memory.backbone.hidden(memory.backbone.embed(torch.tensor([read])), keep=1)
                read.append(int(memory.backbone.logits(hidden)[0, -1].argmax()))
            seen = int(end.state["seen"])
            assert [*end.state["sinks"][0].tolist(), *memory.kept_tokens(end.state), *end.open] == read
            assert seen == len(read) // 16 * 16
        assert sorted(opened) == [*lengths]
        opened.clear()
        # Of 68 tokens of sinks and window the borders at 80, 96 and 112 drop tokens.
        together = answered(100)
        assert sorted(opened) == [*lengths]
        for length, end in zip(lengths, together, strict=True):
            (alone,) = answered(100, [length])
            assert (end.text, end.state.digest(), end.open) == (alone.text, alone.state.digest(), alone.open)
            assert int(end.state["seen"]) == (length + 100) // 16 * 16
    finally:
        runner.stop()


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


@pytest.mark.parametrize("length", [1, 14, 15, 40])
@pytest.mark.parametrize("newest", [None, 0, 5, 100])
@pytest.mark.parametrize("alone", [False, True])
def test_a_repetition_is_one_of_all_that_the_answer_looks_at(tiny_model, tmp_path, length, newest, alone) -> None:
    """Also of what has gone into the memory with the prompt's full segments; and of nothing else."""
    options = {"segment_length": 16, "sinks": 0, "window": 64}
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    text, prompt = list(range(100, 132)), list(range(20, 20 + length))
    state = model.memory.initial_state(1)
    for begin in (0, 16):
        state = model.memory.read(torch.tensor([text[begin : begin + 16]]), state)
    events: queue.Queue = queue.Queue()
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, repetition_penalty=1.5)
    item = AnswerRequest(state, [9, 8], prompt, params, 0, events.put, newest, alone)
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    runner.submit(item)
    runner.start()
    end = last(events)
    runner.stop()
    assert isinstance(end, AnswerFinished)
    drawn = [*model.memory.kept_tokens(end.state), *end.open][-1]
    seen = [] if alone else [*text[-min(newest, 32) :], 9, 8] if newest else [9, 8] if newest == 0 else [*text, 9, 8]
    assert item.sampler is not None
    assert set(item.sampler._seen.nonzero()[:, 0].tolist()) == {*seen, *prompt, drawn}


@pytest.mark.parametrize("stall", [0.0, 1e9])
def test_answers_are_stepped_during_the_prefill_of_a_segment(model, monkeypatch, stall: float) -> None:
    """Between its layers, if a step is due. The state and the answers stay the same."""
    memory, S = model.memory, model.memory.segment_length
    text = torch.randint(5, 500, (4 * S,), generator=torch.Generator().manual_seed(0))
    expected = memory.read(text[None], memory.initial_state(1))
    real_read, real_step, inside, steps_inside = memory.read, memory.step, [False], [0]

    def read(tokens: torch.Tensor, state: Any) -> Any:
        inside[0] = True
        try:
            return real_read(tokens, state)
        finally:
            inside[0] = False

    def step(*args: Any) -> Any:
        steps_inside[0] += inside[0]
        return real_step(*args)

    def run(*, beside: bool) -> AnswerFinished:
        runner = Runner(model, max_streams=2, reading_share=0.9, max_stall=stall)
        answers: queue.Queue = queue.Queue()
        states: queue.Queue = queue.Queue()
        runner.submit(answer(model, answers, S - 4))
        if beside:
            runner.submit(PrefillRequest(memory.initial_state(1), text, states.put))
        runner.start()  # the prompt is opened first, then the text's first segment is read
        try:
            end = last(answers)
            if beside:
                assert states.get(timeout=30).digest() == expected.digest()
            assert isinstance(end, AnswerFinished)
            return end
        finally:
            runner.stop()

    alone = run(beside=False)
    monkeypatch.setattr(memory, "read", read)
    monkeypatch.setattr(memory, "step", step)
    beside = run(beside=True)
    assert (beside.open, beside.text) == (alone.open, alone.text)
    assert (steps_inside[0] > 0) == (stall == 0.0)


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


def test_one_document_of_a_tenant_does_not_wait_for_all_of_anothers(model) -> None:
    memory, ended = model.memory, queue.Queue()
    text = torch.arange(5, 5 + 2 * memory.segment_length)
    runner = Runner(model, max_streams=2, reading_share=0.5, max_stall=0.1)
    for number in range(4):
        owner = "one" if number == 3 else "many"
        runner.submit(
            PrefillRequest(memory.initial_state(1), text, lambda state, number=number: ended.put(number), owner)
        )
    runner.start()
    try:
        assert [ended.get(timeout=30) for _ in range(4)] == [3, 0, 1, 2]
    finally:
        runner.stop()


async def test_a_memory_view_of_one_tenant_does_not_wait_for_all_documents_of_another(model) -> None:
    engine = Engine(model, max_streams=1, max_queued=1, reading_share=0.5, max_stall=0.1)
    ended = []

    async def look(number: int) -> None:
        await engine.memory_view(model.memory.initial_state(1), [5, 6], 0, "one" if number == 3 else "many")
        ended.append(number)

    async with asyncio.TaskGroup() as looks:
        for number in range(4):
            looks.create_task(look(number))
        await asyncio.sleep(0)  # until all are submitted
        engine.start()
    await engine.stop()
    assert ended == [0, 3, 1, 2]


@pytest.mark.parametrize("rows", [2, 7, 32])
def test_segments_prefilled_in_a_batch_give_the_states_of_those_prefilled_alone(model, monkeypatch, rows: int) -> None:
    """Documents of 1 to 5 segments that join and leave the batch, and prompts among them."""
    memory, S = model.memory, model.memory.segment_length
    texts = [torch.arange(S * (1 + n % 5)) * (n + 3) % 250 + 5 for n in range(rows)]
    prompt = [(7 * n) % 250 + 5 for n in range(2 * S + 20)]
    together: list[int] = []
    real = memory.read

    def read(tokens: torch.Tensor, state: Any) -> Any:
        together.append(len(tokens))
        return real(tokens, state)

    monkeypatch.setattr(memory, "read", read)

    def run(at_once: int) -> tuple[list[Any], AnswerFinished]:
        runner = Runner(model, max_streams=1, reading_share=0.5, max_stall=0.1, reading_rows=at_once)
        states: list[queue.Queue] = [queue.Queue() for _ in texts]
        events: queue.Queue = queue.Queue()
        for text, sink in zip(texts, states, strict=True):
            runner.submit(PrefillRequest(memory.initial_state(1), text, sink.put))
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        runner.submit(AnswerRequest(memory.initial_state(1), [9, 8], prompt, params, 0, events.put))
        runner.start()
        try:
            end = last(events)
            assert isinstance(end, AnswerFinished)
            return [sink.get(timeout=30) for sink in states], end
        finally:
            runner.stop()

    alone, end_alone = run(1)
    assert set(together) == {1}
    passes = len(together)
    together.clear()
    states, end = run(rows)
    assert max(together) == rows
    assert len(together) < passes
    assert (end.text, end.open) == (end_alone.text, end_alone.open)
    for a, b in zip([*states, end.state], [*alone, end_alone.state], strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize(("rows", "dtype"), [(2, torch.float32), (7, torch.float32), (32, torch.float64)])
def test_the_state_after_an_answer_does_not_depend_on_its_batch(
    tiny_model: Path, tmp_path: Path, rows: int, dtype: torch.dtype
) -> None:
    """The same tokens give the same state, bit for bit, whatever the batch. Rows join and leave it.

    The last bits of logits do depend on the batch. In float32 that turns one greedy choice in some thousands of a model with
    random weights, which finds many tokens equally likely."""
    model = load_model(str(tiny_model), models_dir=tmp_path, dtype=dtype)
    S = model.memory.segment_length
    prompts = [list(range(5 + n, 25 + (7 * n) % (S - 25) + n)) for n in range(rows)]
    lengths = [S // 2 + (n * S) // 12 for n in range(rows)]

    def run(at_once: int) -> list[AnswerFinished]:
        runner, ends = Runner(model, max_streams=at_once, reading_share=0.3, max_stall=0.1), []
        for begin in range(0, len(prompts), at_once):
            events: list[queue.Queue] = []
            for prompt, length in list(zip(prompts, lengths, strict=True))[begin : begin + at_once]:
                events.append(queue.Queue())
                state = model.memory.initial_state(1)
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                runner.submit(AnswerRequest(state, [], prompt, params, 0, events[-1].put))
            if begin == 0:
                runner.start()  # once all are submitted
            ends += [last(q) for q in events]
        runner.stop()
        return ends

    alone, together = run(1), run(len(prompts))
    assert [end.open for end in together] == [end.open for end in alone]
    assert [end.state.digest() for end in together] == [end.state.digest() for end in alone]


def run_while_it_reads(memory: Any, monkeypatch: pytest.MonkeyPatch, run: Callable[[], list[Any]]) -> list[Any]:
    """Return the results of `run`, after checks: other answers are stepped while a segment is committed, with the same results;
    if the segment cannot be read, the first answer fails and no other."""
    real_read, real_step, inside, steps_inside = memory.read, memory.step, [False], [0]

    def read(tokens: torch.Tensor, state: Any) -> Any:
        inside[0] = True
        try:
            return real_read(tokens, state)
        finally:
            inside[0] = False

    def no_read(tokens: torch.Tensor, state: Any) -> Any:
        raise MemoryError("no room")

    def step(*args: Any) -> Any:
        steps_inside[0] += inside[0]
        return real_step(*args)

    expected = run()
    monkeypatch.setattr(memory, "read", read)
    monkeypatch.setattr(memory, "step", step)
    for end, before in zip(run(), expected, strict=True):
        assert (end.open, end.text, end.state.digest()) == (before.open, before.text, before.state.digest())
    assert steps_inside[0] > 0
    monkeypatch.setattr(memory, "read", no_read)
    failed, other = run()
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, MemoryError)
    assert (other.open, other.text) == (expected[1].open, expected[1].text)
    return expected


def test_answers_are_stepped_while_another_commits_a_segment(model, monkeypatch) -> None:
    S = model.memory.segment_length

    def run() -> list[AnswerFinished | RequestFailed]:
        runner = Runner(model, max_streams=2, reading_share=0.1, max_stall=0.0)
        events: list[queue.Queue] = [queue.Queue(), queue.Queue()]
        runner.submit(answer(model, events[0], 2 * S, open=[9] * (S // 2)))
        runner.submit(answer(model, events[1], S - 4))
        runner.start()
        try:
            return [last(q) for q in events]
        finally:
            runner.stop()

    run_while_it_reads(model.memory, monkeypatch, run)


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_answers_are_stepped_while_another_ends_at_the_end_of_a_segment(model, monkeypatch, reason: str) -> None:
    S = model.memory.segment_length
    most = S - S // 2 - 3

    def run(answers: int = 2) -> list[AnswerFinished | RequestFailed]:
        runner = Runner(model, max_streams=2, reading_share=0.1, max_stall=0.0)
        events: list[queue.Queue] = [queue.Queue() for _ in range(answers)]
        item = answer(model, events[0], most if reason == "length" else S, open=[9] * (S // 2))
        said: list[TokenDelta] = []

        def sink(event: TokenDelta | AnswerFinished | RequestFailed) -> None:
            events[0].put(event)
            said.extend([event] if isinstance(event, TokenDelta) else [])
            item.cancelled = reason == "cancelled" and len(said) == most

        item.sink = sink
        runner.submit(item)
        if answers > 1:
            runner.submit(answer(model, events[1], S - 4))
        runner.start()
        try:
            return [last(q) for q in events]
        finally:
            runner.stop()

    (alone,) = run(1)
    first, _ = run_while_it_reads(model.memory, monkeypatch, run)
    assert isinstance(first, AnswerFinished)
    assert (first.reason, first.tokens, first.open) == (reason, most, [])
    assert (alone.open, alone.text, alone.state.digest()) == (first.open, first.text, first.state.digest())


async def test_a_refused_caller_learns_when_to_retry(model) -> None:
    """Time in the queue does not count as the duration of an answer."""
    engine = Engine(model, max_streams=1, max_queued=3, reading_share=0.3, max_stall=0.1)

    def refused() -> int:
        with ExitStack() as places:
            for _ in range(4):
                places.enter_context(engine.admit())
            with pytest.raises(Overloaded) as caught, engine.admit():
                pass
        assert caught.value.retry_after is not None
        return caught.value.retry_after

    async def one() -> float:
        async for event in engine.answer(answer(model, queue.Queue(), 100)):
            if isinstance(event, AnswerFinished):
                return event.seconds
        raise AssertionError("it has no end")

    assert refused() == 40, "four times what is usual, which nobody knows yet"
    engine.start()
    try:
        start = time.perf_counter()
        took = await asyncio.gather(*(one() for _ in range(4)))
        assert 0 < sum(took) <= time.perf_counter() - start
        assert engine.typical_seconds == sum(took) / 4
        assert refused() == math.ceil(sum(took))
    finally:
        await engine.stop()


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_suspended_answer_continues_where_it_was(model, penalty: float) -> None:
    """A background answer that gives its place to another one generates the same text, and leaves the same state."""
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    runner.start()
    try:
        ends: list[AnswerFinished] = []
        for interrupted in (False, True):
            events: queue.Queue = queue.Queue()
            request = answer(model, events, 3 * model.memory.segment_length)
            request.background = True
            request.params = request.params.model_copy(update={"repetition_penalty": penalty})
            runner.submit(request)
            if interrupted:
                for _ in range(4):
                    events.get(timeout=30)
                    other: queue.Queue = queue.Queue()
                    runner.submit(answer(model, other, 2))
                    assert isinstance(last(other), AnswerFinished)
                    assert events.empty() or not isinstance(events.queue[-1], AnswerFinished), "it went first"
            end = last(events)
            assert isinstance(end, AnswerFinished)
            ends.append(end)
        alone, suspended = ends
        assert (suspended.text, suspended.tokens, suspended.open) == (alone.text, alone.tokens, alone.open)
        assert suspended.state.digest() == alone.state.digest()
    finally:
        runner.stop()


async def test_a_task_in_the_background_waits_for_others_and_takes_no_place_in_the_queue(model) -> None:
    engine = Engine(model, max_streams=1, max_queued=0, reading_share=0.3, max_stall=0.1)
    ended: list[str] = []

    async def one(name: str) -> None:
        with engine.admit():
            async for event in engine.answer(answer(model, queue.Queue(), 20)):
                if isinstance(event, AnswerFinished):
                    ended.append(name)

    with background_priority():
        behind = [asyncio.create_task(one("behind")) for _ in range(3)]
    first = asyncio.create_task(one("first"))
    await asyncio.sleep(0)  # all of them have begun
    assert engine.admitted == 4
    with pytest.raises(Overloaded), engine.admit():
        pass
    engine.start()
    try:
        await asyncio.gather(first, *behind)
        assert ended == ["first", "behind", "behind", "behind"]
        assert engine.admitted == 0
    finally:
        await engine.stop()
