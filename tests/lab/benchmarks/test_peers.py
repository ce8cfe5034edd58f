"""`everlong bench peers`, `sessions` and `crowd`: comparisons, and errors if something is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter

from everlong_lab.benchmarks import peers
from everlong_lab.benchmarks.gguf_positions import with_positions
from everlong_lab.harness import generate
from everlong_lab.harness.process import Process
from tests.process import everlong

pytestmark = pytest.mark.long


def row(peer: str, tokens: int, **figures: float) -> dict[str, Any]:
    return {"peer": peer, "tokens": tokens, "read_s": 1.0, "after_restart_s": 1.0, "ms_per_token": 1.0, "kept_bytes": 0} | figures  # fmt: skip


def test_targets_are_ratios_of_what_was_measured_in_this_run():
    rows = [
        row("everlong, window", 2_000, ms_per_token=10.0),
        row("everlong, rmt", 32_000, read_s=20.0, after_restart_s=0.5, kept_bytes=36_864),
        row("transformers, key/value cache", 2_000, ms_per_token=30.0),
        row("transformers, key/value cache", 32_000, read_s=120.0),
        row("llama.cpp server", 32_000, after_restart_s=60.0),
    ]
    found = {target.name: target for target in peers._targets(rows)}
    values = {name: round(target.value, 6) for name, target in found.items()}
    kept = 36_864 / (32_000 * 30 * 2 * 3 * 64 * 2)
    assert values == {
        "reading 32k, rmt: times as fast as transformers": 6.0,
        "second question after a restart, 32k, rmt: times sooner than llama.cpp": 120.0,
        "a token at 2k: times as fast as transformers": 3.0,
        "bytes kept, 32,000 tokens, rmt ÷ a key/value cache's in 16 bits": round(kept, 6),
    }
    assert all(target.met for target in found.values())
    rows[3]["read_s"] = 90.0
    assert [target.name for target in peers._targets(rows) if not target.met] == [next(iter(values))]


def test_a_peer_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(peers.PeerMissing, match="pip install xllamacpp"):
        peers.run(lengths=[600], peers=["window", "llama.cpp"], progress=lambda message: None)


def test_sampled_reading_is_the_integral_over_its_pieces(monkeypatch):
    """The model takes a second per piece, and one more for each thousand tokens before it."""
    from transformers import DynamicCache

    now = [0.0]
    monkeypatch.setattr(generate.time, "perf_counter", lambda: now[0])

    class Model:
        config = SimpleNamespace(num_key_value_heads=1, head_dim=2, num_hidden_layers=2)

        def __call__(self, tokens: torch.Tensor, past_key_values: Any, logits_to_keep: int) -> None:
            now[0] += 1 + past_key_values.get_seq_length() / 1000
            more = torch.zeros(1, 1, tokens.shape[1], 2)
            for layer in range(2):
                past_key_values.update(more, more, layer)

    cache, length = DynamicCache(), 10_000
    seconds = generate._estimated_seconds(Model(), torch.zeros(1, length, dtype=torch.int64), cache)
    pieces = length / 512
    assert seconds == pytest.approx(pieces * (1 + (length - 512) / 2 / 1000), rel=1e-3)
    assert cache.get_seq_length() == length


class FakePeer:
    """Answers once, and a second time unless it is `broken`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._asked = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def read(self, text: str) -> float:
        return 12.5

    def ask(self, question: str) -> peers.AnswerTiming:
        self._asked += 1
        if self.name == "broken" and self._asked == 2:
            raise RuntimeError("out of room")
        return peers.AnswerTiming(0.5, 0.01 * self._asked, 0.03 / self._asked)

    def resident(self) -> float:
        return 1e6

    def kept(self) -> int:
        return 0

    def restart(self) -> bool:
        return False


def test_a_peer_that_breaks_is_named_with_what_it_had_done_and_the_others_go_on(monkeypatch, tiny_model):
    monkeypatch.setattr(peers, "find_backbone", lambda *_, **__: tiny_model / "backbone")
    made = {name: lambda folder, model, length, name=name: FakePeer(name) for name in ("broken", "whole")}
    monkeypatch.setattr(peers, "PEERS", made)
    told: list[str] = []
    report = peers.run(lengths=[600], peers=["broken", "whole"], progress=told.append)
    assert [(each["peer"], each["after_restart_s"]) for each in report.rows] == [("whole", 13.0)]
    assert (report.rows[0]["ms_per_token"], report.rows[0]["longest_pause_ms"]) == pytest.approx((15, 30))
    assert report.notes[-1] == "broken broke at 600 tokens: RuntimeError: out of room"
    assert told[:4] == [
        "broken: 600 tokens",
        "broken: read in 12.5 s",
        "broken: first token after 0.5 s, then 10 ms each, 30 ms at most",
        report.notes[-1],
    ]
    with pytest.raises(peers.PeerMissing, match="out of room"):
        peers.run(lengths=[600], peers=["broken"], progress=lambda message: None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["peers", "--peers", "window,vllm"],
            "--peers: unknown name 'vllm'; choose from window, rmt, transformers, llama.cpp, transformers-sampled, recall",
        ),
        (["peers", "--lengths", "2000,x"], "--lengths 2000,x: must be numbers separated by commas"),
        (["peers", "--lengths", "20"], "--lengths 20: must be from 500 to 10,000,000"),
        (["flat", "--memories", "rmt,lstm"], "--memories: unknown name 'lstm'; choose from rmt, "),
        (["flat", "--memories", "rmt,lamemo", "--backbone", "a"], "--memories: lamemo does not use a backbone"),
        (
            ["flat", "--memories", "native", "--backbone", "a"],
            "--memories: native is measured with a tiny model of its own",
        ),
        (["flat", "--memories", "rmt", "--backbone", "no.gguf"], "no GGUF file no.gguf"),
    ],
)
def test_what_is_asked_wrongly_is_named(arguments, said):
    done = everlong("bench", *arguments)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())


def test_a_process_that_ends_says_its_last_words():
    process = Process([sys.executable, "-c", "raise SystemExit('no model')"], ready="/", what="the peer")
    with pytest.raises(RuntimeError, match="the peer ended: no model"):
        process.start()


def test_a_process_is_started_measured_and_killed():
    process = Process([sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"], ready="/", what="files")
    try:
        assert process.start() > 0
        assert process.resident() > 1 << 20
    finally:
        process.kill()
    with pytest.raises(httpx.TransportError):
        process.http.get("/")


def test_llama_cpp_is_given_weights_that_know_enough_positions(tmp_path: Path) -> None:
    """llama.cpp's server refuses texts longer than the model's training positions with 400."""
    file = tmp_path / "a.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(8192)
    writer.add_tensor("a", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert with_positions(file, 8192, tmp_path / "copy") == file
    longer = GGUFReader(with_positions(file, 32_256, tmp_path / "copy"))
    assert longer.fields["llama.context_length"].contents() == 32_256
    assert longer.tensors[0].data.tolist() == list(range(8))
    assert GGUFReader(file).fields["llama.context_length"].contents() == 8192


@pytest.mark.long
def test_starts_are_counted_behind_one_that_is_not(tmp_path: Path) -> None:
    report = tmp_path / "start.json"
    done = everlong("bench", "start", "--quick", "--starts", "1", "--json", str(report))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("first token after") == 2
    found = json.loads(report.read_text())
    (row,), (target,) = found["rows"], found["targets"]
    assert 0 < row["ready_s"] < row["first_token_s"] == target["value"]
    assert (target["target"], target["comparison"]) == (10, "<=")


def test_a_crowd_hangs_on_to_a_server_while_it_answers(tmp_path: Path) -> None:
    """A small run: checks connections and the report, not the speed."""
    report = tmp_path / "crowd.json"
    done = everlong(
        "bench", "crowd", "--quick", "--sockets", "3", "--uploads", "2", "--written", "64", "--json", str(report)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert [(row["sockets"], row["uploads"]) for row in found["rows"]] == [(0, 0), (3, 2)] * 3
    assert all(row["ms_per_token"] > 0 for row in found["rows"])
    (target,) = found["targets"]
    assert target["target"] == 1.1
    assert target["comparison"] == "<="
    nobody = everlong("bench", "crowd", "--sockets", "0", "--uploads", "0")
    assert nobody.returncode != 0
    assert "are both 0" in " ".join(nobody.stderr.split())
