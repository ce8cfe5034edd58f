"""LaMemo passes the memory contract, equals its naive reference, and its interpolation is bidirectional attention (Appendix A)."""

from __future__ import annotations

import pytest
import torch

from everlong_models.errors import ConfigError
from everlong_models.memories.relative.lamemo import LaMemo, LaMemoConfig, interpolate
from everlong_models.memories.state import MemoryState
from tests.models import naive_relative as naive
from tests.models.memory_contract import CLOSE, MemoryContract, tokens
from tests.models.naive_relative import SMALL


def build(**changes):
    torch.manual_seed(0)
    return naive.random_weights(LaMemo(LaMemoConfig(**(SMALL | {"memory_length": 8} | changes))))


class TestLaMemo(MemoryContract):
    @pytest.fixture(params=[5, 8, 13])
    def model(self, request):
        return build(memory_length=request.param)


@pytest.mark.parametrize("positions", ["disentangled", "signed"])
@pytest.mark.parametrize(
    ("lengths", "M"), [([4] * 4, 4), ([4] * 3, 2), ([4] * 4, 9), ([3, 4, 1, 1, 2, 4], 6), ([4, 2, 4], 1)], ids=str
)
def test_it_is_its_naive_twin(lengths, M, positions):
    """Logits, contexts, masses, and gradients, over segments of equal and unequal lengths."""
    model = build(segment_length=4, memory_length=M, positions=positions)
    reference, state = naive.NaiveLaMemo(model, []), model.initial_state()
    fast, slow = [], []
    for length in lengths:
        text = tokens(model, 1, length, length)
        logits, state = model.segment(text, state)
        fast.append(logits[0])
        slow.append(reference.segment(text[0].tolist()))
        torch.testing.assert_close(fast[-1], slow[-1], **CLOSE)
        held = len(reference.memory)
        contexts = torch.stack([torch.stack([torch.stack(layer) for layer in at.C]) for at in reference.memory])
        sums = torch.stack([torch.stack([torch.stack(layer) for layer in at.s]) for at in reference.memory])
        torch.testing.assert_close(state["contexts"][0, M - held :], contexts.detach(), **CLOSE)
        torch.testing.assert_close(state["mass"][0, M - held :], sums.log().detach(), **CLOSE)
        assert state["tokens"][0, M - held :].tolist() == [at.token for at in reference.memory]
    probe = torch.randn(sum(lengths), model.vocab_size, dtype=torch.float64)
    ours = naive.gradients(model, (torch.cat(fast) * probe).sum())
    theirs = naive.gradients(model, (torch.cat(slow) * probe).sum())
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], msg=lambda text, name=name: f"{name}: {text}")


def test_interpolating_two_attentions_is_attention_over_both_sets_of_keys():
    """Appendix A, with scores of a size whose exponentials float64 cannot hold."""
    scores, values = torch.randn(3, 7, dtype=torch.float64) * 5 + 2000, torch.randn(7, 4, dtype=torch.float64)
    parts = [(scores[:, s].softmax(-1) @ values[s], scores[:, s].logsumexp(-1)) for s in (slice(3), slice(3, 7))]
    context, mass = interpolate(*parts[0], *parts[1])
    torch.testing.assert_close(context, scores.softmax(-1) @ values)
    torch.testing.assert_close(mass, scores.logsumexp(-1))


@pytest.mark.parametrize("lengths", [[8, 8, 8, 8], [8, 3, 5, 1, 8, 1, 1]], ids=str)
def test_the_memorys_contexts_are_bidirectional_attention(lengths):
    """Appendix A in the model: in the first layer, whose inputs never change, a memory position's context is direct
    attention over every token from M before its segment to the first of the segment that was opened last."""
    model = build(layers=1, memory_length=12)
    text = tokens(model, 1, sum(lengths))
    state, starts, start = model.initial_state(), [], 0
    for length in lengths:
        _, state = model.segment(text[:, start : start + length], state)
        starts += [start] * length
        start += length
    newest_refresh = start - lengths[-1]
    xs = [naive.embed(model, token) for token in text[0].tolist()]
    for slot, i in enumerate(range(start - 12, start)):
        first, last = max(0, starts[i] - 12), max(i, newest_refresh)
        C, s = naive.attend(model, 0, xs[i], i, [(j, xs[j]) for j in range(first, last + 1)])
        torch.testing.assert_close(state["contexts"][0, slot, 0], torch.stack(C), **CLOSE)
        torch.testing.assert_close(state["mass"][0, slot, 0], torch.stack(s).log(), **CLOSE)


def test_the_refresh_depends_on_the_segments_first_token_only():
    model = build()
    state = model.read(tokens(model, 1, 16, 1), model.initial_state())
    refreshed = []
    for text in ([3, 4, 5, 6], [3, 9, 8, 7], [4, 4, 5, 6]):
        cache, _ = model.open(state, torch.tensor([text]))
        refreshed.append(cache["contexts"])
    assert torch.equal(refreshed[0], refreshed[1])
    assert not torch.equal(refreshed[0], refreshed[2])
    assert not torch.equal(refreshed[0], state["contexts"])


def test_the_window_is_the_tokens_since_the_last_refresh_prefilled_or_decoded():
    """A segment that was opened with one token and stepped to three refreshes as one that was read at once."""
    model = build()
    state = model.read(tokens(model, 2, 8, 1), model.initial_state(2))
    cache, _ = model.open(state, torch.tensor([[3], [3]]))
    for token in (5, 7):
        model.step(cache, torch.tensor([token, token]))
    longer = cache.slots(1, 2)
    model.step(longer, torch.tensor([9]))
    closed = [model.close(cache.slots(0, 1)), model.close(longer)]
    assert [int(c["fresh"]) for c in closed] == [3, 4]
    segment = tokens(model, 2, 8, 2)
    together = model(segment, MemoryState.stack(closed))
    for row, text in enumerate(([3, 5, 7], [3, 5, 7, 9])):
        _, after = model.segment(torch.tensor([text]), state.split()[row])
        torch.testing.assert_close(together[row : row + 1], model(segment[row : row + 1], after), **CLOSE)


def test_gradients_stop_at_the_memory_and_flow_through_the_refresh():
    model = build(layers=1)
    state = model.read(tokens(model, 1, 16, 1), model.initial_state())
    assert not any(state[name].requires_grad for name in state)
    asked = {name: state[name].clone().requires_grad_() for name in ("contexts", "mass")}
    logits = model(tokens(model, 1, 8, 2), MemoryState({**state.tensors, **asked}))
    assert torch.autograd.grad(logits.sum(), list(asked.values()), allow_unused=True) == (None, None)
    # v₋ is used by the look-ahead alone, whose effect on the logits needs a second layer to be seen.
    assert float(naive.gradients(model, model(tokens(model, 1, 8, 2), state).sum())["positions.ahead"].abs().max()) == 0
    model = build(layers=2)
    state = model.read(tokens(model, 1, 16, 1), model.initial_state())
    loss = model(tokens(model, 1, 8, 2), state).logsumexp(-1).sum()
    assert float(naive.gradients(model, loss)["positions.ahead"].abs().min()) > 0


def test_interpolation_detaches_the_old_context():
    old, old_mass, new, new_mass = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((3, 4), 3) * 2)
    context, mass = interpolate(old, old_mass, new, new_mass)
    gradients = torch.autograd.grad(context.sum() + mass.sum(), (old, old_mass, new, new_mass), allow_unused=True)
    assert gradients[:2] == (None, None)
    assert all(float(g.abs().min()) > 0 for g in gradients[2:])


def test_masses_are_float32_when_weights_are_half():
    model = LaMemo(LaMemoConfig(**SMALL, memory_length=8)).bfloat16().eval()
    state = model.read(tokens(model, 1, 24), model.initial_state())
    assert state["mass"].dtype == torch.float32
    assert state["contexts"].dtype == torch.bfloat16
    cache, logits = model.open(state, tokens(model, 1, 3))
    assert model.step(cache, torch.tensor([1])).dtype == logits.dtype == torch.bfloat16
    assert model.close(cache)["mass"].dtype == torch.float32


def test_the_state_is_smaller_than_transformer_xls_in_tokens_and_as_the_paper_says_in_the_rest():
    state = LaMemo(LaMemoConfig(vocab_size=100, layers=2, memory_length=150)).initial_state()
    assert state.nbytes == 150 * 8 + 150 * 2 * 10 * (41 + 1) * 4 + 2 * 8


def test_a_model_without_memory_is_refused():
    with pytest.raises(ConfigError, match="memory_length=0: must be at least 1"):
        build(memory_length=0)
