"""RMT passes the memory contract, equals the paper's equations, and refuses what cannot work."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from everlong_models.errors import ConfigError
from everlong_models.memories.rmt import RMT, RMTConfig
from tests.models.memory_contract import MemoryContract, tokens
from tests.models.tiny import FAMILIES, llama


class TestRMT(MemoryContract):
    pauses = 0  # transformers' own forward, which nothing gets into

    @pytest.fixture(params=[(family, form) for family in FAMILIES for form in ("raw", "norm", "zero")], ids="-".join)
    def model(self, request):
        family, form = request.param
        torch.manual_seed(1)
        model = RMT(RMTConfig(segment_length=12, memory_tokens=3, form=form), FAMILIES[family]())
        if form == "zero":
            torch.nn.init.normal_(model.projection, std=0.1)
        return model


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_is_the_papers_recurrence(family):
    """M_{t+1} = Transformer([M_t ; x ; M_t])[-m:], with transformers' own forward and nothing of ours."""
    backbone = FAMILIES[family]()
    model = RMT(RMTConfig(segment_length=10, memory_tokens=4), backbone)
    text = tokens(model, 2, 30)
    memory = model.memory.expand(2, -1, -1)
    for segment in text.split(10, dim=1):
        x = torch.cat([memory, backbone.model.get_input_embeddings()(segment), memory], dim=1)
        memory = backbone.model(inputs_embeds=x, output_hidden_states=True).hidden_states[-1][:, -4:]
    torch.testing.assert_close(model.read(text, model.initial_state(2))["memory"], memory)


def test_gradients_flow_through_the_memory_to_the_first_segment():
    model = RMT(RMTConfig(segment_length=8, memory_tokens=2), llama())
    text = tokens(model, 1, 24)
    state = model.read(text[:, :16], model.initial_state())
    model.forward(text[:, 16:], state)[0, -1].logsumexp(-1).backward()
    assert model.memory.grad is not None
    assert float(model.memory.grad.abs().min()) > 0


def test_an_untrained_zero_form_keeps_its_first_memory():
    model = RMT(RMTConfig(segment_length=8, memory_tokens=2, form="zero"), llama())
    state = model.read(tokens(model, 1, 16), model.initial_state())
    assert torch.equal(state["memory"], model.initial_state()["memory"])


def test_invalid_settings_are_refused_at_construction():
    with pytest.raises(ConfigError, match=r"memory_tokens=8: must be smaller than segment_length=8"):
        RMT(RMTConfig(segment_length=8, memory_tokens=8), llama())
    with pytest.raises(ConfigError, match=r"exceeds the backbone's 128 positions"):
        RMT(RMTConfig(segment_length=120, memory_tokens=5), llama())
    with pytest.raises(ValidationError, match="memory_tokens"):
        RMTConfig(memory_tokens=0)
    with pytest.raises(ValidationError, match="memory_token\n"):
        RMTConfig(memory_token=3)
