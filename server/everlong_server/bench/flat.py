"""`everlong bench flat`: neither time per token nor memory depends on how much was read."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import psutil
import torch

from everlong_models import MemoryState, Sampler, SamplingParams
from everlong_models.rmt import RMT
from everlong_server.bench.report import Report, Target
from everlong_server.bench.tiny import SEGMENT, tiny_rmt

_ROUND = 64
_ROUNDS = 24


def flat(*, quick: bool, progress: Callable[[str], None]) -> Report:
    """Reads 1k, 10k, 100k, 1M tokens into one memory, then generates behind each in turn."""
    lengths = (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    model, process = tiny_rmt(), psutil.Process()
    generator = torch.Generator().manual_seed(0)
    states: dict[int, MemoryState] = {}
    resident: dict[int, int] = {}
    reading: dict[int, float] = {}
    with torch.inference_mode():
        state, read = model.initial_state(1), 0
        for length in lengths:
            start, before = time.perf_counter(), read
            while read < length:
                state = model.read(torch.randint(0, 256, (1, SEGMENT), generator=generator), state)
                read += SEGMENT
            reading[length] = (read - before) / (time.perf_counter() - start)
            states[length], resident[length] = state, process.memory_info().rss
            progress(f"read {read:,} tokens, resident memory {resident[length] / 1e6:.0f} MB")
        _generate(model, state)  # warm up
        # The lengths take turns, so that what else the machine does meets all of them alike.
        times: dict[int, list[float]] = {length: [] for length in lengths}
        for turn in range(_ROUNDS):
            for length in lengths if turn % 2 else reversed(lengths):
                times[length].append(_generate(model, states[length]))
            if turn % 8 == 7:
                progress(f"generated {(turn + 1) * _ROUND * len(lengths):,} tokens")
    rows = [
        {
            "context_tokens": length,
            "ms_per_token": statistics.median(times[length]) * 1e3,
            "state_bytes": states[length].nbytes,
            "resident_mb": resident[length] / 1e6,
            "reading_tokens_per_second": reading[length],
        }
        for length in lengths
    ]
    # Paired by turn: the ratio of neighbours in time, then the median.
    ratios = [last / first for first, last in zip(times[lengths[0]], times[lengths[-1]], strict=True)]
    ratio = statistics.median(ratios)
    growth = resident[lengths[-1]] / resident[10_000]
    same = len({state.nbytes for state in states.values()}) == 1
    return Report(
        "flat",
        rows,
        [
            Target(f"time per output token at {lengths[-1]:,} ÷ at {lengths[0]:,}", ratio, 1.02, at_most=True),
            Target(f"resident memory after {lengths[-1]:,} ÷ after 10,000", growth, 1.05, at_most=True),
            Target("state bytes equal at every length (1 = yes)", float(same), 1.0, at_most=False),
        ],
        [
            "a tiny random RMT (segment 512, 16 memory tokens); times are medians of turns of 64 tokens, crossing no border"
        ],
    )


def _generate(model: RMT, state: MemoryState) -> float:
    """Seconds per token of one turn."""
    sampler = Sampler(SamplingParams(), 0, [], model.vocab_size)
    cache, logits = model.open(state, torch.zeros(1, 8, dtype=torch.int64))
    start = time.perf_counter()
    for _ in range(_ROUND):
        logits = model.step(cache, torch.tensor([sampler.draw(logits[0])]))
    return (time.perf_counter() - start) / _ROUND
