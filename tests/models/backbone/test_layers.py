"""Running a backbone layer by layer is transformers' own forward; unsupported architectures are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.layers.base import Layers, SplitLayers
from everlong_models.backbone.layers.families import FAMILIES as SUPPORTED
from everlong_models.backbone.layers.families import layers_of, split_layers_of
from everlong_models.errors import BackboneError
from everlong_models.memories.armt import ARMT, ARMTConfig
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from tests.models.tiny import FAMILIES, VOCAB, llama

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS = {"head_dim": 8, "sliding_window": 4, "layer_types": MIXED, "query_pre_attn_scalar": 12}
OTHERS = {
    "mistral": {"sliding_window": 4},
    "gpt_neox": {"num_key_value_heads": 6},
    "falcon": {
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "num_key_value_heads": 6,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gemma2": WINDOWS,
    "gemma3_text": WINDOWS,
    "olmo3": {"sliding_window": 4, "layer_types": MIXED},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 4.0,
    },
    "arcee": {},
    "starcoder2": {},
    "seed_oss": {"head_dim": 8},
    "gemma": {"head_dim": 8},
    "phi3": {},
    "olmo": {"clip_qkv": 0.5},
    "olmo2": {},
    "stablelm": {},
    "cohere": {"logit_scale": 0.25},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "ernie4_5": {},
    "helium": {"head_dim": 8},
    "apertus": {},
    "nemotron": {},
}
"""Settings of the architectures that tests/models/tiny.py does not build."""
NAMES = [*FAMILIES, *OTHERS]
SPLIT = [name for name in NAMES if issubclass(SUPPORTED[name], SplitLayers)]


def make(name: str, **changes: object) -> Backbone:
    if name in FAMILIES:
        return FAMILIES[name](**changes)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **(SMALL | OTHERS[name] | changes))
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    if hasattr(config, "num_experts"):
        model.set_experts_implementation("eager")  # the default takes no float64
    for parameter in model.parameters():  # large enough that every part of a layer changes the result
        parameter.data += 0.1 * torch.randn_like(parameter)
    return Backbone(model)


def run_whole(layers: Layers, x: Tensor, **where: Tensor | None) -> Tensor:
    h, shared = layers.begin(x, **where)
    for layer in range(len(layers)):
        h = layers(layer, h, shared)
    return layers.end(h)


def run_halves(layers: SplitLayers, x: Tensor, **where: Tensor | None) -> Tensor:
    h, shared = layers.begin(x, **where)
    for layer in range(len(layers)):
        h = layers.feed_forward(layer, h, layers.attend(layer, layers.norm(layer, h), shared).context)
    return layers.end(h)


RUNS = [*((name, run_whole) for name in NAMES), *((name, run_halves) for name in SPLIT)]
FEW = ("llama", "gpt2", "gpt_neox", "gemma2", "gemma3_text", "qwen3_moe")
"""One of each kind: of layers, of positions, with and without halves, windows and experts. The tests of the others are long together."""


def with_attention() -> Iterator[Any]:
    """Yield architecture, loop and kind of attention. Eager attention differs in the mask alone, which `Layers` makes for all."""
    for name, run in RUNS:
        yield pytest.param(name, run, "sdpa", id=f"{name}-{run.__name__}-sdpa")
        marks = () if name in FEW else pytest.mark.long
        yield pytest.param(name, run, "eager", id=f"{name}-{run.__name__}-eager", marks=marks)


def use(attention: str, backbone: Backbone) -> None:
    """Choose the implementation of attention. Gemma 2 has only one."""
    if attention == "sdpa" and not backbone.model._supports_sdpa:
        pytest.skip("has no attention of this kind")
    backbone.model.set_attn_implementation(attention)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


CLOSE = {"sdpa": {"rtol": 1e-9, "atol": 1e-9}, "eager": {"rtol": 1e-6, "atol": 1e-6}}
"""Transformers' eager attention has its softmax in float32, whatever the weights: sums of another order differ by 6e-8."""


def test_every_supported_architecture_is_tested() -> None:
    assert set(NAMES) == set(SUPPORTED)


@pytest.mark.parametrize(("name", "run", "attention"), with_attention())
def test_the_loop_is_the_models_own_forward(name, run, attention):
    backbone = make(name)
    use(attention, backbone)
    x = torch.randn(2, 9, 48, dtype=torch.float64)
    expected = backbone.model.base_model(inputs_embeds=x, use_cache=False).last_hidden_state
    layers = layers_of(backbone)
    assert len(layers) == backbone.layers
    torch.testing.assert_close(run(layers, x), expected, **CLOSE[attention])


VARIANTS = {
    "one after the other": ("gpt_neox", {"use_parallel_residual": False}),
    "every dimension rotates": ("gpt_neox", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "Falcon 7B": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "bias": True}),
    "a key for each query": ("falcon", {"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 6}),
    "not parallel": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": False}),
    "one norm": ("falcon", {"num_ln_in_parallel_attn": 1}),
    "some dimensions rotate": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "a small cap": ("gemma2", {"attn_logit_softcapping": 0.5}),
}
"""Settings of families that change what their layers compute."""


@pytest.mark.parametrize("run", [run_whole, run_halves])
@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_that_change_a_familys_layers_are_followed(variant, run):
    family, changes = VARIANTS[variant]
    backbone = make(family, **changes)
    close = CLOSE["eager" if family == "gemma2" else "sdpa"]
    layers, x = layers_of(backbone), torch.randn(2, 9, 48, dtype=torch.float64)
    expected = backbone.model.base_model(inputs_embeds=x, use_cache=False).last_hidden_state
    torch.testing.assert_close(run(layers, x), expected, **close)
    kv = backbone.new_kv(2, 12)
    run(layers, x[:, :5], kv=kv)
    torch.testing.assert_close(run(layers, x[:, 5:], kv=kv, at=torch.tensor([5, 5])), expected[:, 5:], **close)


@pytest.mark.parametrize(("name", "run", "attention"), with_attention())
def test_rows_continue_at_their_own_positions(name, run, attention):
    backbone = make(name)
    use(attention, backbone)
    layers = layers_of(backbone)
    x = torch.randn(2, 9, 48, dtype=torch.float64)
    whole = backbone.model.base_model(inputs_embeds=x, use_cache=False).last_hidden_state
    starts = (3, 6)
    kv = torch.cat([backbone.new_kv(1, 12), backbone.new_kv(1, 12)])
    for row, n in enumerate(starts):
        run(layers, x[row : row + 1, :n], kv=kv[row : row + 1])
    rest = torch.stack([x[row, n : n + 3] for row, n in enumerate(starts)])
    out = run(layers, rest, kv=kv, at=torch.tensor(starts))
    for row, n in enumerate(starts):
        torch.testing.assert_close(out[row], whole[row, n : n + 3], **CLOSE[attention])


@pytest.mark.parametrize("run", [run_whole, run_halves])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_layers_input_is_that_of_the_models_own_forward(family, run):
    backbone = FAMILIES[family]()
    layers, tokens = layers_of(backbone), torch.randint(0, VOCAB, (2, 9))
    expected = backbone.model(tokens, output_hidden_states=True).hidden_states
    h, shared = layers.begin(backbone.embed(tokens))
    for layer in range(len(layers)):
        torch.testing.assert_close(h, expected[layer])
        if run is run_whole:
            h = layers(layer, h, shared)
        else:
            h = layers.feed_forward(layer, h, layers.attend(layer, layers.norm(layer, h), shared).context)
    torch.testing.assert_close(layers.end(h), expected[-1])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", NAMES)
def test_stacked_weights_run_every_layer_at_once(name):
    layers = layers_of(make(name))
    if not layers.alike:
        assert name in ("smollm3", "gemma2", "gemma3_text", "olmo3", "qwen3_moe", "falcon")
        return
    h = torch.randn(len(layers), 2, 9, 48, dtype=torch.float64)
    _, shared = layers.begin(h[0])
    together = torch.vmap(lambda weights, x: layers.call_with(weights, x, shared))(layers.stacked(), h)
    for layer in range(len(layers)):
        torch.testing.assert_close(together[layer], layers(layer, h[layer], shared), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        pytest.param(name, memory, marks=() if name in FEW else pytest.mark.long)
        for memory, names in (("armt", NAMES), ("infinite", SPLIT))
        for name in names
    ],
)
def test_an_untrained_memory_in_the_layers_leaves_the_models_logits_as_they_were(name, memory):
    backbone = make(name)
    model: SegmentReader
    if memory == "armt":
        model = ARMT(ARMTConfig(segment_length=12, memory_tokens=3, memory_width=4), backbone)
    else:
        config = InfiniteConfig(segment_length=12, basis=10, widths=(0.05, 0.1), samples=9)
        model = InfiniteFormer(config, backbone).eval()
    tokens = torch.randint(0, VOCAB, (2, 36))
    expected = backbone.model(tokens[:, 24:]).logits
    state = model.read(tokens[:, :24], model.initial_state(2))
    torch.testing.assert_close(model.forward(tokens[:, 24:], state), expected, rtol=1e-6, atol=1e-6)
    cache, logits = model.open(state, tokens[:, 24:29])
    for at in range(29, 36):
        torch.testing.assert_close(logits, expected[:, at - 25], rtol=1e-6, atol=1e-6)
        logits = model.step(cache, tokens[:, at])


def test_unsupported_backbones_are_refused():
    config = transformers.AutoConfig.for_model("persimmon", **SMALL | {"num_key_value_heads": 6})
    persimmon = Backbone(transformers.AutoModelForCausalLM.from_config(config))
    with pytest.raises(
        BackboneError,
        match=r"PersimmonForCausalLM \(persimmon\).*supported for apertus, arcee, cohere, ernie4_5, falcon, gemma, ",
    ):
        layers_of(persimmon)
    with pytest.raises(
        BackboneError,
        match=r"OlmoForCausalLM \(olmo\).*supported for arcee, falcon, gemma, gemma2, gemma3_text, gpt2, gpt_neox, granite",
    ):
        split_layers_of(make("olmo"))
    backbone = llama()
    del backbone.model.model.rotary_emb
    with pytest.raises(BackboneError, match="LlamaModel has no rotary_emb"):
        layers_of(backbone)
    backbone = llama()
    backbone.model.config._attn_implementation = "flex_attention"
    with pytest.raises(BackboneError, match="attn_implementation='flex_attention' takes no explicit mask"):
        layers_of(backbone).require_masks()
    with pytest.raises(BackboneError, match="needs the keys and values"):
        layers_of(llama()).begin(torch.zeros(1, 1, 48, dtype=torch.float64), at=torch.zeros(1, dtype=torch.int64))
