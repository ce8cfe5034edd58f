"""Which models a memory can be put around."""

from __future__ import annotations

import pytest
import torch
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

from everlong_models.backbone import Backbone
from everlong_models.errors import BackboneError

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("kind", "config", "more"),
    [
        (BertLMHeadModel, BertConfig, {"is_decoder": True}),
        (GPTNeoXForCausalLM, GPTNeoXConfig, {}),
        (MixtralForCausalLM, MixtralConfig, {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_causal_decoder_of_any_family_is_taken(kind, config, more, dtype):
    model = kind(config(**SMALL, **more)).to(dtype)
    random = torch.get_rng_state()
    assert Backbone(model).layers == 3
    # Looked at as it is served, left as it was: what is drawn behind it does not change.
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        (BertLMHeadModel, BertConfig, r"BertLMHeadModel \(bert\): its attention is not causal"),
        (RobertaForCausalLM, RobertaConfig, r"RobertaForCausalLM \(roberta\): its attention is not causal"),
        (MambaForCausalLM, MambaConfig, r"MambaForCausalLM \(mamba\): its config has no num_attention_heads"),
        (RwkvForCausalLM, RwkvConfig, r"\(rwkv\): not all of its layers keep keys and values"),
        (RecurrentGemmaForCausalLM, RecurrentGemmaConfig, r"\(recurrent_gemma\): not all of its layers keep"),
        (JambaForCausalLM, JambaConfig, r"\(jamba\): its layers do not take keys and values"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_causal_decoder_is_refused(kind, config, reason, dtype):
    sizes = SMALL if kind is not MambaForCausalLM else {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1}
    with pytest.raises(BackboneError, match=f"{reason}.*needs a decoder with causal attention in every layer"):
        Backbone(kind(config(**sizes)).to(dtype))
