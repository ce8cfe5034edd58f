"""`everlong bench peers`: the same weights, document and questions with alternatives to everlong.

The peers run one after the other on the same cores. A peer with a key/value cache must read the whole document again after
a restart. That takes as long as its first question in a new process, and is not measured twice.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
import torch

from everlong_lab.benchmarks.gguf_positions import position_bytes, with_positions
from everlong_lab.corpora.text import packaged
from everlong_lab.harness.generate import WRITTEN, ask_prompt, generate
from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.sse_timing import StreamTimer, longest
from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone, load_tokenizer
from everlong_models.catalogue.entry import entries
from everlong_models.catalogue.pull import pull
from everlong_server.settings import load_settings

QUESTIONS = ("Who is the Count?", "What happened at the castle?")
_SEGMENT = 512
"""Tokens of everlong's answers: as many as the longest segment compared, so that every answer crosses the border of a
segment and its mean time per token includes that cost."""


class PeerMissing(Exception):
    """A peer is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class AnswerTiming:
    """Seconds until the first token, seconds per further token, and the longest pause between two tokens."""

    first: float
    each: float
    pause: float


class Peer(ABC):
    """A way to ask questions about a document, in a process of its own."""

    name: str

    @abstractmethod
    def start(self) -> None:
        """Start the process, and wait until it is ready."""

    @abstractmethod
    def read(self, text: str) -> float:
        """Read `text`; return the seconds until it can be asked about."""

    @abstractmethod
    def ask(self, question: str) -> AnswerTiming:
        """Answer greedily, with enough tokens to measure the time per token."""

    @abstractmethod
    def restart(self) -> bool:
        """Kill and restart the process if it keeps what was read; return whether it does."""

    @abstractmethod
    def resident(self) -> int:
        """Return the resident memory of its processes, in bytes."""

    @abstractmethod
    def kept(self) -> int:
        """Return the bytes kept for a session, without weights and text."""

    @abstractmethod
    def stop(self) -> None:
        """End the process."""


class _Server(Peer):
    """A peer that is a server with an HTTP port."""

    _server: Process

    def start(self) -> None:
        self._server.start()

    def restart(self) -> bool:
        return False

    def resident(self) -> int:
        return self._server.resident()

    def stop(self) -> None:
        self._server.kill()


class Everlong(_Server):
    """`everlong serve` over HTTP."""

    def __init__(self, folder: Path, model: str, memory: str) -> None:
        self.name = f"everlong, {memory}"
        # On a CPU and without guesses of the next tokens, as the other peers.
        self._server = Process.everlong(
            folder, "--model", model, "--memory", memory, "--device", "cpu", "--draft-tokens", "0"
        )
        self._session: dict[str, Any] = {}

    def read(self, text: str) -> float:
        began = time.perf_counter()
        document = self._server.read(text)
        self._session = self._server.http.post("/v1/sessions", json={"documents": [document["id"]]}).json()
        return time.perf_counter() - began

    def ask(self, question: str) -> AnswerTiming:
        body = {"content": question, "stream": True, "max_tokens": _SEGMENT, "ignore_eos": True, "temperature": 0}
        began, streamed = time.perf_counter(), StreamTimer()
        with self._server.http.stream("POST", f"/v1/sessions/{self._session['id']}/messages", json=body) as response:
            for line in response.iter_lines():
                streamed.feed(line)
        return AnswerTiming(streamed.stamps[0] - began, streamed.each, longest(streamed.stamps))

    def restart(self) -> bool:
        self._server.kill()
        self._server.start()
        return True

    def kept(self) -> int:
        return int(self._server.http.get(f"/v1/sessions/{self._session['id']}").json()["state_bytes"])


class LlamaCpp(_Server):
    """llama.cpp's server, with the same GGUF file."""

    name = "llama.cpp server"

    def __init__(self, folder: Path, model: str, positions: int) -> None:
        self._server = llama_server(model, positions, folder)
        self._position_bytes = position_bytes(gguf_file(model))
        self._text = ""
        self._tokens = 0

    def read(self, text: str) -> float:
        began = time.perf_counter()
        self._text = text
        body = {"prompt": text, "max_tokens": 1, "temperature": 0}
        response = self._server.http.post("/v1/completions", json=body)
        response.raise_for_status()
        self._tokens = response.json()["usage"]["prompt_tokens"]
        return time.perf_counter() - began

    def ask(self, question: str) -> AnswerTiming:
        body = {
            "prompt": self._text + ask_prompt(question),
            "max_tokens": WRITTEN,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        began, stamps = time.perf_counter(), []
        with self._server.http.stream("POST", "/v1/completions", json=body) as response:
            stamps = [
                time.perf_counter()
                for line in response.iter_lines()
                if line.startswith("data: {") and json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            ]
        return AnswerTiming(stamps[0] - began, (stamps[-1] - stamps[0]) / (len(stamps) - 1), longest(stamps))

    def kept(self) -> int:
        return self._tokens * self._position_bytes


def llama_server(model: str, positions: int, folder: Path) -> Process:
    """Return llama.cpp's server on the GGUF file of `model`. A copy with more positions goes to `folder`. Raises `PeerMissing`."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise PeerMissing("llama.cpp: pip install xllamacpp")
    file = with_positions(gguf_file(model), positions, folder)
    program = [sys.executable, "-m", "everlong_lab.benchmarks.llama"]
    return Process(
        [*program, str(file), "{port}", str(positions), str(torch.get_num_threads())],
        ready="/health",
        what="llama.cpp's server",
        fresh=True,  # it may close an idle connection just as it is used again
    )


def gguf_file(model: str) -> Path:
    """Return the GGUF file of a known name, which is pulled if necessary, or of a path. Raises `PeerMissing` and `PullError`."""
    if model in entries():
        return pull(entries()[model], models_dir())
    file = Path(model).expanduser()
    if file.suffix != ".gguf" or not file.is_file():
        raise PeerMissing(f"--model: {model!r} is neither a GGUF file nor one of {', '.join(entries())}")
    return file


_TRANSFORMERS = {
    "whole": "transformers, key/value cache",
    "sampled": "transformers, key/value cache, sampled",
    "passages": "transformers, recall only",
}


class Transformers(Peer):
    """transformers' `generate` with a cache of everything that was read. "passages": with the passages that BM25 finds
    instead. "sampled": the prefill time is estimated from samples, see `generate._estimated_seconds`."""

    def __init__(self, model: str, way: Literal["whole", "sampled", "passages"] = "whole") -> None:
        self.name = _TRANSFORMERS[way]
        self._model = model
        self._way = way
        self._tokens = 0

    def start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        folder = find_backbone(self._model, models_dir=models_dir())
        worker = multiprocessing.get_context("spawn").Process(
            target=generate, args=(theirs, folder, self._way, torch.get_num_threads()), daemon=True
        )
        worker.start()
        self._worker = worker
        self._pipe.recv()

    def _call(self, *words: str) -> Any:
        self._pipe.send(words)
        while not self._pipe.poll(1):
            if not self._worker.is_alive():
                raise RuntimeError(f"{self.name} ended with status {self._worker.exitcode}")
        return self._pipe.recv()

    def read(self, text: str) -> float:
        self._tokens, seconds = self._call("read", text)
        return float(seconds)

    def ask(self, question: str) -> AnswerTiming:
        return AnswerTiming(*self._call("ask", question))

    def restart(self) -> bool:
        return False

    def resident(self) -> int:
        return int(psutil.Process(self._worker.pid).memory_info().rss)

    def kept(self) -> int:
        return 0 if self._way == "passages" else self._tokens * position_bytes(gguf_file(self._model))

    def stop(self) -> None:
        self._worker.kill()
        self._worker.join()


def models_dir() -> Path:
    """Return the folder of pulled and converted models."""
    return load_settings().models_dir.expanduser()


PEERS: dict[str, Callable[[Path, str, int], Peer]] = {
    "window": lambda folder, model, length: Everlong(folder, model, "window"),
    "rmt": lambda folder, model, length: Everlong(folder, model, "rmt"),
    "transformers": lambda folder, model, length: Transformers(model),
    "llama.cpp": lambda folder, model, length: LlamaCpp(folder, model, length + 256),
    "transformers-sampled": lambda folder, model, length: Transformers(model, "sampled"),
    "recall": lambda folder, model, length: Transformers(model, "passages"),
}
"""Constructors of peers by name; their arguments are a folder for data, the model and the document's length in tokens."""


def run(
    *, lengths: Sequence[int], peers: Sequence[str], progress: Callable[[str], None], model: str = DEFAULT_BACKBONE
) -> Report:
    """Measure all `peers` at all `lengths`, in tokens. `model`: a known name or a GGUF file. Raises `PeerMissing` before anything
    is measured."""
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        chosen = [
            (length, PEERS[name](Path(folder) / f"{name}-{length}", model, length))
            for length in lengths
            for name in peers
        ]
        tokenizer = load_tokenizer(find_backbone(model, models_dir=models_dir(), progress=progress))
        whole = tokenizer.encode(packaged())
        for length, peer in chosen:
            progress(f"{peer.name}: {length:,} tokens")
            text = tokenizer.decode((whole * -(-length // len(whole)))[:length])
            try:
                rows.append({"peer": peer.name, "tokens": length, **_measure(peer, text, progress)})
            except (
                httpx.HTTPError,
                RuntimeError,
                EOFError,
            ) as error:  # a failure is a result; continue with the others
                broken.append(f"{peer.name} broke at {length:,} tokens: {type(error).__name__}: {error}")
                progress(broken[-1])
    if not rows:
        raise PeerMissing("; ".join(broken))
    return Report("peers", rows, _targets(rows, model), [*_NOTES, *broken])


_NOTES = [
    "read: seconds until the document can be asked about; first token 1 and 2: of two questions; after restart: of the "
    "second question, in a new process that was ready",
    f"ms per token: mean of both answers; longest pause: between two tokens. everlong's answers have {_SEGMENT} tokens, "
    f"so that each includes the cost of a segment's border; the others have {WRITTEN}, whose costs are all the same",
    "a key/value cache is lost at a restart: its figure is the time to read again plus the first question, as measured",
    "kept: bytes per session, without weights and text; for a key/value cache, in 16 bits. window keeps only an index of the "
    "text's passages, and the end of the text that it sees",
    "sampled: reading is estimated from nine pieces of 512 tokens, each after a cache as long as its position; "
    "answers are generated after a random cache of the whole length",
    "SmolLM2's positions end at 8,192: beyond that a cache's answers are meaningless, only their time counts",
    "everlong puts up to 1,000 tokens of passages before a question, and its first token waits for them; a cache has read everything",
]


def _measure(peer: Peer, text: str, progress: Callable[[str], None]) -> dict[str, Any]:
    try:
        peer.start()
        read = peer.read(text)
        progress(f"{peer.name}: read in {read:.4g} s")
        answers = []
        for question in QUESTIONS:
            answers.append(peer.ask(question))
            first, each, pause = answers[-1].first, answers[-1].each * 1e3, answers[-1].pause * 1e3
            progress(f"{peer.name}: first token after {first:.4g} s, then {each:.4g} ms each, {pause:.4g} ms at most")
        resident, kept = peer.resident(), peer.kept()
        after_restart = peer.ask(QUESTIONS[1]).first if peer.restart() else read + answers[0].first
    finally:
        peer.stop()
    return {
        "read_s": read,
        "first_token_1_s": answers[0].first,
        "first_token_2_s": answers[1].first,
        "after_restart_s": after_restart,
        "ms_per_token": statistics.mean(answer.each for answer in answers) * 1e3,
        "longest_pause_ms": max(answer.pause for answer in answers) * 1e3,
        "resident_mb": resident / 1e6,
        "kept_bytes": kept,
    }


def _targets(rows: Sequence[dict[str, Any]], model: str = DEFAULT_BACKBONE) -> list[Target]:
    """Return the targets for which both sides were measured."""
    found = {(row["peer"], row["tokens"]): row for row in rows}
    cached, sampled, llama = _TRANSFORMERS["whole"], _TRANSFORMERS["sampled"], LlamaCpp.name
    comparisons = [
        # (name, their peer, our peer, column, length, at least)
        ("reading 32k, rmt: times as fast as transformers", cached, "everlong, rmt", "read_s", 32_000, 5),
        ("reading 128k, rmt: times as fast as transformers", cached, "everlong, rmt", "read_s", 128_000, 15),
        ("reading 128k, rmt: times as fast as transformers (sampled)", sampled, "everlong, rmt", "read_s", 128_000, 15),
        ("second question after a restart, 32k, window: times sooner than llama.cpp", llama, "everlong, window", "after_restart_s", 32_000, 100),
        ("second question after a restart, 32k, rmt: times sooner than llama.cpp", llama, "everlong, rmt", "after_restart_s", 32_000, 100),
        ("a token at 2k: times as fast as transformers", cached, "everlong, window", "ms_per_token", 2_000, 2),
        ("a token at 2k: times as fast as llama.cpp", llama, "everlong, window", "ms_per_token", 2_000, 1),
        ("a token at 8k: times as fast as llama.cpp", llama, "everlong, window", "ms_per_token", 8_000, 2.5),
    ]  # fmt: skip
    targets = [
        Target(what, found[theirs, length][column] / found[ours, length][column], least, at_most=False)
        for what, theirs, ours, column, length, least in comparisons
        if (theirs, length) in found and (ours, length) in found
    ]
    targets += [
        Target(
            f"bytes kept, {length:,} tokens, rmt ÷ a key/value cache's in 16 bits",
            row["kept_bytes"] / (length * position_bytes(gguf_file(model))),
            1 / 1000,
            at_most=True,
        )
        for (peer, length), row in found.items()
        if peer == "everlong, rmt"
    ]
    return targets
