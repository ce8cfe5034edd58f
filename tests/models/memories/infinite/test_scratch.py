"""The from-scratch ∞-former passes the memory contract and is its equations, written as loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from everlong_models.errors import ConfigError
from everlong_models.memories.infinite.scratch import InfiniteScratch, InfiniteScratchConfig
from everlong_models.memories.state import MemoryState
from tests.models import naive_infinite as naive
from tests.models.memory_contract import MemoryContract, assert_same_state, tokens

SMALL = {"segment_length": 12, "vocab_size": 40, "layers": 2, "heads": 2, "width": 16, "bins": 7}
SMALL |= {"basis": 10, "widths": (0.05, 0.1), "samples": 9}


def build(**changes) -> InfiniteScratch:
    return InfiniteScratch(InfiniteScratchConfig(**(SMALL | changes)), torch.float64)


class TestInfiniteScratch(MemoryContract):
    @pytest.fixture(params=[("off", 12), ("stratified", 30), ("independent", 5), ("off", 0)], ids=str)
    def model(self, request):
        sticky, short_term = request.param
        return build(sticky=sticky, short_term=short_term)


def naive_segment(model: InfiniteScratch, tokens_T: Tensor, past: list[list[Tensor]], B: list[Tensor]) -> Tensor:
    """One row's logits, query by query. `past`: all earlier inputs of each layer; this segment's are added to it."""
    m, H, d = model.config.short_term, model.config.heads, model.config.width // model.config.heads
    x = model.embedding(tokens_T)
    for layer, block in enumerate(model.blocks):
        short = past[layer][len(past[layer]) - min(m, len(past[layer])) :]
        seen = [block.norm(v) for v in [*short, *x]]
        place = m - len(short)  # of the oldest that is seen
        keys = [block.key(c + model.positions[place + j]) for j, c in enumerate(seen)]
        values = [block.value(c) for c in seen]
        queries = [block.query(block.norm(v) + model.positions[m + i]) for i, v in enumerate(x)]
        rows = []
        for i, query in enumerate(queries):
            parts = []
            for h in range(H):
                one = slice(h * d, (h + 1) * d)
                upto = len(short) + i + 1
                scores = torch.stack([query[one] @ key[one] / d**0.5 for key in keys[:upto]])
                parts.append(torch.softmax(scores, 0) @ torch.stack([value[one] for value in values[:upto]]))
            rows.append(block.output(torch.cat(parts)))
        recalled, _ = naive.attend(
            B[layer], torch.stack(queries).unflatten(1, (H, d)).transpose(0, 1), model.memory[layer]
        )
        past[layer].extend(x)
        x = x + torch.stack(rows) + recalled
        x = x + block.feed_forward(x)
    return model.head(model.norm(x))


@pytest.mark.parametrize("source", ["raw", "normed"])
@pytest.mark.parametrize("short_term", [4, 9])
@torch.no_grad()
def test_the_model_is_its_equations(short_term, source):
    """With segments of 6, 4 positions lose some of their own segment, 9 lose nothing at first, then 3, then 6."""
    model = build(segment_length=6, short_term=short_term, source=source)
    text = tokens(model, 1, 24)
    state = model.initial_state()
    past: list[list[Tensor]] = [[], []]
    B, count, gone = [torch.zeros(10, 16).double()] * 2, 0, 0
    for segment in text.split(6, dim=1):
        torch.testing.assert_close(
            model.forward(segment, state)[0], naive_segment(model, segment[0], past, B), rtol=1e-6, atol=1e-8
        )
        kept = max(0, len(past[0]) - short_term)
        if kept > gone:
            for layer, block in enumerate(model.blocks):
                leaving = torch.stack(past[layer][gone:kept])
                leaving = leaving if source == "raw" else block.norm(leaving)
                memory = model.memory[layer]
                X = naive.gate(leaving, memory.convolution.weight, memory.convolution.bias)
                B[layer] = naive.update(B[layer], X, count, model.config)
            count, gone = count + 1, kept
        state = model.read(segment, state)
        torch.testing.assert_close(state["coefficients"][0], torch.stack(B), rtol=1e-6, atol=1e-8)
        assert state["segments"].tolist() == [count]
    assert count >= 3


@torch.no_grad()
def test_nothing_enters_the_long_term_memory_before_the_short_term_one_is_full():
    model = build(short_term=30)
    text = tokens(model, 1, 36)
    two = model.read(text[:, :24], model.initial_state())
    assert (two["segments"].tolist(), two["held"].tolist()) == ([0], [24])
    assert float(two["coefficients"].abs().max()) == 0
    three = model.read(text[:, 24:], two)
    assert (three["segments"].tolist(), three["held"].tolist()) == ([1], [30])


@torch.no_grad()
def test_without_output_only_the_short_term_memory_is_read():
    model = build(output="none", short_term=4)
    text = tokens(model, 1, 60)
    state = model.read(text[:, :48], model.initial_state(1))
    assert state["coefficients"].abs().max() > 0, "it is written all the same"
    short = MemoryState({**model.initial_state(1).tensors, "short_term": state["short_term"], "held": state["held"]})
    torch.testing.assert_close(model.forward(text[:, 48:], state), model.forward(text[:, 48:], short))


@torch.no_grad()
def test_rows_of_different_pasts_read_side_by_side():
    model = build(short_term=18, sticky="independent")
    text = tokens(model, 3, 36)
    pasts = [model.read(text[row : row + 1, : 12 * row], model.initial_state()) for row in range(3)]
    together = model.read(text, MemoryState.stack(pasts))
    for row, state in enumerate(together.split()):
        assert_same_state(state, model.read(text[row : row + 1], pasts[row]))


def test_every_weight_is_trained():
    model = build(short_term=12)
    state = model.read(tokens(model, 2, 24), model.initial_state(2))
    step = model.training_segment(tokens(model, 2, 12, 1), state)
    (step.logits.logsumexp(-1).mean() + 1e-5 * step.auxiliary.mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name
    assert not step.state["short_term"].requires_grad


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"width": 18}, r"width=18: must be a positive multiple of 2·heads = 4"),
        ({"heads": 0}, r"heads=0: must be at least 1"),
        ({"layers": 0}, r"layers=0: must be at least 1"),
        ({"vocab_size": 0}, r"vocab_size=0: must be at least 1"),
        ({"short_term": -1}, r"short_term=-1: must not be negative"),
        ({"basis": 7}, r"basis=7: must be a positive multiple of the number of widths, 2"),
    ],
)
def test_invalid_settings_are_refused_at_construction(changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build(**changes)
