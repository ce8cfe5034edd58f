"""The device thread on a GPU, real or simulated (see `pretended`), produces the results of a CPU."""

from __future__ import annotations

import logging
import queue
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_lab.benchmarks import flat
from everlong_lab.benchmarks import prefill as read
from everlong_models import MEMORIES, GrammarCompiler, Model, SamplingParams, load_model
from everlong_server.engine.device import runner as running
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.drafting import Drafting
from everlong_server.engine.device.requests import (
    AnswerFinished,
    AnswerRequest,
    MemoryViewRequest,
    PrefillRequest,
    RequestFailed,
)
from everlong_server.engine.device.runner import Runner
from tests.models.fake_gpu import DEVICE, GPU, REAL, Graphs, gpu
from tests.server.engine.device.conftest import eager

pytestmark = pytest.mark.long

PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=True, top_logprobs=3),
    SamplingParams(
        temperature=1, top_p=0.9, max_tokens=30, ignore_eos=True, repetition_penalty=1.2, presence_penalty=0.5
    ),
    SamplingParams(temperature=1, top_k=7, min_p=0.01, max_tokens=26, ignore_eos=True, logit_bias={5: 2.0}),
    SamplingParams(temperature=1.3, max_tokens=8, ignore_eos=True),
    SamplingParams(temperature=0.7, max_tokens=6),
]


class OnGPU(Runner):
    def _run(self) -> None:
        with GPU():
            super()._run()


def served(model: Model, kind: type[Runner], draft_tokens: int) -> tuple[dict[str, Any], Runner]:
    """Run answers of every kind, a batch of documents and a memory view at the same time."""
    memory = model.memory
    S, start = memory.segment_length, memory.initial_state(1).to("cpu")
    runner = kind(model, max_streams=8, reading_share=0.5, max_stall=0.1, reading_rows=3, draft_tokens=draft_tokens)
    ends: dict[str, queue.Queue] = {}

    def submit(name: str, make: Any) -> None:
        ends[name] = queue.Queue()
        runner.submit(make(ends[name].put))

    for number, params in enumerate(PARAMS):
        prompt = list(range(5, 5 + (S + 10 if number == 1 else 6)))
        submit(
            f"answer {number}",
            lambda sink, params=params, n=number, prompt=prompt: AnswerRequest(
                start, [1, 2, 3], prompt, params, n, sink
            ),
        )
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = GrammarCompiler(model.tokenizer, memory.vocab_size).json(schema)
    submit(
        "json", lambda sink: AnswerRequest(start, [], [7, 8], SamplingParams(max_tokens=30), 9, sink, grammar=grammar)
    )
    for number in range(3):
        text = torch.randint(5, 500, (3 * S,), generator=torch.Generator().manual_seed(number))
        submit(f"document {number}", lambda sink, text=text: PrefillRequest(start, text, sink))
    submit("look", lambda sink: MemoryViewRequest(start, [3, 4], 0, sink))
    runner.start()
    try:
        results = {}
        for name, sink in ends.items():
            while isinstance(event := sink.get(timeout=60), TokenDelta):
                results.setdefault(f"{name}, likely", []).append(event.logprobs)
            assert not isinstance(event, RequestFailed), event.error
            results[name] = event
        return results, runner
    finally:
        runner.stop()


@pytest.mark.parametrize("memory", ["rmt", "window", "infinite"])
def test_what_a_gpu_serves_is_what_a_cpu_serves(
    tiny_model: Path, tmp_path: Path, monkeypatch, caplog, memory: str
) -> None:
    how: dict[str, Any] = {"models_dir": tmp_path, "dtype": torch.float64, "quantize": False, "memory": memory}
    how["options"] = {"segment_length": 24} | ({"sinks": 4, "window": 20} if memory == "window" else {})
    name = str(tiny_model / "backbone")
    expected, _ = served(load_model(name, **how), Runner, 0)
    monkeypatch.setattr(Drafting, "of", eager)
    with gpu(), caplog.at_level(logging.WARNING):
        monkeypatch.setattr(running, "CUDAGraphs", Graphs)
        there, runner = served(load_model(name, device=DEVICE, **how), OnGPU, 3)
        recorded = (
            runner._decode_batch._cached._graphs._graphs,
            runner._sampler._kernel._calls,
            runner._prefill_batch._graphs._read._calls,
        )
        assert [bool(graphs) for graphs in recorded] == [True, True, memory == "rmt"], (
            "steps, draws, segments where they can be"
        )
        widths = {width for _, width in recorded[0]}
        assert widths > {1} if memory in ("rmt", "window") else widths == {1}, (
            "steps with guesses, where they can be taken back"
        )
        assert all(graph is not None for graphs in recorded for graph in graphs.values())
    assert not caplog.records
    assert there.keys() == expected.keys()
    for key, result in expected.items():
        match result:
            case AnswerFinished():
                assert (there[key].text, there[key].open, there[key].tokens) == (
                    result.text,
                    result.open,
                    result.tokens,
                ), key
                states = there[key].state, result.state
            case list():
                assert [[each["token"] for each in likely] for likely in there[key]] == [
                    [each["token"] for each in likely] for likely in result
                ]
                continue
            case _ if key == "look":
                assert there[key] == result
                continue
            case _:
                states = there[key], result
        for one, tensor in states[1].tensors.items():
            # A real GPU computes float32 angles with other last bits.
            torch.testing.assert_close(states[0][one], tensor, rtol=0 if REAL else 1e-9, atol=1e-6 if REAL else 1e-9)


def test_benchmarks_run_there(monkeypatch) -> None:
    for module in (flat, read):
        monkeypatch.setattr(module, "CUDAGraphs", Graphs)
    monkeypatch.setattr(flat, "_QUICK", (500, 1_000, 1_500))
    monkeypatch.setattr(flat, "_ROUND", 2)
    monkeypatch.setattr(flat, "_FEWEST", 1)
    monkeypatch.setattr(flat, "_ROUNDS", 1)
    monkeypatch.setitem(read._PEAK_SIZES, "cuda", (64,))
    monkeypatch.setattr(
        read, "MEMORIES", {name: MEMORIES[name] for name in ("rmt", "armt")}
    )  # others take long without a GPU
    with gpu():
        report = flat.run(quick=True, progress=str, streams=(1, 64), device=str(DEVICE))
        told = [target.name for target in report.targets]
        assert "rmt: tokens/s of 64 streams ÷ of one" in told
        assert {row["streams"] for row in report.rows} == {1, 64}
        made = Graphs.made
        assert made == 5, "a segment, steps and draws of one and of 64"
        report = read.run(quick=True, progress=str, documents=(1, 2), device=str(DEVICE))
        assert "rmt around tiny: seconds for 1,000,000 tokens" in [target.name for target in report.targets]
        assert {row["documents"] for row in report.rows} == {1, 2}
        assert Graphs.made > made
