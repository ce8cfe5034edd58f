"""Rewriting over HTTP: once for all answers to a question, and with metrics."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.process import Server
from tests.tinymodel import STORY

GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
SPEC = {"name": "window", "segment_length": 64, "sinks": 4, "window": 128}
QUESTION = "What would Dinah do with the black kitten's face?"


def instruct_model(tiny_model: Path, target: Path) -> Path:
    """Make a model that rewrites questions. It is random, so its questions are never used."""
    shutil.copytree(tiny_model / "backbone", target / "backbone")
    manifest = {"backbone": "backbone", "memory": SPEC, "trained": False, "template": "instruct"}
    (target / "everlong.json").write_text(json.dumps(manifest))
    return target


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return instruct_model(tiny_model, tmp_path_factory.mktemp("model") / "tiny-window")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory):
    with Server(model, tmp_path_factory.mktemp("data"), recall_tokens=96) as server:
        yield server.start()


@pytest.fixture(scope="module")
def document(server: Server) -> str:
    return str(server.read(STORY.read_text()[:8000])["id"])


def counted(server: Server) -> tuple[float, float]:
    """Return how many questions the model was asked to rewrite, and how many tokens that took."""
    metrics = server.http.get("/metrics").text
    outcomes = re.findall(r"^everlong_rewritings_total\{outcome=\"(\w+)\"\} (\S+)", metrics, re.MULTILINE)
    assert [name for name, _ in outcomes] == ["rewritten", "unchanged", "rejected", "timeout"]
    (tokens,) = re.findall(r"^everlong_tokens_rewriting_total (\S+)", metrics, re.MULTILINE)
    return sum(float(count) for _, count in outcomes), float(tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_share_one_rewriting(server: Server, document: str, stream: bool) -> None:
    file: dict[str, Any] = {"type": "file", "file": {"file_id": document}}
    conversation = [
        {"role": "user", "content": [file, {"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": "She would wash it."},
        {"role": "user", "content": "Why would she do that?"},
    ]
    before, tokens = counted(server)
    body = {"messages": conversation, "n": 3, "stream": stream, "max_tokens": 4, "model": "tiny-window"}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    after, more = counted(server)
    assert after == before + 1
    assert more > tokens


def test_a_question_that_refers_to_nothing_costs_nothing(server: Server, document: str) -> None:
    before = counted(server)
    assert server.say(server.session(document)["id"], QUESTION, **GREEDY)["content"]
    assert counted(server) == before
