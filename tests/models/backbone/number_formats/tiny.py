"""Tiny backbones for the tests of quantised weights, wide enough for groups of 128, and what these tests measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from everlong_models.backbone.backbone import Backbone
from tests.tinymodel import make_tokenizer

SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 300, "max_position_embeddings": 512,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "gemma3_text": {"head_dim": 64, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
}  # fmt: skip
WINDOW = {"segment_length": 16, "window": 40, "sinks": 2}


def save(folder: Path, kind: str, **more: Any) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SIZES | KINDS.get(kind, {}) | more))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    make_tokenizer(300).save_pretrained(folder)
    return folder


def tokens(rows: int = 2, count: int = 40) -> Tensor:
    return torch.randint(3, 290, (rows, count), generator=torch.Generator().manual_seed(1))


def logits(backbone: Backbone, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return backbone.logits(backbone.hidden(backbone.embed(ids)))


def held_bytes(model: PreTrainedModel) -> int:
    """The bytes of all tensors that the weights consist of."""
    return sum(
        sum(getattr(weight, part).nbytes for part in weight.__tensor_flatten__()[0])
        if hasattr(weight, "__tensor_flatten__")
        else weight.nbytes
        for weight in model.parameters()
    )


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())
