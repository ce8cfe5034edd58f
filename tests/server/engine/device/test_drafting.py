"""Answers whose next tokens are guessed are those of single steps: text, memory, log-probabilities, whoever else is in the batch."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models import MEMORIES, GrammarCompiler, Model, SamplingParams, SegmentReader, load_model
from everlong_models.kernels.cpu.quantised_matrix import GROUP, can_quantise
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.drafting import Drafting
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, PrefillRequest, RequestFailed
from everlong_server.engine.device.runner import Runner
from tests.server.engine.device.conftest import eager

OF = Drafting.of
QUANTISES = can_quantise(torch.zeros(16, GROUP))
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"enum": ["Alice", "Alina"]}, "minItems": 3, "maxItems": 5}},
    "required": ["names"],
    "additionalProperties": False,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 100, "ignore_eos": True},
    "log-probabilities": {"temperature": 0, "max_tokens": 60, "logprobs": True, "top_logprobs": 2, "ignore_eos": True},
    "sampled": {"temperature": 0.5, "top_p": 0.9, "max_tokens": 90, "ignore_eos": True, "seed": 3},
    "all tokens": {"temperature": 1.0, "top_p": 1, "max_tokens": 40, "ignore_eos": True},
    "few tokens": {"temperature": 1.0, "logit_bias": {40: 20.0, 41: 20.0}, "max_tokens": 70, "ignore_eos": True},
    "penalties": {"temperature": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.05, "max_tokens": 50, "ignore_eos": True},
    "loop": {"temperature": 0, "logit_bias": {40: 100.0}, "max_tokens": 200},
    "stop string": {"temperature": 0, "max_tokens": 120, "stop": ("e", "a"), "ignore_eos": True},
    "short": {"temperature": 0, "max_tokens": 2, "ignore_eos": True},
    "grammar": {"temperature": 0, "max_tokens": 60},
}  # fmt: skip
MEMORY_OPTIONS = {"window": {"sinks": 4, "window": 64}, "rmt": {"memory_tokens": 4}, "compact": {"entries": 24}}


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafting, "of", eager)


def load(tiny_model: Path, tmp_path: Path, memory: str, **how: Any) -> Model:
    options = {"segment_length": 24} | MEMORY_OPTIONS.get(memory, {})
    return load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory=memory, options=options, **how)


def requests(model: Model) -> dict[str, AnswerRequest]:
    """One answer of each kind. Their prompts repeat themselves and are shorter and longer than a segment."""
    grammar = GrammarCompiler(model.tokenizer, model.memory.vocab_size).json(SCHEMA)
    made = {}
    for number, (name, params) in enumerate(ANSWERS.items()):
        prompt = [*range(30, 36 + 5 * number), *range(30, 33)]
        request = AnswerRequest(
            model.memory.initial_state(1), [9, 8][: number % 3], prompt, SamplingParams(**params), number,
            lambda event: None, grammar=grammar if name == "grammar" else None,
        )  # fmt: skip
        made[name] = request
    return made


def answered(
    model: Model, names: list[str], draft_tokens: int, at_once: int
) -> tuple[dict[str, tuple[list[TokenDelta], AnswerFinished]], dict[str, AnswerRequest]]:
    """Return the events of each answer, and the requests. A document is read meanwhile."""
    runner = Runner(model, max_streams=at_once, reading_share=0.3, max_stall=0.0, draft_tokens=draft_tokens)
    asked, ends = requests(model), {}
    document: queue.Queue = queue.Queue()
    runner.submit(PrefillRequest(model.memory.initial_state(1), torch.arange(30, 30 + 96), document.put))
    for name in names:
        ends[name] = queue.Queue()
        asked[name].sink = ends[name].put
        runner.submit(asked[name])
    runner.start()
    try:
        results = {}
        for name, events in ends.items():
            deltas: list[TokenDelta] = []
            while isinstance(event := events.get(timeout=60), TokenDelta):
                deltas.append(event)
            assert isinstance(event, AnswerFinished), event
            results[name] = deltas, event
        assert not isinstance(document.get(timeout=60), RequestFailed)
        return results, asked
    finally:
        runner.stop()


def assert_same(
    found: tuple[list[TokenDelta], AnswerFinished], expected: tuple[list[TokenDelta], AnswerFinished]
) -> None:
    (deltas, end), (other_deltas, other) = found, expected
    assert (end.text, end.reason, end.open, end.tokens, end.stop) == (
        other.text, other.reason, other.open, other.tokens, other.stop,
    )  # fmt: skip
    assert end.state.digest() == other.state.digest()
    assert deltas == other_deltas


@pytest.mark.skipif(not QUANTISES, reason="only quantised steps do not depend on other rows to the bit")
@pytest.mark.parametrize("memory", ["window", "rmt", "compact"])
@pytest.mark.parametrize("at_once", [1, 4])
def test_an_answer_with_guesses_is_that_without_bit_for_bit(
    tiny_model: Path, tmp_path: Path, memory: str, at_once: int
) -> None:
    model = load(tiny_model, tmp_path, memory)
    names = list(ANSWERS)
    expected, without = answered(model, names, 0, 1)
    found, asked = answered(model, names, 7, at_once)
    for name in names:
        assert_same(found[name], expected[name])
        assert found[name][1].drafted == asked[name].drafted >= found[name][1].accepted
    assert sum(each.drafted for each in without.values()) == 0
    for name in ("greedy", "few tokens", "loop", "grammar"):
        assert found[name][1].accepted > 0, name
    assert expected["loop"][1].reason == "repetition"
    assert found["greedy"][1].accepted < found["greedy"][1].drafted


@pytest.mark.parametrize("memory", ["window", "armt", "compact"])
def test_answers_with_guesses_in_float64_are_those_without(tiny_model: Path, tmp_path: Path, memory: str) -> None:
    model = load(tiny_model, tmp_path, memory, quantize=False, dtype=torch.float64)
    names = ["greedy", "sampled", "penalties", "grammar"]
    expected, _ = answered(model, names, 0, 1)
    found, _ = answered(model, names, 3, 3)
    for name in names:
        one, other = found[name][1], expected[name][1]
        assert (one.text, one.open, one.reason) == (other.text, other.open, other.reason)
        for tensor, near in zip(one.state.tensors.values(), other.state.tensors.values(), strict=True):
            torch.testing.assert_close(tensor, near, rtol=1e-9, atol=1e-9)
    assert sum(found[name][1].accepted for name in names) > 0


def test_an_answer_cancelled_among_guesses_keeps_the_tokens_until_then(tiny_model: Path, tmp_path: Path) -> None:
    model, ends = load(tiny_model, tmp_path, "window"), []
    for draft_tokens in (0, 7):
        runner = Runner(model, max_streams=1, reading_share=0.3, max_stall=0.1, draft_tokens=draft_tokens)
        request, said, end = requests(model)["greedy"], [], queue.Queue()

        def sink(event: Any, request=request, said=said, end=end) -> None:
            said.append(event)
            request.cancelled = len(said) == 40
            if not isinstance(event, TokenDelta):
                end.put(event)

        request.sink = sink
        runner.submit(request)
        runner.start()
        ends.append(end.get(timeout=60))
        runner.stop()
    one, other = ends
    assert one.reason == other.reason == "cancelled"
    assert one.tokens == 40
    assert (one.tokens, one.text, one.open, one.state.digest()) == (
        other.tokens, other.text, other.open, other.state.digest(),
    )  # fmt: skip
    assert other.accepted > 0


def test_a_memory_that_cannot_rewind_gets_no_guesses(tiny_model: Path, tmp_path: Path) -> None:
    model = load(tiny_model, tmp_path, "infinite")
    assert not model.memory.can_rewind
    _, asked = answered(model, ["greedy"], 7, 1)
    assert (asked["greedy"].drafted, asked["greedy"].lookup) == (0, None)


def test_which_memories_can_rewind() -> None:
    """Each of these has its laws checked by tests/models/memory_contract.py."""
    own = {name: kind.build.can_rewind for name, kind in MEMORIES.items() if isinstance(kind.build, type)}
    assert own.keys() == MEMORIES.keys()
    can = {name for name, value in own.items() if value is not SegmentReader.can_rewind}
    assert can == {"window", "compact", "rmt", "armt"}


def test_the_positions_of_a_step_are_limited(tiny_model: Path, tmp_path: Path) -> None:
    """By the guesses of an answer, the room in the fullest segment, all positions of the batch, and the end of the answers."""
    answers = list(requests(load(tiny_model, tmp_path, "window")).values())[:3]
    drafting = Drafting(7, 0.0, 16)
    for answer in answers:
        answer.params = SamplingParams(max_tokens=50)
        drafting.begin(answer)
        assert answer.lookup is not None
        assert answer.lookup.matched == 3
    assert drafting.width(answers[:1], room=24) == 8
    assert Drafting(3, 0.0, 16).width(answers[:1], room=24) == 4
    assert [drafting.width(answers[:1], room=room) for room in (1, 2, 3, 4)] == [1, 2, 2, 4]
    assert drafting.width(answers[:2], room=24) == 8
    assert drafting.width(answers, room=24) == 4
    for generated, width in ((45, 8), (47, 4), (48, 2), (49, 1)):
        answers[0].generated = generated
        assert drafting.width(answers[:1], room=24) == width, "after the last token no step is needed"


def test_guesses_can_be_turned_off() -> None:
    assert OF(0, on_cpu=True) is OF(0, on_cpu=False) is None
    for on_cpu in (True, False):
        assert (drafting := OF(5, on_cpu=on_cpu)) is not None
        assert drafting.most == 5
