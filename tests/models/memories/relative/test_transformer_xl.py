"""Transformer-XL passes the memory contract and equals its naive reference, gradients included."""

from __future__ import annotations

import pytest
import torch

from everlong_models.errors import ConfigError
from everlong_models.memories.relative.lamemo import LaMemo, LaMemoConfig
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from tests.models import naive_relative as naive
from tests.models.memory_contract import CLOSE, MemoryContract, tokens
from tests.models.naive_relative import SMALL


def build(**changes):
    torch.manual_seed(0)
    return naive.random_weights(TransformerXL(TransformerXLConfig(**(SMALL | changes))))


class TestTransformerXL(MemoryContract):
    @pytest.fixture(params=[5, 13])
    def model(self, request):
        return build(memory_length=request.param)


class TestNoMemory(MemoryContract):
    @pytest.fixture
    def model(self):
        return build(memory_length=0)

    def test_reading_depends_on_the_text(self, model):
        """It does not: a model without memory answers as if it had read nothing."""
        segment = tokens(model, 1, 8, 2)
        state = model.read(tokens(model, 1, 16, 1), model.initial_state())
        assert torch.equal(model.forward(segment, state), model.forward(segment, model.initial_state()))


@pytest.mark.parametrize("memory_length", [0, 3, 4, 6, 11])
def test_it_is_its_naive_twin(memory_length):
    """Over segments of unequal lengths, with memories shorter, as long as, and longer than a segment."""
    model = build(segment_length=4, memory_length=memory_length)
    reference, state = naive.NaiveTransformerXL(model, []), model.initial_state()
    fast, slow = [], []
    for length in (4, 4, 2, 4):
        text = tokens(model, 1, length, length)
        logits, state = model.segment(text, state)
        fast.append(logits[0])
        slow.append(reference.segment(text[0].tolist()))
        torch.testing.assert_close(fast[-1], slow[-1], **CLOSE)
    probe = torch.randn(14, model.vocab_size, dtype=torch.float64)
    ours = naive.gradients(model, (torch.cat(fast) * probe).sum())
    theirs = naive.gradients(model, (torch.cat(slow) * probe).sum())
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], msg=lambda text, name=name: f"{name}: {text}")


def test_no_gradient_leaves_a_segment_for_the_one_before_it():
    model = build(memory_length=6)
    first, state = model.segment(tokens(model, 1, 8, 1), model.initial_state())
    second, _ = model.segment(tokens(model, 1, 8, 2), state)
    assert first.requires_grad
    assert not any(state[name].requires_grad for name in state)
    # Not even if the input state requires gradients.
    asked = {**state.tensors, "memory": state["memory"].clone().requires_grad_()}
    again, _ = model.segment(tokens(model, 1, 8, 2), type(state)(asked))
    assert torch.equal(again, second)
    assert torch.autograd.grad(again.sum(), asked["memory"], allow_unused=True) == (None,)


def test_the_memory_reaches_one_memory_length_further_back_with_every_layer():
    """L = 2, M = 8 = S: the first prediction of a segment hears of the 16 tokens before it, not of the 17th."""
    model = build(memory_length=8)
    text = tokens(model, 1, 33)
    answer = {}
    for changed in (None, 15, 16, 24, 31):
        other = text.clone()
        if changed is not None:
            other[0, changed] = (other[0, changed] + 1) % model.vocab_size
        state = model.read(other[:, :32], model.initial_state())
        answer[changed] = model(other[:, 32:], state)
    assert torch.equal(answer[15], answer[None])
    assert not any(torch.equal(answer[changed], answer[None]) for changed in (16, 24, 31))


def test_segment_is_forward_and_read_in_one_pass():
    model = build(memory_length=5)
    text, state = tokens(model, 2, 16), model.initial_state(2)
    state = model.read(text[:, :8], state)
    logits, after = model.segment(text[:, 8:], state)
    assert torch.equal(logits, model(text[:, 8:], state))
    assert after.digest() == model.read(text[:, 8:], state).digest()


@pytest.mark.parametrize("kind", ["transformer_xl", "lamemo"])
def test_reading_skips_what_the_memory_does_not_need(kind, monkeypatch):
    """No logits, no output of the last layer, and no graph for gradients that nothing will ask for."""
    model = build() if kind == "transformer_xl" else LaMemo(LaMemoConfig(**SMALL))
    monkeypatch.setattr(model, "_logits", lambda hidden: pytest.fail("logits were computed"))
    monkeypatch.setattr(model.blocks[-1], "forward", lambda x, context: pytest.fail("the last layer was computed"))
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: pytest.fail("a graph was built"), lambda saved: saved):
        model.read(tokens(model, 1, 16), model.initial_state())


def test_a_negative_memory_is_refused():
    with pytest.raises(ConfigError, match="memory_length=-1: must be at least 0"):
        build(memory_length=-1)
