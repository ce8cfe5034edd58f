"""Of a model that also reads pictures, only the decoder is loaded, and has the fast path of its family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from everlong_models.backbone.loading import has_own_memory, load_backbone
from tests.models import tiny_recurrent
from tests.models.backbone.test_other_families import SIZES
from tests.tinymodel import make_tokenizer

PICTURES = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    "depth": 1, "num_heads": 2, "out_hidden_size": 48,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"] * 2
KINDS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "gemma3": ("gemma3_text", {"layer_types": MIXED}, True),
    "mistral3": ("mistral", {}, True),
    "mistral3 of 2025": ("ministral3", {}, False),
}
"""Name → the decoder's `model_type`, settings, and whether it has the fast path."""


def save(folder: Path, kind: str, text: str, **more: Any) -> PreTrainedModel:
    decoder = AutoConfig.for_model(text, **(SIZES | {"vocab_size": 300} | more))
    config = type(AutoConfig.for_model(kind))(text_config=decoder.to_dict(), vision_config=PICTURES)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(folder)
    make_tokenizer(300).save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_only_the_decoder_is_loaded(name: str, tmp_path: Path) -> None:
    text, more, fast = KINDS[name]
    original = save(tmp_path / "model", name.split(maxsplit=1)[0], text, **more)
    tokens = torch.randint(3, 290, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = original(input_ids=tokens).logits
    backbone, _ = load_backbone(str(tmp_path / "model"), models_dir=tmp_path)
    assert backbone.model.config.model_type == text
    assert not [key for key in backbone.model.state_dict() if "vision" in key]
    assert (backbone.optimize() is None) == fast
    found = backbone.logits(backbone.hidden(backbone.embed(tokens)))
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_a_decoder_with_a_memory_of_its_own_is_recognised(tmp_path: Path) -> None:
    more = {
        name: value for name, value in tiny_recurrent.CONFIGS["qwen3_5_text"].items() if name != "attn_implementation"
    }
    save(tmp_path / "model", "qwen3_5", "qwen3_5_text", **more)
    assert has_own_memory(str(tmp_path / "model"), models_dir=tmp_path)
