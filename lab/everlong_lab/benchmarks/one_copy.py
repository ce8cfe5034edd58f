"""`everlong bench one-copy`: a GGUF file served from one copy of its weights: speed, memory, and quality against float32."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from everlong_lab.harness.report import Report, Target
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.description import describe
from everlong_models.backbone.gguf import gpt
from everlong_models.backbone.gguf.blocks import floats_of
from everlong_models.backbone.gguf.families import config_of, float_tensors, floats
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.loading import load_backbone
from everlong_models.backbone.quantised_weights import unsupported_reason
from everlong_models.errors import BackboneError
from everlong_models.kernels.attention import additive_mask, causal_mask

DIVERGENCE, AGREEMENT = 0.002, 0.97
"""At most this mean KL divergence from float32 in nats, and at least this share of equal likeliest tokens."""
_STEPS, _TURNS, _ROWS = 32, 3, 8192


def run(file: Path, text: str, *, models_dir: Path, tokens: int, progress: Callable[[str], None]) -> Report:
    """Prefill this many `tokens` of `text`, and decode its next 32. Raises `BackboneError` for a file that is not supported."""
    stored = GGUFFile(file)
    if reason := unsupported_reason(stored):
        raise BackboneError(f"{file} cannot be served from one copy: {reason}")
    backbone, tokenizer = load_backbone(str(file), models_dir=models_dir, one_copy=True, progress=progress)
    backbone.optimize(quantize=True, bfloat16=True)
    ids = torch.tensor([tokenizer.encode(text)[: tokens + _STEPS]])
    if ids.shape[1] < tokens + _STEPS:
        raise BackboneError(f"the text has {ids.shape[1]} tokens; at least {tokens + _STEPS} are needed")
    progress("measuring speed")
    figures, found = _measure(backbone, ids, tokens)
    progress("computing the same in float32, a layer at a time")
    compared = _compare(_exact_hidden(stored, ids), found, stored, backbone, start=tokens)
    row = {"file": file.name, "threads": torch.get_num_threads(), "tokens": tokens, **figures, **compared}
    targets = [
        Target(f"{phase}: KL to float32, nats", compared[f"{phase}_kl"], DIVERGENCE, at_most=True)
        for phase in ("prefill", "decode")
    ]
    targets.append(Target("prefill: same likeliest token", compared["prefill_agreement"], AGREEMENT, at_most=False))
    return Report("one-copy", [row], targets, ["seconds of CPU include waiting threads; KL(float32 ‖ quantised)"])


@torch.no_grad()
def _measure(backbone: Backbone, ids: Tensor, tokens: int) -> tuple[dict[str, Any], Tensor]:
    """Return the figures, and the final hidden states (T + steps, D): of prefill, then of decode steps."""
    process, x = psutil.Process(), backbone.embed(ids)
    kv = backbone.new_kv(1, ids.shape[1])
    times = []
    for _ in range(_TURNS):
        begun = time.perf_counter(), _seconds(process)
        hidden = backbone.hidden(x[:, :tokens], kv=kv)
        times.append((time.perf_counter() - begun[0], _seconds(process) - begun[1]))
    prefill, prefill_cpu = min(times)
    found, begun = [hidden[0]], (time.perf_counter(), _seconds(process))
    for n in range(tokens, ids.shape[1]):
        found.append(backbone.hidden(x[:, n : n + 1], kv=kv, at=torch.tensor([n]))[0])
        backbone.logits(found[-1])
    steps = ids.shape[1] - tokens
    figures = {
        "prefill_seconds": prefill, "prefill_cpu_seconds": prefill_cpu,
        "ms_per_token": 1000 * (time.perf_counter() - begun[0]) / steps,
        "cpu_ms_per_token": 1000 * (_seconds(process) - begun[1]) / steps, "resident_gb": process.memory_info().rss / 1e9,
    }  # fmt: skip
    return figures, torch.cat(found)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@torch.no_grad()
def _exact_hidden(file: GGUFFile, ids: Tensor) -> Tensor:
    """Return the final hidden states (T, D) by transformers' modules with float32 weights, which exist for one layer at a time."""
    config = config_of(file)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).eval()
    base = model.base_model
    if hasattr(base, "rotary_emb"):
        base.rotary_emb = type(base.rotary_emb)(config)
    shape, positions = describe(model), torch.arange(ids.shape[1])[None]
    rows = file.rows("token_embd.weight")[ids[0].numpy()]
    h = floats_of(rows, file.tensors["token_embd.weight"].kind)[None]
    scale = getattr(model.get_input_embeddings(), "scalar_embed_scale", 1.0)
    h = h * scale * getattr(config, "embedding_multiplier", 1.0)
    if shape.positions is not None:
        h = h + floats(file, f"{gpt.POSITIONS}.weight")[: ids.shape[1]]
    rotations = shape.rotations(h, positions)
    more = {"alibi": None} if config.model_type == "falcon" else {}
    layers: Any = model.get_submodule(gpt.LAYERS.get(config.model_type, "model.layers"))
    for number, (layer, described) in enumerate(zip(layers, shape.layers, strict=True)):
        layer.load_state_dict(float_tensors(file, config, number), assign=True)
        visible = causal_mask(positions, ids.shape[1], described.window)[None]
        mask = additive_mask(visible, h.dtype, torch.finfo(h.dtype).min)
        out = layer(h, attention_mask=mask, position_embeddings=rotations[described.rotation], **more)
        h = out[0] if isinstance(out, tuple) else out  # Falcon returns the attention's weights, too
        layer.to("meta")
    norm = floats(file, "output_norm.weight")
    if shape.norm_bias is not None:
        return torch.nn.functional.layer_norm(h, h.shape[-1:], norm, floats(file, "output_norm.bias"), shape.eps)[0]
    return torch.nn.functional.rms_norm(h, h.shape[-1:], norm, shape.eps)[0]


@torch.no_grad()
def _compare(exact: Tensor, found: Tensor, file: GGUFFile, backbone: Backbone, *, start: int) -> dict[str, float]:
    """Compare the next token's distributions for hidden states (T, D): those before `start` are of prefill, the others of decode steps.

    The exact ones use the head in float32, a part of the vocabulary at a time.
    """
    name = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    rows, kind, figures = file.rows(name), file.tensors[name].kind, {}
    for phase, part in (("prefill", slice(max(0, start - 256), start)), ("decode", slice(start, None))):
        parts = [
            exact[part] @ floats_of(rows[first : first + _ROWS].copy(), kind).t()
            for first in range(0, len(rows), _ROWS)
        ]
        config = backbone.model.config
        wanted = torch.cat(parts, 1) / getattr(config, "logits_scaling", 1.0)
        near = backbone.logits(found[part])
        if cap := getattr(config, "final_logit_softcapping", None):
            wanted = torch.tanh(wanted / cap) * cap
        logs = wanted.log_softmax(-1)
        figures[f"{phase}_kl"] = float((logs.exp() * (logs - near.log_softmax(-1))).sum(-1).mean())
        figures[f"{phase}_agreement"] = float((wanted.argmax(-1) == near.argmax(-1)).float().mean())
    return figures
