"""Keys move to other positions as if they had been computed there, in every family; others are refused."""

from __future__ import annotations

import pytest
import torch
import transformers

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.turning import Turning
from everlong_models.errors import BackboneError
from tests.models.backbone.test_layers import NAMES, SMALL, make
from tests.models.tiny import llama


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_moved_keys_are_those_computed_there(name):
    """In the first layer, whose keys depend on token and position alone."""
    backbone = make(name)
    turning = Turning(backbone)
    assert all(turning.layers) == (name not in ("gpt2", "smollm3"))
    text = torch.arange(2, 12)[None]
    kv, moved = backbone.new_kv(1, 10), backbone.new_kv(1, 33)
    backbone.hidden(backbone.embed(text), kv=kv)
    backbone.hidden(backbone.embed(text), kv=moved, at=torch.tensor([23]))
    there = moved[:, 0, 0, :, 23:]
    if turning.layers[0]:
        torch.testing.assert_close(turning.turn(0, kv[:, 0, 0], torch.full((1, 10), 23)), there, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(turning.turn(0, there, torch.full((1, 10), -23)), kv[:, 0, 0], rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(turning.turn(0, there, torch.full((1, 10), -23)), there)


def test_known_families_need_no_probe(monkeypatch):
    backbone = llama()
    monkeypatch.setattr(Turning, "_probe", None)
    assert Turning(backbone).layers == (True, True)


def test_layers_without_positions_do_not_move():
    assert Turning(make("smollm3")).layers == (True, False, True)


def test_rotary_positions_that_differ_by_layer_are_refused():
    config = transformers.AutoConfig.for_model("gemma3_text", **(SMALL | {"head_dim": 8, "sliding_window": 128}))
    backbone = Backbone(transformers.AutoModelForCausalLM.from_config(config).double().eval())
    with pytest.raises(BackboneError, match="Gemma3ForCausalLM: this memory moves keys"):
        Turning(backbone)
