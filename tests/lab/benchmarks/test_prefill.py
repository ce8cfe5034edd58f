"""The figures of `everlong bench read`: needed FLOPs, and a row."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from everlong_lab.benchmarks import prefill as read
from tests.models.tiny import gpt2, llama


@pytest.mark.parametrize("family", [llama, gpt2])
def test_needed_flops_are_those_of_a_full_forward_less_what_is_masked_or_not_wanted(family):
    backbone = family()
    T, H, d, D, L = 24, backbone.heads, backbone.head_dim, backbone.width, backbone.layers
    x = torch.randn(1, T, D, dtype=backbone.dtype)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone.model.set_attn_implementation("eager")
        backbone.hidden(x)
    masked = L * 4 * d * H * T * (T - 1) / 2
    assert read.needed_flops(backbone, T, T) == counter.get_total_flops() - masked
    # All but the last position: no query, no output, no MLP in the last layer.
    layer = (read.needed_flops(backbone, T, T) - 4 * d * H * L * T * (T + 1) / 2) / L
    kv = 2 * T * D * 2 * backbone.kv_heads * d
    saved = (layer - kv) * (T - 1) / T + 4 * d * H * T * (T - 1) / 2
    assert read.needed_flops(backbone, T, 1) == pytest.approx(read.needed_flops(backbone, T, T) - saved)


def test_a_row_of_figures(monkeypatch):
    monkeypatch.setattr(read, "_PEAK_SIZES", {"cpu": (16,)})
    monkeypatch.setattr(read, "SEGMENT", 32)
    backbone = llama(torch.float32)
    backbone.optimize()
    row = read.measure_reading(backbone, segments=2, rows=3)
    assert row["rows"] == 3
    assert row["tokens_per_second"] == pytest.approx(3 * 32 / row["seconds_per_segment"])
    assert row["needed_gflops_per_segment"] == pytest.approx(3 * read.needed_flops(backbone, 64, 16) / 1e9)
    assert row["peak_gflops"] >= row["peak_mm_gflops"] > 0
    speed = row["needed_gflops_per_segment"] / row["seconds_per_segment"]
    assert row["ratio"] == pytest.approx(speed / row["peak_gflops"])
    assert row["ratio_mm"] == pytest.approx(speed / row["peak_mm_gflops"])
    assert row["seconds_per_segment"] <= row["seconds_per_segment_median"]
