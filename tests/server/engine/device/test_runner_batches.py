"""The device thread gives the same answers and states in any batch: tokens, prompts and what an answer attends to."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models import SamplingParams, load_model
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, PrefillRequest
from everlong_server.engine.device.runner import Runner
from tests.server.engine.device.conftest import last


def test_an_answer_that_attends_to_few_kept_tokens_leaves_the_whole_state(tiny_model: Path, tmp_path: Path) -> None:
    """Across segments: the answer attends to the tokens that it and its prompt add to the window."""
    options = {"segment_length": 16, "sinks": 4, "window": 64}
    exact = {"quantize": False, "bfloat16": False}
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options, **exact)
    memory, runner = model.memory, Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    text = torch.randint(5, 500, (1, 48), generator=torch.Generator().manual_seed(0))
    state, prompt = memory.read(text, memory.initial_state(1)), list(range(20, 40))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    runner.start()
    try:
        ends = []
        for newest, own in ((None, None), (0, None), (48, None), (48, 0), (48, 7)):
            events: queue.Queue = queue.Queue()
            runner.submit(AnswerRequest(state, [9, 9], prompt, params, 0, events.put, newest, own))
            ends.append(last(events))
        whole, alone, all_of_it, anew, continued = ends
        assert all_of_it.state.digest() == whole.state.digest()
        assert all_of_it.open == whole.open
        # The expected tokens: the backbone over sinks, prompt and answer.
        own_tokens = [*text[0, -5:].tolist(), 9, 9]
        for end, seen in ((alone, [*text[0, :4].tolist(), 9, 9]), (anew, []), (continued, own_tokens)):
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
    opened, real = [], memory.open_recent

    def counted(state, tokens, *arguments, **options):
        opened.append(tokens.shape[1])
        return real(state, tokens, *arguments, **options)

    monkeypatch.setattr(memory, "open_recent", counted)
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


@pytest.mark.parametrize("length", [1, 14, 15, 40])
@pytest.mark.parametrize("newest", [None, 0, 5, 100])
@pytest.mark.parametrize("own", [None, 0, 1, 5, 100])
def test_a_repetition_is_one_of_all_that_the_answer_looks_at(tiny_model, tmp_path, length, newest, own) -> None:
    """Also of what has gone into the memory with the prompt's full segments; and of nothing else."""
    options = {"segment_length": 16, "sinks": 0, "window": 64}
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    text, prompt = list(range(100, 132)), list(range(20, 20 + length))
    state = model.memory.initial_state(1)
    for begin in (0, 16):
        state = model.memory.read(torch.tensor([text[begin : begin + 16]]), state)
    events: queue.Queue = queue.Queue()
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, repetition_penalty=1.5)
    item = AnswerRequest(state, [9, 8], prompt, params, 0, events.put, newest, own)
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    runner.submit(item)
    runner.start()
    end = last(events)
    runner.stop()
    assert isinstance(end, AnswerFinished)
    drawn = [*model.memory.kept_tokens(end.state), *end.open][-1]
    before = [*text, 9, 8]
    visible = len(before) if newest is None else min(newest, 32) + 2
    if own is not None:  # then `newest` does not matter
        visible = min(own, len(before))
    seen = before[len(before) - visible :]
    assert item.sampler is not None
    assert set(item.sampler._seen.nonzero()[:, 0].tolist()) == {*seen, *prompt, drawn}


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
