"""Whose turn it is on the device thread: answers step while another reads, tenants take turns, the background waits."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch

from everlong_models.backbone.cache import Cache
from everlong_models.kernels.yield_point import yield_point
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.priority import background_priority
from everlong_server.engine.device.requests import AnswerFinished, PrefillRequest, RequestFailed
from everlong_server.engine.device.runner import Runner
from everlong_server.errors import Overloaded
from tests.server.engine.device.conftest import answer, last


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
    loop, real, rows = Loop(), model.memory.step, []

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
    runner = Runner(model, max_streams=2, reading_share=0.3, max_stall=0.1)
    events: list[queue.Queue] = [queue.Queue(), queue.Queue()]
    for q in events:
        work = answer(model, q, 9)
        work.sink = partial(runner.bridge.call_soon, loop, q.put)  # type: ignore[arg-type]
        runner.submit(work)
    runner.start()
    try:
        ends = [last(q) for q in events]
        assert [isinstance(end, AnswerFinished) for end in ends] == [True, True], ends
        assert rows.count(2) >= 7
    finally:
        runner.stop()


@pytest.mark.parametrize("stall", [0.0, 1e9])
def test_answers_are_stepped_during_the_prefill_of_a_segment(model, monkeypatch, stall: float) -> None:
    """Between its layers, if a step is due. The state and the answers stay the same."""
    memory, S = model.memory, model.memory.segment_length
    text = torch.randint(5, 500, (4 * S,), generator=torch.Generator().manual_seed(0))
    expected = memory.read(text[None], memory.initial_state(1))
    real_read, real_step, inside, stepped = memory.read, memory.step, [False], threading.Event()

    def read(tokens: torch.Tensor, state: Any) -> Any:
        inside[0] = True
        try:
            after = real_read(tokens, state)
            if stall == 0.0:
                stepped.wait(30)  # a tiny segment is read so fast that no step may fall into it
            return after
        finally:
            inside[0] = False

    def step(*args: Any) -> Any:
        if inside[0]:
            stepped.set()
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
    assert stepped.is_set() == (stall == 0.0)


def test_one_document_of_a_tenant_does_not_wait_for_all_of_anothers(model) -> None:
    memory, ended = model.memory, queue.Queue()
    text = torch.arange(5, 5 + 2 * memory.segment_length)
    runner = Runner(model, max_streams=2, reading_share=0.5, max_stall=0.1)
    for number in range(4):
        owner = "one" if number == 3 else "many"
        runner.submit(
            PrefillRequest(memory.initial_state(1), text, lambda state, number=number: ended.put(number), owner=owner)
        )
    runner.start()
    try:
        assert [ended.get(timeout=30) for _ in range(4)] == [3, 0, 1, 2]
    finally:
        runner.stop()


async def test_a_memory_view_of_one_tenant_does_not_wait_for_all_documents_of_another(model) -> None:
    engine = Engine(Runner(model, max_streams=1, reading_share=0.5, max_stall=0.1), max_queued=1)
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


def run_while_it_reads(memory: Any, monkeypatch: pytest.MonkeyPatch, run: Callable[[], list[Any]]) -> list[Any]:
    """Return the results of `run`, after checks: other answers are stepped while a segment is committed, with the same results;
    if the segment cannot be read, the first answer fails and no other."""
    real_read, real_step, inside, stepped = memory.read, memory.step, [False], threading.Event()

    def read(tokens: torch.Tensor, state: Any) -> Any:
        inside[0] = True
        try:
            after = real_read(tokens, state)
            stepped.wait(30)  # a tiny segment is read so fast that no step may fall into it
            return after
        finally:
            inside[0] = False

    def no_read(tokens: torch.Tensor, state: Any) -> Any:
        raise MemoryError("no room")

    def step(*args: Any) -> Any:
        if inside[0]:
            stepped.set()
        return real_step(*args)

    expected = run()
    monkeypatch.setattr(memory, "read", read)
    monkeypatch.setattr(memory, "step", step)
    for end, before in zip(run(), expected, strict=True):
        assert (end.open, end.text, end.state.digest()) == (before.open, before.text, before.state.digest())
    assert stepped.is_set()
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
    engine = Engine(Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1), max_queued=3)

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
        rewriting = answer(model, queue.Queue(), 2)
        rewriting.auxiliary = True
        assert isinstance([event async for event in engine.answer(rewriting)][-1], AnswerFinished)
        assert engine.typical_seconds == sum(took) / 4, "what prepares an answer is none"
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
    engine = Engine(Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1), max_queued=0)
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
