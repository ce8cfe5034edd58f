"""`everlong bench flat`: neither time per token nor memory depends on how much was read."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from everlong_models import MemoryState, Sampler, SamplingParams
from everlong_models.memory import SegmentReader
from everlong_models.model import MEMORIES
from everlong_server.bench.report import Report, Target
from everlong_server.bench.tiny import SEGMENT, tiny_backbone, tiny_memory

_ROUND = 64
_ROUNDS = 24


def run(*, quick: bool, progress: Callable[[str], None]) -> Report:
    """Reads 1k … 1M tokens into a tiny RMT (30k into every other memory), then generates behind each length in turn."""
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for name in ("rmt", *(name for name in MEMORIES if name != "rmt" and not quick)):
        lengths = (1_000, 10_000, 100_000, 1_000_000) if name == "rmt" else (1_000, 10_000, 30_000)
        if quick:
            lengths = (1_000, 10_000, 30_000)
        memory = tiny_memory(name, tiny_backbone() if MEMORIES[name].around else None)
        figures, ratio = _measure(name, memory, lengths, progress)
        rows += figures
        targets.append(
            Target(f"{name}: time per output token at {lengths[-1]:,} ÷ at {lengths[0]:,}", ratio, 1.02, at_most=True)
        )
        if name == "rmt":
            growth = figures[-1]["resident_mb"] / figures[1]["resident_mb"]
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
            "tiny random models, segment 512; around a backbone: Llama of 2 layers and width 128; from scratch: 4 layers of 256",
            "times are medians of turns of 64 tokens; the ratio is the median over pairs of turns next to each other",
        ],
    )


def _measure(
    name: str, memory: SegmentReader, lengths: tuple[int, ...], progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], float]:
    """Figures for each length, and time per token at the last ÷ at the first."""
    process, generator = psutil.Process(), torch.Generator().manual_seed(0)
    states: dict[int, MemoryState] = {}
    resident: dict[int, int] = {}
    reading: dict[int, float] = {}
    with torch.inference_mode():
        state, read = memory.initial_state(1), 0
        for length in lengths:
            start, before = time.perf_counter(), read
            while read < length:
                state = memory.read(torch.randint(0, 256, (1, SEGMENT), generator=generator), state)
                read += SEGMENT
            reading[length] = (read - before) / (time.perf_counter() - start)
            states[length], resident[length] = state, process.memory_info().rss
            progress(f"{name}: read {read:,} tokens, resident memory {resident[length] / 1e6:.0f} MB")
        _generate(memory, state)  # warm up
        # The lengths take turns, so that what else the machine does meets all of them alike.
        times: dict[int, list[float]] = {length: [] for length in lengths}
        for turn in range(_ROUNDS):
            for length in lengths if turn % 2 else reversed(lengths):
                times[length].append(_generate(memory, states[length]))
    rows = [
        {
            "memory": name,
            "context_tokens": length,
            "ms_per_token": statistics.median(times[length]) * 1e3,
            "state_bytes": states[length].nbytes,
            "resident_mb": resident[length] / 1e6,
            "reading_tokens_per_second": reading[length],
        }
        for length in lengths
    ]
    ratios = [last / first for first, last in zip(times[lengths[0]], times[lengths[-1]], strict=True)]
    return rows, statistics.median(ratios)


def _generate(model: SegmentReader, state: MemoryState) -> float:
    """Seconds per token of one turn."""
    sampler = Sampler(SamplingParams(), 0, [], model.vocab_size)
    cache, logits = model.open(state, torch.zeros(1, 8, dtype=torch.int64))
    start = time.perf_counter()
    for _ in range(_ROUND):
        logits = model.step(cache, torch.tensor([sampler.draw(logits[0])]))
    return (time.perf_counter() - start) / _ROUND
