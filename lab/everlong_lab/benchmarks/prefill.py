"""`everlong bench read`: prefill throughput as a share of the machine's matmul peak."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.tiny import tiny_backbone, tiny_memory
from everlong_models import CUDAGraphs, MemoryState, ReadGraphs
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.loading import DEFAULT_BACKBONE, load_backbone
from everlong_models.kernels.linear import Linear
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.model import MEMORIES
from everlong_server.settings import load_settings

SEGMENT = 512
MEMORY_TOKENS = 16
_PEAK_SIZES = {"cpu": (1024, 2048), "cuda": (8192,)}
"""Sizes of square matrices, of which the faster counts. Larger ones exceed a CPU's caches; smaller ones leave a GPU idle."""


def run(
    *, quick: bool, progress: Callable[[str], None], documents: Sequence[int] = (1,), device: str = "cpu"
) -> Report:
    """Reads with every memory, this many `documents` side by side: around a tiny backbone, around the default one (not if
    `quick`), and from scratch."""
    segments = 3 if quick else 8
    models_dir = load_settings().models_dir.expanduser()
    backbones: dict[str, Callable[[], Backbone]] = {"tiny": lambda: tiny_backbone(device)}
    if not quick:
        backbones[DEFAULT_BACKBONE] = lambda: load_backbone(
            DEFAULT_BACKBONE, models_dir=models_dir, device=device, progress=progress
        )[0]
    rows: list[dict[str, Any]] = []
    best: dict[int, dict[str, Any]] = {}

    def counted(name: str, memory: SegmentReader, model: str) -> None:
        memory.to(device)
        for number in documents:
            progress(f"reading {number} documents with {name}, {model}")
            rows.append(_measure_counted(name, memory, model, segments, number))

    for name in (name for name, kind in MEMORIES.items() if not kind.around):
        counted(name, tiny_memory(name, None, SEGMENT), "from scratch")
    for model, load in backbones.items():
        backbone = load()
        for name in (name for name, kind in MEMORIES.items() if kind.around and not kind.whole and not kind.recurrent):
            counted(name, tiny_memory(name, backbone, SEGMENT), model)
        backbone.optimize()
        for number in documents:
            progress(f"reading {number} documents with rmt around {model}")
            best[number] = found = measure_reading(backbone, segments=segments, rows=number)
            flops = found["needed_gflops_per_segment"]
            rows.append({**found, "memory": "rmt", "model": model, "gflops_per_segment": flops, "documents": number})
    return Report(
        "read", [{column: row[column] for column in _COLUMNS} for row in rows], _targets(best, model, device), _NOTES
    )


_COLUMNS = (
    "memory", "model", "documents", "tokens_per_second", "gflops_per_segment", "seconds_per_segment", "peak_gflops", "ratio",
    "ratio_mm",
)  # fmt: skip
_NOTES = [
    "rmt: FLOPs are those needed (causal half of attention, the last layer only where it is wanted); for the others, those "
    "executed, including masked halves, and their backbones run with transformers' own modules",
    "from scratch: 4 layers of width 256, 257 tokens of vocabulary. window reads without a matmul",
    "peaks are of the weights' type on the device: torch.mm, and the models' own matmul; a segment is one of each document",
]


def _targets(best: dict[int, dict[str, Any]], model: str, device: str) -> list[Target]:
    """Return the targets for RMT around `model`, from its figures by number of documents."""
    targets = []
    for number, found in best.items():
        what = f"rmt around {model}, {number} documents" if number > 1 else f"rmt around {model}"
        least = 0.85 if device == "cpu" else 0.4 if number >= 64 else 0.1
        targets += [
            Target(f"{what}: share of torch.mm's peak", found["ratio_mm"], least, at_most=False),
            Target(f"{what}: share of the higher peak", found["ratio"], least, at_most=False),
        ]
        if device != "cpu" and number == 1:
            seconds = 1_000_000 / found["tokens_per_second"]
            targets.append(Target(f"{what}: seconds for 1,000,000 tokens", seconds, 10, at_most=True))
    return targets


@torch.inference_mode()
def _measure_counted(name: str, memory: SegmentReader, model: str, segments: int, rows: int) -> dict[str, Any]:
    """Measure reading one segment of each document at a time; FLOPs are those that PyTorch's counter sees."""
    state = memory.initial_state(rows)
    device = state.device
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, memory.vocab_size, (rows, memory.segment_length), generator=generator).to(device)
    state = memory.read(tokens, state)
    with FlopCounterMode(display=False, custom_mapping=dict.fromkeys(_FUSED, _attention_flops)) as counter:
        state = memory.read(tokens, state)
    dtype = next(parameter.dtype for parameter in memory.parameters() if parameter.is_floating_point())
    seconds, peak = _timed(memory, tokens, state, segments, _PEAK_SIZES[device.type][:1], dtype)
    best, flops = min(seconds), counter.get_total_flops()
    return {
        "memory": name,
        "model": model,
        "documents": rows,
        "tokens_per_second": rows * memory.segment_length / best,
        "gflops_per_segment": flops / 1e9,
        "seconds_per_segment": best,
        "peak_gflops": max(peak.values()) / 1e9,
        "ratio": flops / best / max(peak.values()),
        "ratio_mm": flops / best / peak["mm"],
    }


@torch.inference_mode()
def measure_reading(backbone: Backbone, *, segments: int = 8, rows: int = 1) -> dict[str, Any]:
    """Read `segments` segments of `rows` rows into an RMT (S = 512, m = 16) around `backbone`; return the figures.

    `ratio`: time that the matmuls of `needed_flops` would take at the matmul peak ÷ time that reading takes. The peak is
    measured between the segments, in the backbone's type and on its device, as the faster of `torch.mm` and the models'
    own `Linear`; `ratio_mm` uses `torch.mm` alone. All times are the best of the run, except
    `seconds_per_segment_median`.
    """
    model = RMT(RMTConfig(segment_length=SEGMENT, memory_tokens=MEMORY_TOKENS), backbone).eval().requires_grad_(False)
    tokens = torch.randint(backbone.vocab_size, (rows, SEGMENT), generator=torch.Generator().manual_seed(0))
    tokens = tokens.to(backbone.device)
    sizes = _PEAK_SIZES[backbone.device.type]
    reading, peak = _timed(model, tokens, model.initial_state(rows), segments, sizes, backbone.dtype)
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


def _timed(
    memory: SegmentReader,
    tokens: torch.Tensor,
    state: MemoryState,
    segments: int,
    sizes: Sequence[int],
    dtype: torch.dtype,
) -> tuple[list[float], dict[str, float]]:
    """Read `segments` segments as the server does (on a GPU, with CUDA graphs), with matmuls of all `sizes` in between.

    Returns the seconds of each segment, and the peak FLOP/s of `torch.mm` and of the models' own matmul.
    """
    device = tokens.device
    read = ReadGraphs(memory, CUDAGraphs(device)) if device.type == "cuda" else memory.read
    state = read(tokens, state)  # warm up
    matmuls: list[tuple[str, int, Callable[[], object]]] = []
    for size in sizes:
        a, b = torch.randn(2, size, size, dtype=dtype, device=device)
        matmuls += [("mm", size, partial(torch.mm, a, b)), ("packed", size, partial(Linear(b), a))]
    seconds, peak = [], {"mm": 0.0, "packed": 0.0}
    for _ in range(segments):
        start = _now(device)
        state = read(tokens, state)
        seconds.append(_now(device) - start)
        for name, size, multiply in matmuls:
            start = _now(device)
            multiply()
            peak[name] = max(peak[name], 2 * size**3 / (_now(device) - start))
    return seconds, peak


def needed_flops(backbone: Backbone, positions: int, keep: int) -> float:
    """Return the FLOPs of the matmuls that a row of T `positions` needs if only the last m = `keep` outputs are wanted.

    With L layers, P weights in the matrices of a layer, of which P_kv make keys and values, and H heads of size d:

        2 T P (L−1)  +  2 T P_kv  +  2 m (P − P_kv)      matrices; the last layer: keys and values of all, the rest of m
        + 4 d H [(L−1) T (T+1) / 2  +  m (2T − m + 1) / 2]      scores and mixing, for unmasked pairs of query and key

    Without embedding, head, norms and softmax.
    """
    T, m, L = positions, keep, backbone.layers
    layers = next(
        module for module in backbone.model.modules() if isinstance(module, nn.ModuleList) and len(module) == L
    )
    P = sum(weight.numel() for weight in layers[0].parameters() if weight.dim() == 2)
    P_kv = 2 * backbone.width * backbone.kv_heads * backbone.head_dim
    pairs = (L - 1) * T * (T + 1) / 2 + m * (2 * T - m + 1) / 2
    return 2 * T * P * (L - 1) + 2 * T * P_kv + 2 * m * (P - P_kv) + 4 * backbone.head_dim * backbone.heads * pairs


_FUSED = [getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention") for kind in ("flash", "efficient", "cudnn")]


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of attention over shapes (B, heads, T, d). PyTorch before 2.13 could not count grouped queries."""
    B, heads, T, d = query
    return 2 * B * heads * T * key[2] * (d + value[3])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
