"""Of a model that also reads pictures, only the decoder is loaded, and has the fast path of its family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
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


@pytest.mark.parametrize("size", [16, None], ids=["blocks", "one scale"])
@torch.no_grad()
def test_weights_in_8_bits_keep_their_scales(size: int | None, tmp_path: Path) -> None:
    """As of Mistral's models of 2025; their config names the quantisation outside of the decoder's part."""
    original = save(tmp_path / "model", "mistral3", "ministral3")
    tensors, parameters = load_file(tmp_path / "model/model.safetensors"), dict(original.named_parameters())
    for name in [name for name in tensors if "language_model" in name and name.endswith("_proj.weight")]:
        (parameter,) = [each for each in parameters.values() if torch.equal(each, tensors[name])]
        step = size or max(parameter.shape)
        rows = parameter.split(step)
        scales = torch.stack([torch.stack([block.abs().amax() / 400 for block in row.split(step, 1)]) for row in rows])
        wide = scales.repeat_interleave(step, 0).repeat_interleave(step, 1)[: len(parameter), : parameter.shape[1]]
        tensors[name] = (parameter / wide).to(torch.float8_e4m3fn)
        parameter.copy_(tensors[name].float() * wide)
        tensors[f"{name}_scale_inv"] = scales if size else scales.flatten()[0]
    save_file(tensors, tmp_path / "model/model.safetensors", metadata={"format": "pt"})
    file = tmp_path / "model/config.json"
    quantisation = {
        "quant_method": "fp8", "weight_block_size": size and [size, size],
        "modules_to_not_convert": ["model.vision_tower", "model.language_model.lm_head"],
    }  # fmt: skip
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantisation}))
    tokens = torch.randint(3, 290, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = original(input_ids=tokens).logits
    backbone, _ = load_backbone(str(tmp_path / "model"), models_dir=tmp_path)
    found = backbone.logits(backbone.hidden(backbone.embed(tokens)))
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_a_decoder_with_a_memory_of_its_own_is_recognised(tmp_path: Path) -> None:
    more = {
        name: value for name, value in tiny_recurrent.CONFIGS["qwen3_5_text"].items() if name != "attn_implementation"
    }
    save(tmp_path / "model", "qwen3_5", "qwen3_5_text", **more)
    assert has_own_memory(str(tmp_path / "model"), models_dir=tmp_path)
