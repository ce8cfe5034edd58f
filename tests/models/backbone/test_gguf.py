"""GGUF files that transformers refuses or misreads: the same model as transformers' own, from float weights and from one copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from everlong_models.backbone.gguf import families
from everlong_models.backbone.gguf.families import config_of, misread_by_transformers
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.loading import find_backbone, load_backbone, load_tokenizer
from everlong_models.errors import BackboneError
from tests.models import tiny_gguf

THETA, LENGTH = 1e4, 2048
HALF = tiny_gguf.WIDTH // tiny_gguf.HEADS // 2
BIASED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
TOKENS = torch.randint(0, tiny_gguf.VOCABULARY, (2, 200), generator=torch.Generator().manual_seed(1))


def llama_3(factor: float, half: int = HALF) -> np.ndarray:
    """Return Llama 3's factors: 1 for short waves, `factor` for long ones, and a way from one to the other."""
    waves = 2 * np.pi * THETA ** (np.arange(half) / half)
    way = np.clip((8192 / waves - 1) / (4 - 1), 0, 1)
    return 1 / ((1 - way) / factor + way)


SHORT, LONG = 1 + np.arange(12) / 12, 2 + np.arange(12) / 3
PLAIN = {"rope_type": "default", "rope_theta": THETA}
ORIGINAL = {"original_max_position_embeddings": 64}
SCALED: dict[str, tuple[str, dict[str, Any], dict[str, np.ndarray], dict[str, Any]]] = {
    "llama 3": (
        "llama", {}, {"rope_freqs.weight": llama_3(32.0)},
        PLAIN | {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "linear": (
        "llama", {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, {},
        PLAIN | {"rope_type": "linear", "factor": 4.0},
    ),
    "a factor alone": ("llama", {"llama.rope.scaling.factor": 4.0}, {}, PLAIN | {"rope_type": "linear", "factor": 4.0}),
    "a factor's old name": ("llama", {"llama.rope.scale_linear": 4.0}, {}, PLAIN | {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        "qwen2",
        {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0, "qwen2.rope.scaling.original_context_length": 64}, {},
        PLAIN | ORIGINAL | {"rope_type": "yarn", "factor": 4.0},
    ),
    "yarn with its bounds": (
        "qwen2",
        {
            "qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0, "qwen2.rope.scaling.original_context_length": 64,
            "qwen2.rope.scaling.yarn_beta_fast": 4.0, "qwen2.rope.scaling.yarn_beta_slow": 2.0,
            "qwen2.rope.scaling.yarn_ext_factor": 1.0, "qwen2.rope.scaling.finetuned": 1,
        }, {},
        PLAIN | ORIGINAL | {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 2.0},
    ),
    "yarn with experts": (
        "qwen3moe",
        {
            "qwen3moe.rope.scaling.type": "yarn", "qwen3moe.rope.scaling.factor": 4.0,
            "qwen3moe.rope.scaling.original_context_length": 64,
        }, {},
        PLAIN | ORIGINAL | {"rope_type": "yarn", "factor": 4.0},
    ),
    "longrope": (
        "phi3", {"phi3.rope.scaling.original_context_length": 64, "phi3.rope.scaling.attn_factor": 1.25},
        {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG},
        PLAIN | ORIGINAL | {
            "rope_type": "longrope", "partial_rotary_factor": 0.75, "short_factor": SHORT.tolist(), "long_factor": LONG.tolist(),
            "attention_factor": 1.25,
        },
    ),
    "olmo 3": (
        "olmo2",
        {
            "olmo2.attention.sliding_window": 16, "olmo2.rope.scaling.type": "yarn", "olmo2.rope.scaling.factor": 4.0,
            "olmo2.rope.scaling.original_context_length": 64, "olmo2.rope.scaling.attn_factor": 1.25,
        }, {},
        {"sliding_attention": PLAIN, "full_attention": PLAIN | ORIGINAL | {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25}},
    ),
}  # fmt: skip
"""Family, metadata, factors, and the `rope_parameters` of the original model."""


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def same(found: Any, wanted: Any) -> bool:
    """Whether the parameters are equal, up to the rounding of float32."""
    if isinstance(wanted, dict):
        return all(same(found[name], value) for name, value in wanted.items())
    return bool(found == (pytest.approx(wanted, rel=1e-6) if isinstance(wanted, int | float | list) else wanted))


def from_config(file: Path, rope: dict[str, Any]) -> PreTrainedModel:
    """Return transformers' model with the file's weights, and with these rotary positions."""
    config = config_of(GGUFFile(file))
    config.rope_parameters = rope
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(tiny_gguf.float_model(file).state_dict())
    return model.eval()


@pytest.mark.parametrize("kind", SCALED)
@torch.no_grad()
@pytest.mark.long
def test_rotary_positions_are_the_original_models(kind: str, tmp_path: Path) -> None:
    family, metadata, factors, rope = SCALED[kind]
    file = tiny_gguf.write(tmp_path / "scaled.gguf", family, factors=factors, **metadata)
    expected = from_config(file, rope)(TOKENS).logits
    plain = from_config(file, {"sliding_attention": PLAIN, "full_attention": PLAIN} if kind == "olmo 3" else PLAIN)(
        TOKENS
    ).logits
    assert distance(plain, expected) > 0.003
    for one_copy, close in ((False, 1e-5), (True, 0.005)):
        backbone, _ = load_backbone(str(file), models_dir=tmp_path / "models", one_copy=one_copy)
        assert (backbone.digest is not None) == one_copy
        assert same(backbone.model.config.rope_parameters, rope)
        assert distance(backbone.logits(backbone.hidden(backbone.embed(TOKENS))), expected) < close


FIELDS: dict[str, dict[str, Any]] = {
    "granite": {
        "attention_multiplier": 0.05, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0, "model_type": "granite",
    },
    "smollm3": {"no_rope_layers": [1, 1, 1, 0], "model_type": "smollm3"},
    "olmo2": {"model_type": "olmo2", "sliding_window": None},
    "qwen3moe": {
        "model_type": "qwen3_moe", "num_experts": tiny_gguf.EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "moe_intermediate_size": tiny_gguf.MLP,
    },
    "gpt2": {"model_type": "gpt2", "n_inner": tiny_gguf.MLP, "n_positions": 2048, "activation_function": "gelu_new"},
    "gptneox": {
        "model_type": "gpt_neox", "hidden_act": "gelu", "use_parallel_residual": True, "attention_bias": True,
        "rope_parameters": PLAIN | {"partial_rotary_factor": 0.25},
    },
    "falcon": {
        "model_type": "falcon", "activation": "gelu", "bias": False, "new_decoder_architecture": True,
        "num_kv_heads": tiny_gguf.KV_HEADS, "num_ln_in_parallel_attn": 2, "rope_parameters": PLAIN,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", FIELDS)
@torch.no_grad()
def test_families_that_transformers_does_not_read_are_read_with_float_weights(family: str, tmp_path: Path) -> None:
    """`test_one_copy` has the other tests of these."""
    tied = family != "olmo2"
    file = tiny_gguf.write(tmp_path / "model.gguf", family, tied=tied, pre="refact" if family == "granite" else "dbrx")
    backbone, tokenizer = load_backbone(str(file), models_dir=tmp_path / "models")
    config = backbone.model.config
    assert same({name: getattr(config, name, None) for name in FIELDS[family]}, FIELDS[family])
    expected = tiny_gguf.float_model(file)(TOKENS).logits
    assert torch.equal(backbone.model(TOKENS).logits, expected)
    assert distance(backbone.logits(backbone.hidden(backbone.embed(TOKENS))), expected) < 1e-5
    assert tokenizer.eos_ids == (259,)
    if family == "qwen3moe":  # as files of Qwen 3 without experts: characters are composed first
        assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


@pytest.mark.parametrize(
    ("pre", "parts"),
    [
        ("refact", ["1", "9", "9", "1"]),
        ("qwen2", ["1", "9", "9", "1"]),
        ("dbrx", ["19", "9", "1"]),
        ("gpt-2", ["1991"]),
    ],
)
def test_numbers_are_split_as_the_file_says(pre: str, parts: list[str], tmp_path: Path) -> None:
    """The vocabulary has `19`, `91` and `1991`. The rules take one digit, up to three, or all."""
    file = tiny_gguf.write(tmp_path / "model.gguf", "granite", pre=pre)
    tokenizer = load_tokenizer(find_backbone(str(file), models_dir=tmp_path / "models"))
    ids = tokenizer.encode("he said 1991")
    assert [tokenizer.decode([token]) for token in ids] == ["he", " ", "s", "a", "i", "d", " ", *parts]


def test_the_layers_without_scales_are_llama_cpps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tiny_gguf.FIELDS, "granite")
    config = config_of(GGUFFile(tiny_gguf.write(tmp_path / "model.gguf", "granite")))
    assert config.attention_multiplier == pytest.approx((2 * HALF) ** -0.5)
    assert (config.embedding_multiplier, config.residual_multiplier, config.logits_scaling) == (1, 1, 1)


@pytest.mark.parametrize(
    ("family", "more", "reason"),
    [
        ("llama", {"factors": {"rope_freqs.weight": np.linspace(1, 8, HALF)}}, "rotary positions with other factors than Llama 3's"),
        ("llama", {"llama.rope.scaling.type": "su"}, "rotary positions with scaling 'su'"),
        ("llama", {"llama.rope.scaling.type": "linear"}, "rotary positions with scaling 'linear', without a factor"),
        ("llama", {"llama.rope.scaling.alpha": 1000.0}, "rotary positions with scaling 'none' and alpha 1000.0"),
        ("llama", {"llama.rope.scaling.factor": 4.0, "llama.rope.scaling.attn_factor": 1.5}, "rotary positions with scaling 'linear' and attn_factor 1.5"),
        ("llama", {"factors": {"rope_freqs.weight": llama_3(8.0)}, "llama.rope.scaling.factor": 2.0}, "rotary positions with other factors than Llama 3's"),
        ("llama", {"llama.rope.dimension_count": 16}, "rotary positions of 16 of the 32 numbers of a head"),
        ("llama", {"llama.attention.key_length": 64, "llama.attention.value_length": 32}, "heads with keys of 64 numbers and values of 32"),
        ("qwen2", {"biases": ("ffn_up",)}, "tensors blk.0.ffn_up.bias"),
        ("qwen3", {"biases": ("attn_q",)}, "tensors blk.0.attn_q.bias"),
        ("qwen3moe", {"qwen3moe.expert_used_count": 7}, "7 experts for each token, of 6"),
        ("qwen3moe", {"qwen3moe.expert_count": 3}, r"blk.0.ffn_gate_inp.weight of shape \(6, 256\) instead of \(3, 256\)"),
        ("qwen3moe", {"qwen3moe.expert_weights_scale": 2.5}, "weights of experts scaled by 2.5"),
        ("qwen3moe", {"without": "blk.1.ffn_up_exps"}, "tensors without blk.1.ffn_up_exps.weight"),
        ("qwen2", {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}, "rotary positions with scaling 'yarn', without the original length"),
        ("phi3", {"factors": {"rope_factors_long.weight": LONG}}, "rotary positions with scaling 'longrope'"),
        ("starcoder2", {"starcoder2.rope.scaling.type": "yarn"}, "architecture 'starcoder2'"),
        ("smollm3", {"pre": "viking"}, "a tokenizer of kind 'gpt2', 'viking'"),
        ("gptneox", {"pre": "viking"}, "a tokenizer of kind 'gpt2', 'viking'"),
        ("gptneox", {"without": "gptneox.use_parallel_residual"}, "metadata without use_parallel_residual"),
        ("gpt2", {"without": "gpt2.attention.layer_norm_epsilon"}, "metadata without attention.layer_norm_epsilon"),
        ("falcon", {"without": "falcon.attention.head_count_kv"}, "metadata without attention.head_count_kv"),
        ("gptneox", {"without": "blk.1.ffn_up"}, "tensors without blk.1.ffn_up.weight"),
        ("gpt2", {"without": "blk.1.ffn_norm.bias"}, "tensors without blk.1.ffn_norm.bias"),
        ("gpt2", {"without": "position_embd"}, "tensors without position_embd.weight"),
        ("gpt2", {"gpt2.context_length": 1000}, r"position_embd.weight of shape \(2048, 256\) instead of \(1000, 256\)"),
        ("gptneox", {"gptneox.feed_forward_length": 1024}, r"blk.0.ffn_up.weight of shape \(512, 256\) instead of \(1024, 256\)"),
        ("gptneox", {"gptneox.attention.key_length": 64}, "8 heads of 64 numbers in a width of 256"),
        ("gptneox", {"gptneox.attention.head_count_kv": 2}, "2 key heads for 8 query heads"),
        ("gptneox", {"gptneox.rope.dimension_count": 40}, "rotary positions of 40 of the 32 numbers of a head"),
        ("falcon", {"falcon.tensor_data_layout": "other"}, "queries, keys and values in the order 'other'"),
        ("falcon", {"falcon.rope.dimension_count": 16}, "rotary positions of 16 of the 32 numbers of a head"),
        ("falcon", {"norms": ("attn_norm", "ffn_norm")}, "tensors blk.0.ffn_norm.bias, blk.0.ffn_norm.weight, blk.1.ffn_norm.bias"),
    ],
)  # fmt: skip
def test_what_nobody_reads_is_refused(family: str, more: dict[str, Any], reason: str, tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "other.gguf", family, **more)
    for one_copy in (True, False):
        with pytest.raises(BackboneError, match=f"{file} cannot be read: {reason}"):
            load_backbone(str(file), models_dir=tmp_path / "models", one_copy=one_copy)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_files_that_transformers_reads_right_are_left_to_it(family: str, tmp_path: Path) -> None:
    """Their fingerprints stay."""
    more = {"biases": ()} if family == "llama" else {}
    assert not misread_by_transformers(GGUFFile(tiny_gguf.write(tmp_path / "plain.gguf", family, **more)))


@pytest.mark.parametrize("family", ["llama", "qwen2", "granite", "olmo2"])
@torch.no_grad()
def test_heads_may_be_larger_than_their_share_of_the_width(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(tiny_gguf.FIELDS, "granite")
    factors = {"rope_freqs.weight": llama_3(32.0, 32)} if family == "llama" else {}
    file = tiny_gguf.write(tmp_path / "model.gguf", family, factors=factors, **{f"{family}.attention.key_length": 64})
    model = tiny_gguf.float_model(file)
    expected, attention = model(TOKENS).logits, model.model.layers[0].self_attn
    assert (attention.head_dim, attention.scaling) == (64, 1 / 8)
    for one_copy, close in ((False, 1e-5), (True, 0.005)):
        backbone, _ = load_backbone(str(file), models_dir=tmp_path / "models", one_copy=one_copy)
        assert (backbone.digest is not None) == one_copy
        assert distance(backbone.logits(backbone.hidden(backbone.embed(TOKENS))), expected) < close


@pytest.mark.parametrize("family", ["llama", "granite"])
@torch.no_grad()
def test_biases_of_every_matrix_are_read(family: str, tmp_path: Path) -> None:
    """transformers' reader would drop them without a word."""
    file = tiny_gguf.write(tmp_path / "model.gguf", family, biases=BIASED)
    model = tiny_gguf.float_model(file)
    assert model.model.layers[1].mlp.down_proj.bias.norm() > 1
    assert not model.model.layers[1].mlp.gate_proj.bias.any(), "the file has none for this one"
    expected = model(TOKENS).logits
    for one_copy, close in ((False, 1e-5), (True, 0.005)):
        backbone, _ = load_backbone(str(file), models_dir=tmp_path / "models", one_copy=one_copy)
        assert (backbone.digest is not None) == one_copy
        assert distance(backbone.logits(backbone.hidden(backbone.embed(TOKENS))), expected) < close


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"factors": {"blk.0.attn_sub_norm.weight": np.ones(tiny_gguf.WIDTH)}},
            "numbers, of which transformers' reader has read",
        ),
        ({"without": "blk.1.ffn_up"}, "it lacks model.layers.1.mlp.up_proj.weight"),
    ],
    ids=["left out", "lacking"],
)
def test_tensors_that_transformers_leaves_out_or_makes_up_are_refused(
    more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    file = tiny_gguf.write(tmp_path / "model.gguf", **more)
    with pytest.raises(BackboneError, match=f"cannot read {file} as GGUF: .*{reason}"):
        load_backbone(str(file), models_dir=tmp_path / "models")
    assert not list((tmp_path / "models").glob("model*"))


def test_tensors_without_a_place_in_the_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a family should accept them by mistake."""
    monkeypatch.setitem(families._FAMILIES, "olmo2", replace(families._FAMILIES["olmo2"], biases=("ffn",)))
    file = tiny_gguf.write(tmp_path / "model.gguf", "olmo2", biases=("ffn_up",))
    with pytest.raises(
        BackboneError, match=r"its tensors are not those of olmo2: model\.layers\.0\.mlp\.up_proj\.bias"
    ):
        load_backbone(str(file), models_dir=tmp_path / "models")


@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_attention_of_gemmas_27b_is_scaled_by_its_width(family: str, layers: int, tmp_path: Path) -> None:
    file = GGUFFile(tiny_gguf.write(tmp_path / "plain.gguf", family))
    file.metadata |= {f"{family}.block_count": layers, f"{family}.embedding_length": 40 * tiny_gguf.HEADS}
    assert misread_by_transformers(file)
    assert config_of(file).query_pre_attn_scalar == 40
