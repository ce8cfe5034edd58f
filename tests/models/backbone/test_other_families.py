"""Families without kernels of ours compute what transformers computes; docs/guide/models.md lists them, and those that are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.description import sliding_window
from everlong_models.errors import BackboneError

PAGE = Path(__file__).parents[3] / "docs/guide/models.md"
SIZES = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "sliding_window": 12,
}  # fmt: skip
"""Fields that an architecture does not have are ignored."""
OWN_HEADS = {"gptj", "olmoe", "opt", "persimmon", "phi", "mpt"}
"""Architectures whose heads are the width divided by their number, and have keys of their own."""
MORE: dict[str, dict[str, Any]] = {
    "gptj": {"rotary_dim": 4},
    "gemma3n_text": {"vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 8},
    "gemma4_text": {"vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8, "global_head_dim": 32},
    "glm4_moe_lite": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
    "minicpm3": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": 256},
    "deepseek_v3": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
}  # fmt: skip
EXACT = (
    "afmoe", "apertus", "arcee", "cohere", "cohere2", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "glm",
    "glm4", "glm4_moe", "gpt_oss", "gptj", "granitemoe", "granitemoeshared", "granite_swa", "hunyuan_v1_dense", "hunyuan_v1_moe", "jais2",
    "jetmoe", "minimax_m2", "ministral", "ministral3", "mixtral", "mpt", "nemotron", "olmo", "olmoe", "opt", "persimmon", "phi", "phimoe",
    "qwen2_moe", "seed_oss", "solar_open", "starcoder2", "vaultgemma",
)  # fmt: skip
REFUSED = {
    "gemma3n_text": "its logits do not follow from embeddings, keys, values and its head alone",
    "gemma4_text": "its layers have heads of different sizes",
    "llama4_text": "is not a causal language model with a separate head",
    "deepseek_v3": "its layers do not take keys and values",
    "glm4_moe_lite": "its layers do not take keys and values",
    "minicpm3": "its layers do not take keys and values",
    "lfm3": "its layers do not take keys and values",
    "modernbert-decoder": "its logits do not follow from embeddings, keys, values and its head alone",
    "bloom": "its layers do not take keys and values",
    "gpt_neo": "its logits do not follow from embeddings, keys, values and its head alone",
}


def make(kind: str) -> PreTrainedModel:
    sizes = SIZES | MORE.get(kind, {})
    if kind in OWN_HEADS or kind in (
        "bloom",
        "modernbert-decoder",
        "deepseek_v3",
        "glm4_moe_lite",
        "minicpm3",
        "gpt_neo",
    ):
        sizes = {name: value for name, value in sizes.items() if name not in ("head_dim", "num_key_value_heads")}
    if "q_lora_rank" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise if parameter.dim() > 1 else parameter + 0.1 * noise)
    return model


@pytest.mark.parametrize("kind", EXACT)
@torch.no_grad()
def test_logits_are_those_of_transformers_at_every_position(kind: str) -> None:
    """At once, in chunks and steps, and with rows at different positions, longer than the sliding window where there is one."""
    model = make(kind)
    tokens = torch.randint(3, 97, (2, 60), generator=torch.Generator().manual_seed(2))
    expected, backbone = model(tokens).logits, Backbone(model)
    x, kv = backbone.embed(tokens), backbone.new_kv(2, 64)

    def require(found: torch.Tensor, wanted: torch.Tensor) -> None:
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5

    require(backbone.logits(backbone.hidden(x)), expected)
    require(backbone.logits(backbone.hidden(x[:, :30], kv=kv)), expected[:, :30])
    for first, end in ((30, 31), (31, 32), (32, 45), (45, 60)):
        at = torch.tensor([first, first])
        require(backbone.logits(backbone.hidden(x[:, first:end], kv=kv, at=at)), expected[:, first:end])
    at = torch.tensor([20, 40])
    step = backbone.logits(backbone.hidden(x[[0, 1], at][:, None], kv=kv, at=at))
    require(step[:, 0], expected[[0, 1], at])


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_is_refused_when_it_is_loaded(kind: str) -> None:
    with pytest.raises(BackboneError, match=REFUSED[kind]):
        Backbone(make(kind))


def test_some_have_a_sliding_window() -> None:
    found = [kind for kind in EXACT if sliding_window(AutoConfig.for_model(kind, **SIZES))]
    assert {"cohere2", "gpt_oss", "exaone4", "ministral", "mixtral", "starcoder2"} <= set(found)


def test_the_page_lists_both() -> None:
    page = PAGE.read_text()
    for title, kinds in (("Also exact", EXACT), ("Refused", REFUSED)):
        (line,) = re.findall(rf"^- \*\*{title}\*\*[^:]*: (.+?)(?=\n- |\n\n)", page, re.M | re.S)
        assert re.findall(r"`([\w-]+)`", line) == list(kinds)
