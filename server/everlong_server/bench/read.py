"""`everlong bench read`: reading speed against what the machine's matrix units can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from everlong_models.backbone import Backbone
from everlong_models.linear import Linear
from everlong_models.loading import DEFAULT_BACKBONE, load_backbone
from everlong_models.memory import SegmentReader
from everlong_models.model import MEMORIES
from everlong_models.rmt import RMT, RMTConfig
from everlong_server.bench.report import Report, Target
from everlong_server.bench.tiny import tiny_backbone, tiny_memory
from everlong_server.settings import load_settings

SEGMENT = 512
MEMORY_TOKENS = 16
_PEAK_SIZES = (1024, 2048)
"""Square matrices: the faster size counts. Larger ones leave the caches and are slower."""


def run(*, quick: bool, progress: Callable[[str], None]) -> Report:
    """Reads with every memory: around a tiny backbone, around the default one (not if `quick`), and from scratch."""
    segments = 3 if quick else 8
    models_dir = load_settings().models_dir.expanduser()
    backbones: dict[str, Callable[[], Backbone]] = {"tiny": tiny_backbone}
    if not quick:
        backbones[DEFAULT_BACKBONE] = lambda: load_backbone(DEFAULT_BACKBONE, models_dir=models_dir, progress=progress)[
            0
        ]
    rows: list[dict[str, Any]] = []
    for name in (name for name, kind in MEMORIES.items() if not kind.around):
        progress(f"reading with {name}, from scratch")
        rows.append(_measure_counted(name, tiny_memory(name, None, SEGMENT), "from scratch", segments))
    for model, load in backbones.items():
        backbone = load()
        for name in (name for name, kind in MEMORIES.items() if kind.around and not kind.whole):
            progress(f"reading with {name} around {model}")
            rows.append(_measure_counted(name, tiny_memory(name, backbone, SEGMENT), model, segments))
        progress(f"reading with rmt around {model}")
        backbone.optimize()
        best = measure_reading(backbone, segments=segments)
        rows.append({**best, "memory": "rmt", "model": model, "gflops_per_segment": best["needed_gflops_per_segment"]})
    columns = (
        "memory",
        "model",
        "tokens_per_second",
        "gflops_per_segment",
        "seconds_per_segment",
        "peak_gflops",
        "ratio",
        "ratio_mm",
    )
    return Report(
        "read",
        [{column: row[column] for column in columns} for row in rows],
        [
            Target(f"rmt around {model}: share of torch.mm's float32 peak", best["ratio_mm"], 0.85, at_most=False),
            Target(f"rmt around {model}: share of the higher peak, oneDNN's", best["ratio"], 0.85, at_most=False),
        ],
        [
            "rmt: FLOPs are those needed (causal half of attention, the last layer only where it is wanted); the others': as "
            "executed, masked halves included, and their backbones run through transformers' own modules",
            "from scratch: 4 layers of width 256, 257 tokens of vocabulary. window reads without a matmul",
        ],
    )


@torch.inference_mode()
def _measure_counted(name: str, memory: SegmentReader, model: str, segments: int) -> dict[str, Any]:
    """Reading one segment of 512 at a time; FLOPs as PyTorch's counter sees them executed."""
    tokens = torch.randint(0, memory.vocab_size, (1, memory.segment_length), generator=torch.Generator().manual_seed(0))
    state = memory.read(tokens, memory.initial_state(1))
    with FlopCounterMode(display=False) as counter:
        state = memory.read(tokens, state)
    flops, seconds, peak = counter.get_total_flops(), [], {"mm": 0.0, "packed": 0.0}
    a, b = torch.randn(2, _PEAK_SIZES[0], _PEAK_SIZES[0])
    ways: dict[str, Callable[[], object]] = {"mm": partial(torch.mm, a, b), "packed": partial(Linear(b), a)}
    for _ in range(segments):
        start = time.perf_counter()
        state = memory.read(tokens, state)
        seconds.append(time.perf_counter() - start)
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            peak[way] = max(peak[way], 2 * _PEAK_SIZES[0] ** 3 / (time.perf_counter() - start))
    best = min(seconds)
    return {
        "memory": name,
        "model": model,
        "tokens_per_second": memory.segment_length / best,
        "gflops_per_segment": flops / 1e9,
        "seconds_per_segment": best,
        "peak_gflops": max(peak.values()) / 1e9,
        "ratio": flops / best / max(peak.values()),
        "ratio_mm": flops / best / peak["mm"],
    }


@torch.inference_mode()
def measure_reading(backbone: Backbone, *, segments: int = 8, rows: int = 1) -> dict[str, Any]:
    """Reads `segments` segments of `rows` rows into an RMT (S = 512, m = 16) around `backbone`, as it is.

    `ratio` is what the matmuls of `needed_flops` would take at the matmul peak ÷ what reading takes. The peak is
    measured between the segments, in the backbone's type and on its device: the faster of `torch.mm` and, where there
    is one, the packed oneDNN matmul (`ratio_mm` is against `torch.mm` alone). All times are the best of the run, but
    for `seconds_per_segment_median`.
    """
    model = RMT(RMTConfig(segment_length=SEGMENT, memory_tokens=MEMORY_TOKENS), backbone).eval().requires_grad_(False)
    tokens = torch.randint(backbone.vocab_size, (rows, SEGMENT), generator=torch.Generator().manual_seed(0))
    tokens = tokens.to(backbone.device)
    matmuls = [(name, size, run) for size in _PEAK_SIZES for name, run in _matmuls(backbone, size).items()]
    state = model.read(tokens, model.initial_state(rows))  # warm up
    reading: list[float] = []
    peak = {"mm": 0.0, "packed": 0.0}
    for _ in range(segments):
        start = _now(backbone)
        state = model.read(tokens, state)
        reading.append(_now(backbone) - start)
        for name, size, run in matmuls:
            start = _now(backbone)
            run()
            peak[name] = max(peak[name], 2 * size**3 / (_now(backbone) - start))
    seconds, needed = min(reading), rows * needed_flops(backbone, SEGMENT + 2 * MEMORY_TOKENS, MEMORY_TOKENS)
    return {
        "model": Path(backbone.model.name_or_path).name,
        "memory": f"rmt, {MEMORY_TOKENS} tokens",
        "segment_length": SEGMENT,
        "rows": rows,
        "tokens_per_second": rows * SEGMENT / seconds,
        "needed_gflops_per_segment": needed / 1e9,
        "seconds_per_segment": seconds,
        "seconds_per_segment_median": statistics.median(reading),
        "peak_gflops": max(peak.values()) / 1e9,
        "peak_mm_gflops": peak["mm"] / 1e9,
        "ratio": needed / seconds / max(peak.values()),
        "ratio_mm": needed / seconds / peak["mm"],
    }


def needed_flops(backbone: Backbone, positions: int, keep: int) -> float:
    """Floating point operations in the matmuls that one row of T `positions` needs if the last m = `keep` are wanted.

    With L layers, P weights in a layer's matrices, of which P_kv make keys and values, and H heads of size d:

        2 T P (L−1)  +  2 T P_kv  +  2 m (P − P_kv)      matrices; the last layer: keys and values of all, the rest of m
        + 4 d H [(L−1) T (T+1) / 2  +  m (2T − m + 1) / 2]      scores and mixing, for pairs of query and key not masked

    No embedding, no head, no norms, no softmax.
    """
    T, m, L = positions, keep, backbone.layers
    layers = next(
        module for module in backbone.model.modules() if isinstance(module, nn.ModuleList) and len(module) == L
    )
    P = sum(weight.numel() for weight in layers[0].parameters() if weight.dim() == 2)
    P_kv = 2 * backbone.width * backbone.kv_heads * backbone.head_dim
    pairs = (L - 1) * T * (T + 1) / 2 + m * (2 * T - m + 1) / 2
    return 2 * T * P * (L - 1) + 2 * T * P_kv + 2 * m * (P - P_kv) + 4 * backbone.head_dim * backbone.heads * pairs


def _matmuls(backbone: Backbone, size: int) -> dict[str, Callable[[], object]]:
    """By name, the ways to multiply two square matrices."""
    a, b = torch.randn(2, size, size, dtype=backbone.dtype, device=backbone.device)
    return {"mm": partial(torch.mm, a, b), "packed": partial(Linear(b), a)}


def _now(backbone: Backbone) -> float:
    if backbone.device.type == "cuda":
        torch.cuda.synchronize(backbone.device)
    return time.perf_counter()
