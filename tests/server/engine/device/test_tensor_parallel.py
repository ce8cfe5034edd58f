"""A model that is spread over two processes (on a CPU, connected by gloo) gives the same answers as in one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from tests.process import Server, everlong, wait_for
from tests.tinymodel import STORY, make_model, make_tokenizer

GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
SMALL = {"segment_length": 32, "sinks": 4, "window": 40}
"""A window that answers outgrow, so that keys and values are evicted."""
FLOAT = {"quantize": False, "bfloat16": False}
"""What one process computes in float32, as two processes do."""


def folder_of(kind: str, target: Path, **changes: Any) -> Path:
    """Save a random model of this `model_type` and its tokenizer, and return their folder."""
    tokenizer = make_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    import torch

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


def conversation(server: Server, text: str) -> tuple[dict[str, Any], list[str]]:
    """Read a text, answer two questions at greedy temperature, and return the session and the answers."""
    session = server.session(server.read(text)["id"])["id"]
    answers = [server.say(session, question, **GREEDY)["content"] for question in ("One?", "Two, and a few more words?")]
    return server.get_session(session), answers


def test_two_processes_answer_as_one(new_server: Callable[..., Server], tmp_path: Path) -> None:
    model, text = folder_of("llama", tmp_path / "llama"), STORY.read_text()[:1000]
    alone = new_server(model, memory_options=SMALL, **FLOAT).start()
    expected, answers = conversation(alone, text)
    assert alone.terminate() == 0
    # The same data: the fingerprint is the same, so a session continues in a server of the other kind.
    both = new_server(model, data=alone.data, memory_options=SMALL, tensor_parallel_size=2).start()
    assert len(workers(both)) == 1
    assert both.get_session(expected["id"]) == expected
    session, found = conversation(both, text)
    assert found == answers
    assert session["state_digest"] == expected["state_digest"], "the window holds the same tokens"
    again = [both.say(id, "Three?", **GREEDY)["content"] for id in (expected["id"], session["id"])]
    assert again[0] == again[1]
    (worker,) = workers(both)
    assert both.terminate() == 0
    assert not worker.is_running()
    assert "ended" not in both.log.read_text()
