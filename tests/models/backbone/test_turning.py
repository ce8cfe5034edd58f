"""Keys move to other positions as if they had been computed there, in every family; others are refused."""

from __future__ import annotations

import pytest
import torch

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.turning import Turning
from everlong_models.errors import BackboneError
from tests.models import tiny_families
from tests.models.backbone.test_layers import NAMES, make
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


@pytest.mark.parametrize("family", ["gemma3_text", "olmo3"])
@torch.no_grad()
def test_keys_move_by_the_frequencies_of_their_layer(family):
    """Of the first two layers, one has a sliding window and frequencies of its own."""
    model = tiny_families.model(family)
    backbone = Backbone(model.double().eval())
    turning, x = Turning(backbone), torch.randn(1, 1, backbone.width, dtype=backbone.dtype)
    near, far = (backbone.new_kv(1, 60) for _ in range(2))
    backbone.hidden(x, kv=near)
    # A text of one token sees itself alone, and empty positions.
    backbone.hidden(x, kv=far, at=torch.tensor([50]))
    there = [turning.turn(layer, near[:, layer, 0, :, :1], torch.tensor([[50]])) for layer in range(2)]
    torch.testing.assert_close(there[0], far[:, 0, 0, :, 50:51], rtol=1e-5, atol=1e-5)
    both = [turning.turn(layer, near[:, 0, 0, :, :1], torch.tensor([[50]])) for layer in range(2)]
    assert not torch.allclose(*both, rtol=1e-3, atol=1e-3)


def test_rotary_positions_of_an_unknown_kind_are_refused(monkeypatch):
    """Gemma 3's, if its family were not known."""
    monkeypatch.setattr(Backbone, "can_evict", False)
    backbone = Backbone(tiny_families.model("gemma3_text").double().eval())
    with pytest.raises(BackboneError, match="Gemma3ForCausalLM: this memory moves keys"):
        Turning(backbone)
