"""Which models a memory can be put around."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.errors import BackboneError

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


PER_LAYER = {"vocab_size_per_layer_input": 32, "hidden_size_per_layer_input": 8, "head_dim": 8, "pad_token_id": 0}
MORE = {
    transformers.Gemma3nForCausalLM: PER_LAYER | {"num_kv_shared_layers": 0, "laurel_rank": 8},
    transformers.Gemma4ForCausalLM: PER_LAYER | {"global_head_dim": 16},
}
"""Further settings."""
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
SLIDING = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "sliding_window": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "config", "more"),
    [
        (transformers.OPTForCausalLM, transformers.OPTConfig, {"word_embed_proj_dim": 16}),
        (GPTNeoXForCausalLM, GPTNeoXConfig, {}),
        (MixtralForCausalLM, MixtralConfig, {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_causal_decoder_of_any_family_is_taken(kind, config, more, dtype):
    model = kind(config(**SMALL, **more)).to(dtype)
    random = torch.get_rng_state()
    assert Backbone(model).layers == 3
    # The probe leaves the mode and the random numbers as they were.
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        (BertLMHeadModel, BertConfig, r"BertLMHeadModel \(bert\): its attention is not causal"),
        (RobertaForCausalLM, RobertaConfig, r"RobertaForCausalLM \(roberta\): its attention is not causal"),
        (transformers.BloomForCausalLM, transformers.BloomConfig, r"\(bloom\): its layers do not take keys and values"),
        (
            transformers.Gemma3nForCausalLM,
            transformers.Gemma3nTextConfig,
            r"\(gemma3n_text\): its logits do not follow from embed",
        ),
        (
            transformers.Gemma4ForCausalLM,
            transformers.Gemma4TextConfig,
            r"\(gemma4_text\): its layers have heads of different",
        ),
        (MambaForCausalLM, MambaConfig, r"MambaForCausalLM \(mamba\): its config has no num_attention_heads"),
        (RwkvForCausalLM, RwkvConfig, r"\(rwkv\): not all of its layers keep keys and values"),
        (RecurrentGemmaForCausalLM, RecurrentGemmaConfig, r"\(recurrent_gemma\): not all of its layers keep"),
        (JambaForCausalLM, JambaConfig, r"\(jamba\): its layers do not take keys and values"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_is_not_a_causal_decoder_is_refused(kind, config, reason, dtype):
    sizes = SMALL if kind is not MambaForCausalLM else {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1}
    model = kind(config(**(sizes | MORE.get(kind, {}))))
    if kind in MORE:  # as they are initialised, their layers ignore the tokens
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.3)
    with pytest.raises(
        BackboneError, match=f"{reason}.*this memory needs a decoder with causal attention in every layer"
    ):
        Backbone(model.to(dtype))


@pytest.mark.parametrize(
    "config",
    [
        transformers.GPTJConfig(vocab_size=64, n_embd=32, n_layer=2, n_head=2, rotary_dim=8, n_positions=64),
        transformers.Gemma2Config(
            vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, sliding_window=64, query_pre_attn_scalar=16,
        ),
        transformers.GraniteConfig(
            vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, logits_scaling=8.0
        ),
        transformers.CohereConfig(
            vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, logit_scale=0.25
        ),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_steps_and_logits_are_those_of_the_models_own_forward(config: transformers.PretrainedConfig) -> None:
    """Also where attention is eager, which adds its mask, and where something follows the head."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    backbone, tokens = Backbone(model), torch.randint(0, 64, (1, 12))
    with torch.no_grad():
        whole = model(tokens).logits
        x = backbone.embed(tokens)
        torch.testing.assert_close(backbone.logits(backbone.hidden(x)), whole, rtol=1e-6, atol=1e-6)
        kv = backbone.new_kv(1, 40)
        backbone.hidden(x[:, :4], kv=kv)
        for at in range(4, 12):
            last = backbone.hidden(x[:, at : at + 1], kv=kv, at=torch.tensor([at]))
            torch.testing.assert_close(backbone.logits(last), whole[:, at : at + 1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("read", [5, 30])
@pytest.mark.parametrize(
    "config",
    [
        transformers.MistralConfig(**SLIDING, num_hidden_layers=2),
        transformers.Gemma2Config(**SLIDING, num_hidden_layers=2, query_pre_attn_scalar=16),
        transformers.Gemma3TextConfig(**SLIDING, num_hidden_layers=3, query_pre_attn_scalar=16, layer_types=MIXED),
        transformers.Olmo3Config(**SLIDING, num_hidden_layers=3, layer_types=MIXED, pad_token_id=0),
        transformers.Qwen3Config(**SLIDING, num_hidden_layers=3, layer_types=MIXED, use_sliding_window=True),
    ],
    ids=lambda config: getattr(config, "model_type", config),
)
def test_layers_with_a_sliding_window_keep_it_in_a_longer_cache(config, read) -> None:
    """Rows at different positions, steps and chunks: the logits are those of the model's own forward over the whole text."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    backbone, tokens = Backbone(model), torch.randint(0, 64, (2, 44))
    with torch.no_grad():
        whole = model(tokens).logits
        x, kv = backbone.embed(tokens), backbone.new_kv(2, 60)
        backbone.hidden(x[:, :read], kv=kv)
        at = torch.tensor([read, read])
        chunk = backbone.logits(backbone.hidden(x[:, read : read + 9], kv=kv, at=at))
        torch.testing.assert_close(chunk, whole[:, read : read + 9], rtol=1e-5, atol=1e-5)
        at = torch.tensor([read + 9, read + 4])  # the second row goes back to an earlier position
        step = backbone.logits(backbone.hidden(x[[0, 1], at][:, None], kv=kv, at=at))
        torch.testing.assert_close(step[:, 0], whole[[0, 1], at], rtol=1e-5, atol=1e-5)


def test_a_head_that_computes_more_than_a_product_is_refused() -> None:
    with pytest.raises(
        BackboneError, match=r"\(bert\): its logits do not follow from embeddings, keys, values and its head alone"
    ):
        Backbone(BertLMHeadModel(BertConfig(**SMALL, is_decoder=True)))


def test_a_decode_step_must_be_exact_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 16 bits it may differ more: rounding can choose other experts."""
    store = KVCursor.store

    def inexact(cursor: KVCursor, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keys, values = store(cursor, layer, keys, values)
        return keys, values if cursor.at_start else 1.02 * values

    monkeypatch.setattr(KVCursor, "store", inexact)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    with pytest.raises(BackboneError, match="its logits do not follow from"):
        Backbone(model)
    Backbone(model.bfloat16())


def test_a_window_that_the_architecture_does_not_have_is_ignored() -> None:
    """As transformers does."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, sliding_window=3)).double().eval()
    tokens = torch.randint(0, 32, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(tokens).logits
        for optimised in (False, True):
            backbone = Backbone(model)
            assert not optimised or backbone.optimize() is None
            x, kv = backbone.embed(tokens), backbone.new_kv(1, 12)
            backbone.hidden(x[:, :6], kv=kv)
            found = backbone.logits(backbone.hidden(x[:, 6:], kv=kv, at=torch.tensor([6])))
            torch.testing.assert_close(found, expected[:, 6:], rtol=1e-5, atol=1e-5)
