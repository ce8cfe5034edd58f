"""`everlong bench flat`: time per token and memory must not depend on how many tokens were read."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch

from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.tiny import SEGMENT, tiny_backbone, tiny_memory, tiny_recurrent
from everlong_models import (
    CacheSlots,
    CUDAGraphs,
    GraphedFunction,
    MemoryState,
    ReadGraphs,
    Sampler,
    SamplingParams,
    StepGraphs,
)
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.loading import load_backbone
from everlong_models.generate.sampling import sample_from_logits, sample_tokens
from everlong_models.memories.base import SegmentReader
from everlong_models.model import MEMORIES
from everlong_server.settings import load_settings

_LENGTHS, _QUICK = (1_000, 10_000, 100_000, 1_000_000), (1_000, 10_000, 30_000)
_ROUND = 64
_ROUNDS = 24
_FEWEST = 5
_MANY = 64
"""Number of streams for which a GPU's throughput is compared with that of one stream."""


def run(
    *,
    quick: bool,
    progress: Callable[[str], None],
    streams: Sequence[int] = (1,),
    device: str = "cpu",
    memories: Sequence[str] = (),
    backbone: str | None = None,
) -> Report:
    """Read 1k … 1M tokens (`quick`: 30k) into each memory, then generate after each length with each number of `streams`.

    `memories`: default all (`quick`: RMT only). They are tiny, or around the backbone named `backbone`."""
    chosen = memories or ("rmt", *(name for name in MEMORIES if name != "rmt" and not quick))

    def around() -> Backbone:
        if backbone is None:
            return tiny_backbone(device)
        models_dir = load_settings().models_dir.expanduser()
        return load_backbone(backbone, models_dir=models_dir, device=device, progress=progress)[0]

    if backbone is not None:
        chosen = [name for name in chosen if MEMORIES[name].around and not MEMORIES[name].recurrent]
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for name in chosen:
        lengths = _QUICK if quick else _LENGTHS
        memory = _built(name, around, device)
        figures, ratios = _measure(name, memory, lengths, streams, progress)
        rows += figures
        for number, ratio in ratios.items():
            suffix = "" if number == 1 else f", {number} streams"
            what = f"{name}: time per output token at {lengths[-1]:,} ÷ at {lengths[0]:,}{suffix}"
            targets.append(Target(what, ratio, 1.02, at_most=True))
        if device != "cpu" and {1, _MANY} <= set(streams):
            speed = {
                row["streams"]: row["tokens_per_second"] for row in figures if row["context_tokens"] == lengths[-1]
            }
            what = f"{name}: tokens/s of {_MANY} streams ÷ of one"
            targets.append(Target(what, speed[_MANY] / speed[1], 25, at_most=False))
        if name == "rmt":
            resident = {row["context_tokens"]: row["resident_mb"] for row in figures}
            growth = resident[lengths[-1]] / resident[lengths[1]]
            targets.append(Target(f"resident memory after {lengths[-1]:,} ÷ after 10,000", growth, 1.05, at_most=True))
    sizes: dict[str, set[int]] = {}
    for row in rows:
        sizes.setdefault(row["memory"], set()).add(row["state_bytes"])
    same = all(len(of_one) == 1 for of_one in sizes.values())
    targets.append(Target("state bytes equal at every length (1 = yes)", float(same), 1.0, at_most=False))
    return Report(
        "flat",
        rows,
        targets,
        [
            "tiny random models, segment 512; around a backbone: Llama of 2 layers and width 128; native: Mamba-2 of 2 layers and width 128; from scratch: 4 layers of 256"
            if backbone is None
            else f"around {backbone}, segment 512",
            "times are medians of turns of 64 tokens; the ratio is the median over pairs of turns next to each other",
        ],
    )


def _built(name: str, around: Callable[[], Backbone], device: str) -> SegmentReader:
    """Build a memory as `load_model` does, but with random weights."""
    kind = MEMORIES[name]
    backbone = tiny_recurrent(device) if kind.recurrent else around() if kind.around else None
    memory = tiny_memory(name, backbone).to(device)
    if backbone is not None and kind.whole:
        backbone.optimize()
    memory.optimize()
    return memory


def _measure(
    name: str, memory: SegmentReader, lengths: tuple[int, ...], streams: Sequence[int], progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Return rows per length and number of streams; and per number of streams, time per token at the last length ÷ the first."""
    process, generator = psutil.Process(), torch.Generator().manual_seed(0)
    states: dict[int, MemoryState] = {}
    resident: dict[int, int] = {}
    reading: dict[int, float] = {}
    rows: list[dict[str, Any]] = []
    ratios: dict[int, float] = {}
    with torch.inference_mode():
        state, read = memory.initial_state(1), 0
        device = state.device
        read_segment = ReadGraphs(memory, CUDAGraphs(device)) if device.type == "cuda" else memory.read
        for length in lengths:
            start, before = time.perf_counter(), read
            while read < length:
                state = read_segment(torch.randint(0, 256, (1, SEGMENT), generator=generator).to(device), state)
                read += SEGMENT
            reading[length] = (read - before) / (time.perf_counter() - start)
            states[length], resident[length] = state, process.memory_info().rss
            progress(f"{name}: read {read:,} tokens, resident memory {resident[length] / 1e6:.0f} MB")
        for number in streams:
            progress(f"{name}: {number} streams")
            side_by_side = {length: MemoryState.stack([state] * number) for length, state in states.items()}
            generate = _Generation(memory, device)
            generate(side_by_side[lengths[-1]])  # warm up
            # The lengths take turns, so that other load on the machine affects them equally.
            times: dict[int, list[float]] = {length: [] for length in lengths}
            for turn in range(max(_FEWEST, _ROUNDS // number)):
                for length in lengths if turn % 2 else reversed(lengths):
                    times[length].append(generate(side_by_side[length]))
            pairs = zip(times[lengths[0]], times[lengths[-1]], strict=True)
            ratios[number] = statistics.median(last / first for first, last in pairs)
            rows += [
                {
                    "memory": name,
                    "context_tokens": length,
                    "streams": number,
                    "ms_per_token": statistics.median(times[length]) * 1e3,
                    "tokens_per_second": number / statistics.median(times[length]),
                    "state_bytes": states[length].nbytes,
                    "resident_mb": resident[length] / 1e6,
                    "reading_tokens_per_second": reading[length],
                }
                for length in lengths
            ]
    return rows, ratios


class _Generation:
    """Decodes as the server does; on a GPU, with CUDA graphs."""

    def __init__(self, memory: SegmentReader, device: torch.device) -> None:
        self._memory, self._device = memory, device
        self._graphs = StepGraphs(memory.step, CUDAGraphs(device)) if device.type == "cuda" else None
        self._sampling = (
            GraphedFunction(sample_from_logits, CUDAGraphs(device), "a draw") if device.type == "cuda" else None
        )
        self._slots = CacheSlots(keep_allocated=True)

    def __call__(self, state: MemoryState) -> float:
        """Generate one round, a token per row and step; return the seconds per step."""
        samplers = [Sampler(SamplingParams(), row, [], self._memory.vocab_size) for row in range(state.rows)]
        tokens = torch.zeros(state.rows, 8, dtype=torch.int64, device=self._device)
        cache, logits = self._memory.open(state, tokens)
        self._slots.add(cache)
        start = time.perf_counter()
        for _ in range(_ROUND):
            chosen = sample_tokens(samplers, logits.float(), self._sampling)
            for sampler, token in zip(samplers, chosen, strict=True):
                sampler.accept(token)
            logits = self._step(torch.tensor(chosen))
        seconds = (time.perf_counter() - start) / _ROUND
        while len(self._slots):
            self._slots.remove(len(self._slots) - 1)
        return seconds

    def _step(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._graphs is not None:
            return self._graphs(self._slots, tokens)
        return self._memory.step(self._slots.rows, tokens.to(self._device))
