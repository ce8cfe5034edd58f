"""An answer that loops is cut where the loop begins: its text, its memory and its log-probabilities end there."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everlong_models import SamplingParams, load_model
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.engine.device.runner import Runner

SEGMENT = 16


@pytest.fixture(params=["window", "rmt"])
def model(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Any:
    options = {"window": {"sinks": 4, "window": 64}, "rmt": {"memory_tokens": 4}}[request.param]
    options = {"segment_length": SEGMENT} | options
    return load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory=request.param, options=options)


def letters(model: Any, count: int) -> list[int]:
    """Return different tokens, each of which is text of its own."""
    ids = [id for id in range(model.memory.vocab_size) if (text := model.tokenizer.decode([id])).isascii() and text]
    return ids[20 : 20 + count]


def answered(model: Any, tokens: list[int], **params: Any) -> tuple[list[TokenDelta], AnswerFinished, AnswerRequest]:
    """Return the events of an answer whose sampled tokens are `tokens`, and its request."""
    runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1)
    script: Iterator[int] = iter(tokens)
    runner._sampler.sample = lambda rows, fail: [(row, next(script)) for row in rows]  # type: ignore[method-assign]
    events: queue.Queue = queue.Queue()
    sampling = SamplingParams(temperature=0, logprobs=True, **{"max_tokens": len(tokens)} | params)
    item = AnswerRequest(model.memory.initial_state(1), [9, 8], list(range(20, 40)), sampling, 0, events.put)
    runner.start()
    try:
        runner.submit(item)
        deltas: list[TokenDelta] = []
        while isinstance(event := events.get(timeout=60), TokenDelta):
            deltas.append(event)
    finally:
        runner.stop()
    assert isinstance(event, AnswerFinished), event
    return deltas, event, item


@pytest.mark.parametrize("period", [1, 7, 40])
@pytest.mark.parametrize("before", [0, 3, 21])
def test_a_loop_is_taken_out_of_text_and_memory(model: Any, period: int, before: int) -> None:
    tokens = letters(model, before + period)
    beginning, passage = tokens[:before], tokens[before:]
    kept = [*beginning, *passage]
    deltas, end, item = answered(model, [*kept, *passage * 60], max_tokens=2000)
    assert end.reason == "repetition"
    assert end.tokens == len(kept)
    assert item.generated > len(kept)  # the device's work is charged
    text, whole, _ = answered(model, kept)
    assert end.text == whole.text == "".join(delta.text for delta in deltas)
    assert [d.logprobs for d in deltas if d.logprobs] == [d.logprobs for d in text if d.logprobs]
    assert (end.open, end.state.digest()) == (whole.open, whole.state.digest())
    assert whole.reason == "length"


def test_a_long_answer_keeps_no_more_states_than_held_tokens_need(model: Any) -> None:
    """Nearly every token of ordinary text repeats some token before it, so a token or more are held back at most times."""
    alphabet, rng = letters(model, 8), random.Random(0)
    tokens = [rng.choice(alphabet) for _ in range(20 * SEGMENT)]
    _, end, item = answered(model, tokens)
    assert (end.reason, end.tokens) == ("length", len(tokens))
    assert len(item.committed) <= 2


@pytest.mark.parametrize("how", [{"stop_repetition": False}, {"ignore_eos": True}])
def test_repetition_is_kept_on_request(model: Any, how: dict[str, bool]) -> None:
    _, end, _ = answered(model, letters(model, 1) * 150, **how)
    assert (end.reason, end.tokens) == ("length", 150)


def test_text_that_repeats_for_a_while_is_complete(model: Any) -> None:
    """The end of an answer releases what was held back."""
    refrain = letters(model, 30)
    for tokens in ([*refrain, *refrain], [*refrain, *refrain, 5, 6], [*refrain, *refrain[:9]]):
        deltas, end, _ = answered(model, tokens)
        assert (end.reason, end.tokens) == ("length", len(tokens))
        assert end.text == model.tokenizer.decode(tokens) == "".join(delta.text for delta in deltas)
