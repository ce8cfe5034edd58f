"""Driving a backbone's layers one by one is the backbone's own forward; other architectures are refused."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.layers import Layers
from everlong_models.errors import BackboneError
from tests.models.tiny import FAMILIES, VOCAB, llama

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
COUSINS = {
    "mistral": (MistralForCausalLM, MistralConfig, {"num_key_value_heads": 2, "sliding_window": None}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 2}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"num_key_value_heads": 2, "head_dim": 8}),
}


def cousin(name: str, **changes: object) -> Backbone:
    kind, config, more = COUSINS[name]
    torch.manual_seed(0)
    return Backbone(kind(config(**SMALL, **(more | changes))).double().eval())


def make(name: str) -> Backbone:
    return FAMILIES[name]() if name in FAMILIES else cousin(name)


def drive(layers: Layers, x: torch.Tensor, **where: torch.Tensor | None) -> torch.Tensor:
    h, shared = layers.begin(x, **where)
    for layer in range(len(layers)):
        h = layers(layer, h, shared)
    return layers.end(h)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


CLOSE = {"sdpa": {"rtol": 1e-9, "atol": 1e-9}, "eager": {"rtol": 1e-6, "atol": 1e-6}}
"""Transformers' eager attention has its softmax in float32, whatever the weights: sums of another order differ by 6e-8."""


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*FAMILIES, *COUSINS])
def test_the_loop_is_the_backbones_forward(name, attention):
    backbone = make(name)
    backbone.model.set_attn_implementation(attention)
    x = torch.randn(2, 9, 48, dtype=torch.float64)
    expected = backbone.model.base_model(inputs_embeds=x, use_cache=False).last_hidden_state
    layers = Layers(backbone)
    assert len(layers) == backbone.layers
    torch.testing.assert_close(drive(layers, x), expected, **CLOSE[attention])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*FAMILIES, *COUSINS])
def test_rows_continue_at_their_own_positions(name, attention):
    backbone = make(name)
    backbone.model.set_attn_implementation(attention)
    layers = Layers(backbone)
    x = torch.randn(2, 9, 48, dtype=torch.float64)
    whole = drive(layers, x)
    starts = (3, 6)
    kv = torch.cat([backbone.new_kv(1, 12), backbone.new_kv(1, 12)])
    for row, n in enumerate(starts):
        drive(layers, x[row : row + 1, :n], kv=kv[row : row + 1])
    rest = torch.stack([x[row, n : n + 3] for row, n in enumerate(starts)])
    out = drive(layers, rest, kv=kv, at=torch.tensor(starts))
    for row, n in enumerate(starts):
        torch.testing.assert_close(out[row], whole[row, n : n + 3], **CLOSE[attention])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", [*FAMILIES, *COUSINS])
def test_stacked_weights_run_every_layer_at_once(name):
    layers = Layers(make(name))
    h = torch.randn(len(layers), 2, 9, 48, dtype=torch.float64)
    _, shared = layers.begin(h[0])
    together = torch.vmap(lambda weights, x: layers.call_with(weights, x, shared))(layers.stacked(), h)
    for layer in range(len(layers)):
        torch.testing.assert_close(together[layer], layers(layer, h[layer], shared), rtol=1e-9, atol=1e-9)


def test_what_would_run_wrongly_is_refused():
    neox = Backbone(GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)))
    with pytest.raises(BackboneError, match=r"'gpt_neox'.*known: gpt2, llama"):
        Layers(neox)
    with pytest.raises(BackboneError, match="sliding_window=7"):
        Layers(cousin("mistral", sliding_window=7))
    backbone = llama()
    del backbone.model.model.rotary_emb
    with pytest.raises(BackboneError, match="LlamaModel has no rotary_emb"):
        Layers(backbone)
    backbone = llama()
    backbone.model.config._attn_implementation = "flex_attention"
    with pytest.raises(BackboneError, match="attn_implementation='flex_attention' takes no explicit mask"):
        Layers(backbone)
    with pytest.raises(BackboneError, match="needs the keys and values"):
        Layers(llama()).begin(torch.zeros(1, 1, 48, dtype=torch.float64), at=torch.zeros(1, dtype=torch.int64))
