"""A decoder driven layer by layer is transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.decoder import decoder_of
from everlong_models.errors import BackboneError
from tests.models.tiny import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_driving_the_layers_is_the_models_own_forward(family):
    backbone = FAMILIES[family]()
    decoder = decoder_of(backbone)
    tokens = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = backbone.model(tokens, output_hidden_states=True).hidden_states

    def run(part, kv, at):
        x, call = decoder.begin(backbone.embed(part), kv, at)
        inputs = [x]
        for layer in range(backbone.layers):
            x = decoder.feed_forward(layer, x + decoder.attend(layer, decoder.norm(layer, x), call).context)
            inputs.append(x)
        return [*inputs[:-1], decoder.end(x)]

    for found, state in zip(run(tokens, None, None), expected, strict=True):
        torch.testing.assert_close(found, state)
    # In parts, rows at positions of their own.
    kv = backbone.new_kv(2, 12)
    run(tokens[:, :5], kv, None)
    for at in range(5, 9):
        last = run(tokens[:, at : at + 1], kv, torch.full((2,), at))
        torch.testing.assert_close(last[-1][:, 0], expected[-1][:, at])
    both = run(torch.stack([tokens[0, 8:9], tokens[1, 6:7]]), kv, torch.tensor([8, 6]))
    torch.testing.assert_close(both[-1][:, 0], torch.stack([expected[-1][0, 8], expected[-1][1, 6]]))


def test_continuing_needs_what_came_before():
    backbone = FAMILIES["llama"]()
    decoder = decoder_of(backbone)
    x, call = decoder.begin(backbone.embed(torch.zeros(1, 1, dtype=torch.int64)), None, torch.tensor([3]))
    with pytest.raises(BackboneError, match="keys and values before it"):
        decoder.attend(0, x, call)


def test_a_family_that_cannot_be_driven_is_refused_by_name():
    config = GPTNeoXConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    with pytest.raises(BackboneError, match=r"GPTNeoXForCausalLM \(gpt_neox\).*gpt2, llama"):
        decoder_of(Backbone(GPTNeoXForCausalLM(config)))
