"""`everlong bench peers --prompt N`: everlong and llama.cpp's server answer chats of N tokens in turns, with the same GGUF file.

Both servers run all the time, with as many threads as PyTorch takes, and one of them is asked at a time. So other load on
the machine slows down both.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from everlong_lab.benchmarks.peers import LlamaCpp, gguf_file, llama_server, models_dir
from everlong_lab.corpora.text import packaged
from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_models.backbone.loading import find_backbone, load_tokenizer

_WRITTEN = 64
"""Tokens of an answer."""
_ROOM = 256
"""Positions beyond the prompt: the chat's template, question and answer."""
_QUESTION = "\n\nWhat happens in this text?"
_OURS = "everlong"


@dataclass(frozen=True, slots=True)
class ChatTiming:
    """Seconds to the first token, seconds per further token, and the tokens that the server counted in the prompt."""

    first: float
    each: float
    prompt_tokens: int


def run(*, model: str, prompt: int, turns: int, progress: Callable[[str], None]) -> Report:
    """Measure `turns` chats of `prompt` tokens each, all different, with both servers.

    `model`: a known name or a GGUF file. Raises `PeerMissing`, `EverlongModelError` and `RuntimeError`.
    """
    gguf_file(model)
    tokenizer = load_tokenizer(find_backbone(model, models_dir=models_dir(), progress=progress))
    tokens = tokenizer.encode(packaged())
    texts = [tokenizer.decode(tokens[turn * prompt : (turn + 1) * prompt]) + _QUESTION for turn in range(turns + 1)]
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        servers = {
            _OURS: Process.everlong(Path(folder) / "data", "--model", model, "--device", "cpu", "--draft-tokens", "0"),
            LlamaCpp.name: llama_server(model, prompt + _ROOM, Path(folder)),
        }
        try:
            for server in servers.values():
                server.start()
                chat(server.http, texts[0])  # compiles kernels, and maps the weights
            timings = _measure(servers, texts[1:], progress)
            rows = [_row(name, timings[name], server.resident()) for name, server in servers.items()]
        finally:
            for server in servers.values():
                server.kill()
    return Report("peers-turns", rows, _targets(*rows), _NOTES)


_NOTES = [
    "medians of all turns; each turn sends another text, so that no server has it in a cache",
    f"first token: from sending the chat; ms per token: over {_WRITTEN} tokens; resident: after the last turn, all processes",
]


def _measure(
    servers: dict[str, Process], texts: list[str], progress: Callable[[str], None]
) -> dict[str, list[ChatTiming]]:
    timings: dict[str, list[ChatTiming]] = {name: [] for name in servers}
    for turn, text in enumerate(texts):
        names = list(servers) if turn % 2 == 0 else list(servers)[::-1]  # neither is always the first
        for name in names:
            found = chat(servers[name].http, text)
            timings[name].append(found)
            progress(f"{name}: first token after {found.first:.4g} s, then {found.each * 1e3:.4g} ms each")
    return timings


def chat(http: httpx.Client, text: str) -> ChatTiming:
    """Send a chat of one message to a server of OpenAI's API, and time the streamed answer."""
    body = {
        "model": http.get("/v1/models").json()["data"][0]["id"],
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": _WRITTEN,
        "temperature": 0,
        "ignore_eos": True,
    }
    usage: dict[str, int] = {}
    began, stamps = time.perf_counter(), []
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            raise RuntimeError(f"the chat was refused with {response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                stamps.append(time.perf_counter())
            usage = chunk.get("usage") or usage
    written = usage["completion_tokens"]
    if len(stamps) < 2 or written < 2:
        raise RuntimeError(f"the answer of {written} tokens arrived in {len(stamps)} pieces: it cannot be timed")
    return ChatTiming(stamps[0] - began, (stamps[-1] - stamps[0]) / (written - 1), usage["prompt_tokens"])


def _row(name: str, timings: list[ChatTiming], resident: int) -> dict[str, Any]:
    return {
        "peer": name,
        "turns": len(timings),
        "prompt_tokens": int(statistics.median(timing.prompt_tokens for timing in timings)),
        "first_token_s": statistics.median(timing.first for timing in timings),
        "ms_per_token": statistics.median(timing.each for timing in timings) * 1e3,
        "resident_mb": resident / 1e6,
    }


def _targets(ours: dict[str, Any], theirs: dict[str, Any]) -> list[Target]:
    ratio = {name: theirs[name] / ours[name] for name in ("first_token_s", "ms_per_token")}
    return [
        Target("first token: times as fast as llama.cpp", ratio["first_token_s"], 2.0, at_most=False),
        Target("a token: times as fast as llama.cpp", ratio["ms_per_token"], 1.5, at_most=False),
        Target("resident memory ÷ llama.cpp's", ours["resident_mb"] / theirs["resident_mb"], 1.0, at_most=True),
    ]
