"""The device thread survives what goes wrong in one batch, and tells everybody."""

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
from everlong_models.kernels.pause import pause
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.event_loop_bridge import EventLoopBridge
from everlong_server.engine.device.requests import Answer, Delta, Failed, Finished, Read
from everlong_server.engine.device.runner import Runner
from everlong_server.errors import Overloaded


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path):
    return load_model(str(tiny_model), models_dir=tmp_path)


def answer(model: Any, events: queue.Queue, tokens: int, open: list[int] | None = None) -> Answer:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return Answer(model.memory.initial_state(1), open or [], [5, 6, 7], params, 0, events.put)


def last(events: queue.Queue) -> Finished | Failed:
    while isinstance(event := events.get(timeout=30), Delta):
        pass
    return event


@pytest.mark.parametrize("method", ["open", "step", "read"])
def test_an_error_in_the_batch_ends_its_answers_and_nothing_else(model, monkeypatch, method: str) -> None:
    runner = Runner(model, max_streams=4, reading_share=0.3, max_stall=0.1)
    runner.start()
    real, calls = getattr(model.memory, method), [0]

    def fails_once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == (3 if method == "open" else 1):  # at a segment's border, with two rows in the batch
            raise MemoryError("no room")
        return real(*args)

    try:
        monkeypatch.setattr(model.memory, method, fails_once)
        events: list[queue.Queue] = [queue.Queue(), queue.Queue()]
        for q in events:
            runner.submit(answer(model, q, 200))
        ends = [last(q) for q in events]
        assert any(isinstance(end, Failed) and isinstance(end.error, MemoryError) for end in ends)
        again: queue.Queue = queue.Queue()
        runner.submit(answer(model, again, 3))
        assert isinstance(last(again), Finished)
        assert runner.dead is None
    finally:
        runner.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_has_failed_ends_the_engine(model, monkeypatch) -> None:
    """Nothing more can be computed on it: a server that went on would fail every answer and every document."""
    runner = Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1)

    def broken(*args: Any) -> Any:
        raise torch.AcceleratorError("device-side assert triggered")

    monkeypatch.setattr(model.memory, "step", broken)
    events: queue.Queue = queue.Queue()
    runner.submit(answer(model, events, 10))
    runner.start()
    assert isinstance(last(events), Failed)
    runner.stop()
    assert isinstance(runner.dead, torch.AcceleratorError)


def test_where_segments_have_no_room_side_by_side_fewer_are_read(model, monkeypatch) -> None:
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
        runner.submit(Read(memory.initial_state(1), text, sink.put))
    runner.start()
    try:
        assert [sink.get(timeout=30).digest() for sink in ends] == expected
    finally:
        runner.stop()
    assert rows[:5] == [5, 2, 3, 1, 2], "halves, and halves of these"
    assert max(rows[5:]) == 1, "and not tried again"


class Loop:
    """What `EventLoopBridge` wants of an event loop, on the thread that wakes it."""

    def __init__(self) -> None:
        self.came: list[list[Any]] = []
        """Of each time that it was woken."""

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        self.came.append([])
        call(*arguments)

    def call_soon(self, call: Callable[[Any], None], argument: Any) -> None:
        self.came[-1].append(argument)
        call(argument)


def test_what_a_step_says_is_posted_together_once_it_computes(model, monkeypatch) -> None:
    post, loop, real, rows = EventLoopBridge(), Loop(), model.memory.step, []

    def step(cache: Cache, tokens: torch.Tensor) -> torch.Tensor:
        before = len(loop.came)
        pause()
        assert len(loop.came) == before + 1
        assert sum(isinstance(event, Delta) for event in loop.came[-1]) >= len(tokens)  # and of who ended with it
        rows.append(len(tokens))
        return real(cache, tokens)

    monkeypatch.setattr(model.memory, "step", step)
    runner = Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1, post=post)
    events: list[queue.Queue] = [queue.Queue(), queue.Queue()]
    for q in events:
        work = answer(model, q, 9)
        work.sink = partial(post.put, loop, q.put)  # type: ignore[arg-type]
        runner.submit(work)
    runner.start()
    try:
        ends = [last(q) for q in events]
        assert [isinstance(end, Finished) for end in ends] == [True, True], ends
        assert rows.count(2) >= 7
    finally:
        runner.stop()


def test_a_cancelled_answer_that_cannot_end_harms_no_other(model) -> None:
    runner = Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1)
    heard: queue.Queue = queue.Queue()

    def deaf(event: Any) -> None:
        heard.put(event)
        if isinstance(event, Finished):
            raise OSError("nobody listens")

    other: queue.Queue = queue.Queue()
    bad, good = answer(model, queue.Queue(), 1_000_000), answer(model, other, 150)
    bad.sink = deaf
    try:
        runner.submit(bad)
        runner.submit(good)
        runner.start()
        assert isinstance(other.get(timeout=30), Delta)
        bad.cancelled = True
        assert isinstance(last(heard), Finished)
        assert isinstance(heard.get(timeout=30), Failed)
        assert isinstance(last(other), Finished)
        assert runner.dead is None
    finally:
        runner.stop()


def test_stop_fails_what_is_unfinished_and_what_comes_late(model) -> None:
    runner = Runner(model, max_streams=4, reading_share=0.3, max_stall=0.1)
    runner.start()
    events: queue.Queue = queue.Queue()
    runner.submit(answer(model, events, 1_000_000))
    assert isinstance(events.get(timeout=30), Delta)
    runner.stop()
    assert isinstance(last(events), Failed)
    late: queue.Queue = queue.Queue()
    runner.submit(answer(model, late, 1))
    assert isinstance(last(late), Failed)


def test_an_answer_that_looks_at_the_newest_alone_leaves_the_state_whole(tiny_model: Path, tmp_path: Path) -> None:
    """Over segment borders: what the prompt and the answer put into the window stays in sight."""
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
            runner.submit(Answer(state, [9, 9], prompt, params, 0, events.put, newest, by_itself))
            ends.append(last(events))
        whole, alone, all_of_it, anew = ends
        assert all_of_it.state.digest() == whole.state.digest()
        assert all_of_it.open == whole.open
        # Again by hand: the backbone over sinks, prompt and answer.
        for end, seen in ((alone, [*text[0, :4].tolist(), 9, 9]), (anew, [])):
            context, drawn = [*seen, *prompt], []
            for _ in range(4):
                drawn.append(int(model.memory.backbone.logits(memory.backbone.hidden(
                    memory.backbone.embed(torch.tensor([context + drawn])), keep=1))[0, -1].argmax()))  # fmt: skip
            kept = [*memory.kept_tokens(end.state), *end.open]
            assert kept[-12:-8] == drawn
            behind = [*text[0].tolist(), 9, 9, *prompt]
            assert kept[:-12] == behind[-len(kept[:-12]) :], "what was not looked at is in the window all the same"
            assert len(kept) > 34
    finally:
        runner.stop()


def test_nothing_is_encoded_anew_at_a_border_of_the_window(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows, over borders at different steps; while all is in sight, their words are the backbone's own. Behind that,
    they are what each says without the others."""
    options = {"segment_length": 16, "sinks": 4, "window": 64}
    exact = {"quantize": False, "bfloat16": False}
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options, **exact)
    memory, runner = model.memory, Runner(model, max_streams=3, reading_share=0.3, max_stall=0.1)
    opened, real = [], memory.open
    monkeypatch.setattr(memory, "open", lambda state, tokens: opened.append(tokens.shape[1]) or real(state, tokens))
    lengths = (3, 9, 15)

    def answered(tokens: int, lengths: Sequence[int] = lengths) -> list[Finished]:
        waiting: list[queue.Queue] = []
        for length in lengths:
            waiting.append(queue.Queue())
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
            runner.submit(Answer(memory.initial_state(1), [], list(range(20, 20 + length)), params, 0, waiting[-1].put))
        return [end for end in map(last, waiting) if isinstance(end, Finished)]

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
        # Of 68 tokens of sinks and window the borders at 80, 96 and 112 let something go.
        together = answered(100)
        assert sorted(opened) == [*lengths]
        for length, end in zip(lengths, together, strict=True):
            (alone,) = answered(100, [length])
            assert (end.text, end.state.digest(), end.open) == (alone.text, alone.state.digest(), alone.open)
            assert int(end.state["seen"]) == (length + 100) // 16 * 16
    finally:
        runner.stop()


def test_a_border_that_fails_ends_its_own_answer_only(
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
            runner.submit(Answer(memory.initial_state(1), [], prompt, params, 0, waiting[-1].put))
        one, failed, other = map(last, waiting)
    finally:
        runner.stop()
    assert isinstance(failed, Failed)
    assert str(failed.error) == "no room"
    assert isinstance(one, Finished)
    assert isinstance(other, Finished)
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
    item = Answer(state, [9, 8], prompt, params, 0, events.put, newest, alone)
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    runner.submit(item)
    runner.start()
    end = last(events)
    runner.stop()
    assert isinstance(end, Finished)
    drawn = [*model.memory.kept_tokens(end.state), *end.open][-1]
    seen = [] if alone else [*text[-min(newest, 32) :], 9, 8] if newest else [9, 8] if newest == 0 else [*text, 9, 8]
    assert item.sampler is not None
    assert set(item.sampler._seen.nonzero()[:, 0].tolist()) == {*seen, *prompt, drawn}


@pytest.mark.parametrize("stall", [0.0, 1e9])
def test_answers_go_on_in_the_middle_of_a_segment_that_is_read(model, monkeypatch, stall: float) -> None:
    """Between its layers, if they have waited for long enough; what is read and what is answered stays the same."""
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

    def run(*, beside: bool) -> Finished:
        runner = Runner(model, max_streams=2, reading_share=0.9, max_stall=stall)
        answers: queue.Queue = queue.Queue()
        states: queue.Queue = queue.Queue()
        runner.submit(answer(model, answers, S - 4))
        if beside:
            runner.submit(Read(memory.initial_state(1), text, states.put))
        runner.start()  # the prompt is read first, and then the text's first segment
        try:
            end = last(answers)
            if beside:
                assert states.get(timeout=30).digest() == expected.digest()
            assert isinstance(end, Finished)
            return end
        finally:
            runner.stop()

    alone = run(beside=False)
    monkeypatch.setattr(memory, "read", read)
    monkeypatch.setattr(memory, "step", step)
    beside = run(beside=True)
    assert (beside.open, beside.text) == (alone.open, alone.text)
    assert (steps_inside[0] > 0) == (stall == 0.0)


def test_what_was_said_of_a_cancelled_answer_is_the_beginning_of_the_whole(model) -> None:
    """Also in the middle of a character, or of what may become a stop string."""
    params = SamplingParams(temperature=1, max_tokens=24, ignore_eos=True, stop=("no such words",))
    state = model.memory.initial_state(1)
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    runner.start()

    def run(most: int | None) -> tuple[str, Finished]:
        events: queue.Queue = queue.Queue()
        said: list[str] = []
        item = Answer(state, [], [5, 6, 7], params, 3, events.put)

        def sink(event: Delta | Finished | Failed) -> None:
            if isinstance(event, Delta):
                said.append(event.text)
                item.cancelled = len(said) == most
            else:
                events.put(event)

        item.sink = sink
        runner.submit(item)
        finished = events.get(timeout=30)
        assert isinstance(finished, Finished)
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
        runner.submit(Read(memory.initial_state(1), text, lambda state, number=number: ended.put(number), owner))
    runner.start()
    try:
        assert [ended.get(timeout=30) for _ in range(4)] == [3, 0, 1, 2]
    finally:
        runner.stop()


async def test_a_look_at_one_tenants_memory_does_not_wait_for_all_of_anothers(model) -> None:
    engine = Engine(model, max_streams=1, max_queued=1, reading_share=0.5, max_stall=0.1)
    ended = []

    async def look(number: int) -> None:
        await engine.look(model.memory.initial_state(1), [5, 6], 0, "one" if number == 3 else "many")
        ended.append(number)

    async with asyncio.TaskGroup() as looks:
        for number in range(4):
            looks.create_task(look(number))
        await asyncio.sleep(0)  # until all are handed in
        engine.start()
    await engine.stop()
    assert ended == [0, 3, 1, 2]


@pytest.mark.parametrize("rows", [2, 7, 32])
def test_segments_that_are_read_side_by_side_give_the_states_of_those_read_alone(model, monkeypatch, rows: int) -> None:
    """Documents of 1 to 5 segments that come and go, and answers' prompts among them."""
    memory, S = model.memory, model.memory.segment_length
    texts = [torch.arange(S * (1 + n % 5)) * (n + 3) % 250 + 5 for n in range(rows)]
    prompt = [(7 * n) % 250 + 5 for n in range(2 * S + 20)]
    together: list[int] = []
    real = memory.read

    def read(tokens: torch.Tensor, state: Any) -> Any:
        together.append(len(tokens))
        return real(tokens, state)

    monkeypatch.setattr(memory, "read", read)

    def run(at_once: int) -> tuple[list[Any], Finished]:
        runner = Runner(model, max_streams=1, reading_share=0.5, max_stall=0.1, reading_rows=at_once)
        states: list[queue.Queue] = [queue.Queue() for _ in texts]
        events: queue.Queue = queue.Queue()
        for text, sink in zip(texts, states, strict=True):
            runner.submit(Read(memory.initial_state(1), text, sink.put))
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        runner.submit(Answer(memory.initial_state(1), [9, 8], prompt, params, 0, events.put))
        runner.start()
        try:
            end = last(events)
            assert isinstance(end, Finished)
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


def test_one_damaged_state_does_not_harm_what_is_read_beside_it(model) -> None:
    memory, S = model.memory, model.memory.segment_length
    good = memory.initial_state(1)
    bad = MemoryState({name: torch.full_like(tensor, torch.nan) for name, tensor in good.tensors.items()})
    runner = Runner(model, max_streams=1, reading_share=0.5, max_stall=0.1, reading_rows=4)
    ends: list[queue.Queue] = [queue.Queue() for _ in range(3)]
    for state, sink in zip((good, bad, good), ends, strict=True):
        runner.submit(Read(state, torch.arange(2 * S) + 5, sink.put))
    runner.start()
    try:
        first, failed, third = (sink.get(timeout=30) for sink in ends)
    finally:
        runner.stop()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StateNotFinite)
    assert first.digest() == third.digest()


@pytest.mark.parametrize(("rows", "dtype"), [(2, torch.float32), (7, torch.float32), (32, torch.float64)])
def test_what_an_answer_leaves_does_not_depend_on_the_answers_beside_it(
    tiny_model: Path, tmp_path: Path, rows: int, dtype: torch.dtype
) -> None:
    """The same tokens, and bit for bit the same state: it is what reading them gives, whatever the batch. Rows come and go.

    The last bits of logits do depend on the batch. In float32 that turns one greedy choice in some thousands of a model with
    random weights, which finds many tokens equally likely."""
    model = load_model(str(tiny_model), models_dir=tmp_path, dtype=dtype)
    S = model.memory.segment_length
    prompts = [list(range(5 + n, 25 + (7 * n) % (S - 25) + n)) for n in range(rows)]
    lengths = [S // 2 + (n * S) // 12 for n in range(rows)]

    def run(at_once: int) -> list[Finished]:
        runner, ends = Runner(model, max_streams=at_once, reading_share=0.3, max_stall=0.1), []
        for begin in range(0, len(prompts), at_once):
            events: list[queue.Queue] = []
            for prompt, length in list(zip(prompts, lengths, strict=True))[begin : begin + at_once]:
                events.append(queue.Queue())
                state = model.memory.initial_state(1)
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                runner.submit(Answer(state, [], prompt, params, 0, events[-1].put))
            if begin == 0:
                runner.start()  # with all of them at hand
            ends += [last(q) for q in events]
        runner.stop()
        return ends

    alone, together = run(1), run(len(prompts))
    assert [end.open for end in together] == [end.open for end in alone]
    assert [end.state.digest() for end in together] == [end.state.digest() for end in alone]


def run_while_it_reads(memory: Any, monkeypatch: pytest.MonkeyPatch, run: Callable[[], list[Any]]) -> list[Any]:
    """What `run` gives: the same if others' steps are counted while a segment goes into the memory, of which there are some;
    where it cannot be read, the first answer fails, and no other."""
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
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MemoryError)
    assert (other.open, other.text) == (expected[1].open, expected[1].text)
    return expected


def test_answers_go_on_while_anothers_segment_goes_into_its_memory(model, monkeypatch) -> None:
    S = model.memory.segment_length

    def run() -> list[Finished | Failed]:
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
def test_answers_go_on_while_another_ends_at_a_segments_border(model, monkeypatch, reason: str) -> None:
    S = model.memory.segment_length
    most = S - S // 2 - 3

    def run(answers: int = 2) -> list[Finished | Failed]:
        runner = Runner(model, max_streams=2, reading_share=0.1, max_stall=0.0)
        events: list[queue.Queue] = [queue.Queue() for _ in range(answers)]
        item = answer(model, events[0], most if reason == "length" else S, open=[9] * (S // 2))
        said: list[Delta] = []

        def sink(event: Delta | Finished | Failed) -> None:
            events[0].put(event)
            said.extend([event] if isinstance(event, Delta) else [])
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
    assert isinstance(first, Finished)
    assert (first.reason, first.tokens, first.open) == (reason, most, [])
    assert (alone.open, alone.text, alone.state.digest()) == (first.open, first.text, first.state.digest())


async def test_who_is_turned_away_is_told_when_a_place_will_be_free(model) -> None:
    """Answers that wait for each other are not taken for answers that take long."""
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
            if isinstance(event, Finished):
                return event.seconds
        raise AssertionError("it has no end")

    assert refused() == 40, "four times what is usual, which nobody knows yet"
    engine.start()
    try:
        start = time.perf_counter()
        took = await asyncio.gather(*(one() for _ in range(4)))
        assert 0 < sum(took) <= time.perf_counter() - start
        assert engine.usual_seconds == sum(took) / 4
        assert refused() == math.ceil(sum(took))
    finally:
        await engine.stop()
