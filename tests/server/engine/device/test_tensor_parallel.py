"""A model that is spread over two processes (on a CPU, connected by gloo) gives the same answers as in one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Config

from everlong_models import MemoryState
from everlong_models.errors import ConfigError, TokenError
from everlong_models.kernels.yield_point import at_yield_points, yield_point
from everlong_models.parallel import Ranks, device_of
from everlong_server.engine.device.tensor_parallel import Workers
from tests.process import Server, wait_for
from tests.tinymodel import STORY, make_model, make_tokenizer

GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
OPTIONS = {
    "window": {"segment_length": 32, "sinks": 4, "window": 40},
    "compact": {"segment_length": 32, "entries": 40, "pinned": 4},
}
"""Memories that answers outgrow, so that keys and values are dropped."""


def folder_of(kind: str, target: Path, **changes: Any) -> Path:
    """Save a random model of this `model_type` and its tokenizer, and return their folder."""
    tokenizer = make_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(sizes | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)  # so that different states give different answers
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def workers(server: Server) -> list[psutil.Process]:
    """Return the server's worker processes."""
    assert server.process is not None
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "everlong_server.engine.device.tensor_parallel" in child.cmdline()]


def ended(process: psutil.Process) -> bool:
    """Return whether the process does not run any more."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def counted(server: Server, name: str) -> float:
    """Return the sum of a counter."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == f"{name}_total")


QUESTIONS = ("One?", "Two, and a few more words?")


def conversation(server: Server, document: str) -> tuple[str, list[str]]:
    """Start a session about the document, ask the questions, and return the session's id and the answers."""
    session = server.session(document)["id"]
    return session, [server.say(session, question, **GREEDY)["content"] for question in QUESTIONS]


def answers_at_once(server: Server, document: str) -> list[str]:
    """Ask five questions in sessions of their own while the server reads another document. Answers of different lengths come and go."""
    other = server.upload(STORY.read_text()[1000:9000])["id"]
    sessions = [server.session(document)["id"] for _ in range(5)]

    def ask(number: int) -> str:
        return server.say(sessions[number], f"Question {number}?", **GREEDY | {"max_tokens": 10 + 25 * number})[
            "content"
        ]

    with ThreadPoolExecutor() as executor:
        answers = list(executor.map(ask, range(5)))
    server.wait_read(other)
    return answers


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "phi3", "olmo2", "granite", "smollm3", "gemma3_text", "gemma", "olmo3"],
)  # fmt: skip
def test_tokens_are_those_of_transformers_and_a_dead_worker_ends_the_server(
    kind: str, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    folder, prompt = folder_of(kind, tmp_path / kind), STORY.read_text()[:200]
    server = new_server(folder, tensor_parallel_size=2).start()
    body = {
        "model": kind,
        "prompt": prompt,
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 1,
        "echo": True,
    }
    choice = server.http.post("/v1/completions", json=body).json()["choices"][0]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokens = torch.tensor([tokenizer.encode(prompt)])
    with torch.no_grad():
        whole = model.generate(tokens, do_sample=False, max_new_tokens=24, min_new_tokens=24, eos_token_id=None)
        scores = model(whole).logits[0, :-1].log_softmax(-1).gather(1, whole[0, 1:, None])[:, 0]
    assert choice["text"] == tokenizer.decode(whole[0])
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(scores.tolist(), abs=1e-3)

    (worker,) = workers(server)
    worker.kill()
    assert server.process is not None
    assert server.process.wait(40) == 1
    server.process = None
    assert "worker process 1 of the tensor parallelism was killed by SIGKILL" in server.log.read_text()


@pytest.mark.long
@pytest.mark.parametrize("memory", ["window", "compact", "rmt"])
def test_two_processes_answer_as_one_and_take_over_its_sessions(
    memory: str, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    if memory == "rmt":
        model, settings = make_model(tmp_path, segment_length=32), {}
    else:
        model, settings = folder_of("llama", tmp_path / "llama"), {"memory": memory, "memory_options": OPTIONS[memory]}
    text = STORY.read_text()[:1000]
    alone = new_server(model, **settings, quantize=False, bfloat16=False).start()
    document = alone.read(text)["id"]
    (first, answers), (second, again) = conversation(alone, document), conversation(alone, document)
    assert again == answers
    assert len(set(answers)) == 2
    last = alone.say(first, "Three?", **GREEDY)["content"]
    crowd = answers_at_once(alone, document)
    assert alone.terminate() == 0

    both = new_server(model, data=alone.data, **settings, tensor_parallel_size=2).start()
    assert both.say(second, "Three?", **GREEDY)["content"] == last, "a session of one process, continued in two"
    document = both.read(text)["id"]
    assert answers_at_once(both, document) == crowd
    session, found = conversation(both, document)
    assert found == answers
    assert counted(both, "everlong_tokens_drafted") > counted(both, "everlong_tokens_accepted") > 0, (
        "guesses, and wrong ones"
    )
    assert both.http.get(f"/v1/sessions/{session}/memory").json()["tokens"] > 0
    before, (worker,) = both.get_session(session), workers(both)
    both.kill9()
    wait_for(lambda: ended(worker), 30, "for the worker to end")
    both.start()
    assert both.get_session(session) == before
    assert both.say(session, "Three?", **GREEDY)["content"] == last
    (worker,) = workers(both)
    assert both.terminate() == 0
    assert not worker.is_running()
    assert "the server exits" not in both.log.read_text()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tensor_parallel_size": 3}, "tensor_parallel_size=3: must divide the model's 4 attention heads and 2 key/value heads"),
        ({"memory": "armt"}, "memory='armt': with tensor_parallel_size, must be one of compact, rmt, window"),
        ({"models": ["other"]}, "models=['other']: must be empty with tensor_parallel_size"),
        ({"model": "smollm2-135m-reader"}, "tensor_parallel_size=2: must be 1 for a model with low-rank updates"),
        ({"device": "cuda:1"}, "device='cuda:1': with tensor_parallel_size, must be cuda"),
    ],
)  # fmt: skip
@pytest.mark.long
def test_what_cannot_be_spread_is_refused(
    changes: dict[str, Any], expected: str, new_server: Any, tmp_path: Path
) -> None:
    settings = {"model": folder_of("llama", tmp_path / "llama"), "tensor_parallel_size": 2} | changes
    server = new_server(**settings)
    server.launch()
    assert server.process.wait(60) == 1
    server.process = None
    assert expected in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.long
def test_workers_end_with_a_server_that_is_killed_while_they_start(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    model = folder_of("llama", tmp_path / "llama", hidden_size=96, num_attention_heads=6, num_key_value_heads=3)
    server = new_server(model, tensor_parallel_size=3)
    server.launch()
    started = wait_for(lambda: workers(server) if len(workers(server)) == 2 else None, 60)
    folder = Path(started[0].cmdline()[-3])
    server.kill9()
    wait_for(lambda: all(map(ended, started)), 60, "for the workers to end")
    assert not folder.exists()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.long
def test_a_worker_that_starts_after_the_end_of_its_server_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", Workers.__module__, str(tmp_path), "1", "2"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Memory:
    """Stands for a model's memory."""

    segment_length = 7

    def read(self, tokens: torch.Tensor, error: Exception | None = None) -> torch.Tensor:
        yield_point()
        if error is not None:
            raise error
        return tokens + 1


def test_a_call_is_not_interrupted_and_errors_that_may_separate_the_processes_end_the_device_thread() -> None:
    alone = Workers(1, "cpu", {})
    memory = alone.mirrored("memory", Memory())
    tokens = torch.ones(1)
    with at_yield_points(lambda: pytest.fail("other work in the middle of a call")):
        assert memory.read(tokens) == 2
        assert memory.segment_length == 7
        with pytest.raises(TokenError, match="of the arguments"):
            memory.read(tokens, TokenError("of the arguments"))
        with pytest.raises(torch.AcceleratorError, match="tensor parallelism: out of memory"):
            memory.read(tokens, torch.OutOfMemoryError("out of memory"))
    alone.failure = "worker process 1 ended"
    with pytest.raises(torch.AcceleratorError, match="worker process 1 ended"):
        memory.read(tokens)
    alone.stop()


def test_a_state_can_be_sent_to_another_process() -> None:
    state = MemoryState({"memory": torch.arange(6.0).view(2, 3)[:1]})
    sent = pickle.loads(pickle.dumps(state))
    assert sent.require_like(state).digest() == state.digest()


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2: must be at most 1, the number of GPUs"):
        device_of(0, 2, "cuda")
    with pytest.raises(ConfigError, match=r"device='cpu': .* must be cuda on a machine with GPUs"):
        device_of(0, 2, "cpu")


def test_a_model_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="tensor_parallel_size=2: transformers has no plan to split models of type gpt2"
    ):
        Ranks(0, 2, tmp_path / "meeting").join(GPT2Config(), torch.device("cpu"))
