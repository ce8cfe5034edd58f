"""`everlong bench families`: decode and prefill of every family with the fast path, as a ratio to Llama at equal sizes: as many heads, key
heads and weights.

Both models run in turns in one process, also at every decode step, and the fastest of each counts. So other load on the machine slows down both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from everlong_lab.harness.report import Report, Target
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.description import FAMILIES

MOST = 1.1
"""A family takes at most this many times as long as Llama."""
_STEPS = 48
_SIZES = {
    "vocab_size": 1000, "num_attention_heads": 8, "max_position_embeddings": 8192, "pad_token_id": 0,
}  # fmt: skip
_GRANITE = {
    "attention_multiplier": 0.125,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
_SWITCHES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 512}, "gemma2": {"sliding_window": 512}, "gemma3_text": {"sliding_window": 512},
    "olmo3": {"sliding_window": 512}, "granite": _GRANITE,
}  # fmt: skip
"""Where the defaults of transformers' config do not have the family's switches, or windows larger than what is measured."""

_UNGATED = {"gpt2": "n_inner", "gpt_neox": "intermediate_size", "falcon": "ffn_hidden_size"}
"""The field of the MLP's width, in families without a gate."""


def run(
    *, families: Sequence[str], width: int, layers: int, tokens: int, turns: int, progress: Callable[[str], None]
) -> Report:
    """Measure these families: prefill of this many `tokens`, then decode steps, around random models of this size."""
    rows: list[dict[str, Any]] = []
    llamas: dict[int, Backbone] = {}
    for kind in families:
        progress(f"measuring {kind}")
        other = _build(kind, width, layers)
        if other.kv_heads not in llamas:
            llamas[other.kv_heads] = _build("llama", width, layers, other.kv_heads)
        rows.append({"family": kind, **_ratios(llamas[other.kv_heads], other, tokens, turns)})
    targets = [
        Target(f"{row['family']}: {phase} ÷ llama's", row[f"{phase}_ratio"], MOST, at_most=True)
        for row in rows
        for phase in ("decode", "prefill")
    ]
    note = f"{layers} layers of width {width}, {tokens} tokens, {torch.get_num_threads()} threads; the fastest of {turns} turns"
    return Report("families", rows, targets, [note])


def _build(kind: str, width: int, layers: int, kv_heads: int = 2) -> Backbone:
    torch.manual_seed(0)
    sizes = _SIZES | {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    sizes["num_key_value_heads"] = kv_heads
    if kind in _UNGATED:
        # Two matrices with as many weights as Llama's three. The family decides the number of key heads.
        sizes |= {_UNGATED[kind]: 9 * width // 2, "bos_token_id": 0, "eos_token_id": 0}
        del sizes["num_key_value_heads"]
    if kind == "qwen3_moe":  # as much is multiplied for each token as in Llama's MLP
        sizes |= {
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 3 * width // 4,
            "norm_topk_prob": True,
        }
    if kind != "phi3" and kind not in _UNGATED:  # their configs have none
        sizes["head_dim"] = width // 8
    config = AutoConfig.for_model(kind, **sizes | _SWITCHES.get(kind, {}))
    backbone = Backbone(AutoModelForCausalLM.from_config(config).eval())
    if reason := backbone.optimize(quantize=True, bfloat16=True):
        raise AssertionError(f"{kind} has no fast path: {reason}")
    return backbone


@torch.inference_mode()
def _ratios(llama: Backbone, other: Backbone, tokens: int, turns: int) -> dict[str, float]:
    pair = (llama, other)
    x = torch.randn(1, tokens, llama.width, generator=torch.Generator().manual_seed(0))
    caches = [backbone.new_kv(1, tokens + _STEPS) for backbone in pair]
    prefill, decode = ([float("inf")] * 2 for _ in range(2))
    for _ in range(turns + 1):  # the first turn warms up
        for index, (backbone, kv) in enumerate(zip(pair, caches, strict=True)):
            begun = time.perf_counter()
            backbone.hidden(x, kv=kv, keep=1)
            prefill[index] = min(prefill[index], time.perf_counter() - begun)
        for n in range(_STEPS):
            for index, (backbone, kv) in enumerate(zip(pair, caches, strict=True)):
                decode[index] = min(decode[index], _step(backbone, x, kv, tokens + n))
    return {
        "decode_ratio": decode[1] / decode[0],
        "prefill_ratio": prefill[1] / prefill[0],
        "decode_ms": 1000 * decode[1],
        "prefill_seconds": prefill[1],
    }


def _step(backbone: Backbone, x: Tensor, kv: Tensor, at: int) -> float:
    begun = time.perf_counter()
    backbone.hidden(x[:, :1], kv=kv, at=torch.tensor([at]))
    return time.perf_counter() - begun


def supported() -> tuple[str, ...]:
    """Return the families that can be measured: all but Llama."""
    return tuple(kind for kind in FAMILIES if kind != "llama")
