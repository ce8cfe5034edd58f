"""The Compressive Transformer passes the memory contract, equals its naive reference, and trains its compression by itself."""

from __future__ import annotations

import pytest
import torch

from everlong_models.errors import ConfigError
from everlong_models.memories.relative.compressive import Compressive, CompressiveConfig
from everlong_models.memories.state import MemoryState
from tests.models import naive_relative as naive
from tests.models.memory_contract import CLOSE, MemoryContract, tokens
from tests.models.naive_relative import SMALL


def build(**changes):
    torch.manual_seed(0)
    config = SMALL | {"memory_length": 8, "compressed_length": 4, "compression_rate": 2} | changes
    return naive.random_weights(Compressive(CompressiveConfig(**config)))


class TestCompressive(MemoryContract):
    """Once as in the paper, all lengths multiples of c; once with lengths that are not."""

    @pytest.fixture(params=[(8, 6, 2), (10, 3, 3)], ids=str)
    def model(self, request):
        M, C, c = request.param
        return build(memory_length=M, compressed_length=C, compression_rate=c)


@pytest.mark.parametrize(
    ("lengths", "M", "C", "c"),
    [
        ([4] * 5, 4, 3, 2),
        ([4] * 4, 6, 2, 3),
        ([4, 2, 3, 1, 4, 4], 5, 2, 2),
        ([4] * 4, 4, 6, 1),
        ([3, 4, 2, 4], 4, 2, 4),
    ],
    ids=str,
)
def test_it_is_its_naive_twin(lengths, M, C, c):
    """Logits, reconstruction losses, and the gradients of both."""
    model = build(segment_length=4, memory_length=M, compressed_length=C, compression_rate=c)
    reference, state = naive.NaiveCompressive(model, [], []), model.initial_state()
    fast, slow, lost, missed = [], [], [], []
    for length in lengths:
        text = tokens(model, 1, length, length)
        logits, state, loss = model.training_segment(text, state)
        fast.append(logits[0])
        slow.append(reference.segment(text[0].tolist()))
        torch.testing.assert_close(fast[-1], slow[-1], **CLOSE)
        torch.testing.assert_close(loss[0], reference.loss, **CLOSE)
        lost.append(loss[0])
        missed.append(reference.loss)
    assert lost[0].item() == 0.0 < lost[-1].item()
    probe = torch.randn(sum(lengths), model.vocab_size, dtype=torch.float64)
    ours = naive.gradients(model, (torch.cat(fast) * probe).sum() + sum(lost))
    theirs = naive.gradients(model, (torch.cat(slow) * probe).sum() + sum(missed))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], msg=lambda text, name=name: f"{name}: {text}")


def trained(model, loss):
    """The parameters that a loss moves."""
    return {name for name, gradient in naive.gradients(model, loss).items() if gradient.abs().max() > 0}


def test_each_loss_trains_its_own_part():
    model = build()
    state = model.read(tokens(model, 1, 24, 1), model.initial_state())
    logits, after, loss = model.training_segment(tokens(model, 1, 8, 2), state)
    compression = {name for name, _ in model.named_parameters() if name.startswith("compress")}
    assert len(compression) == 4
    assert trained(model, loss.sum()) == compression
    logits, _ = model.segment(tokens(model, 1, 8, 3), after)
    assert trained(model, logits.logsumexp(-1).sum()) == {name for name, _ in model.named_parameters()} - compression
    assert not any(after[name].requires_grad for name in after)


def test_the_loss_goes_down_when_only_the_compression_learns():
    model = build()
    state = model.read(tokens(model, 4, 24, 1), model.initial_state(4))
    text = tokens(model, 4, 8, 2)
    optimizer = torch.optim.Adam(model.compress.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        loss = model.training_segment(text, state).auxiliary.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_row_without_leaving_positions_has_no_loss():
    model = build()
    full, text = model.read(tokens(model, 1, 24, 1), model.initial_state()), tokens(model, 1, 8, 2)
    _, _, alone = model.training_segment(text, full)
    _, _, loss = model.training_segment(text.expand(2, -1), MemoryState.stack([full, model.initial_state()]))
    torch.testing.assert_close(loss, torch.cat([alone, torch.zeros(1, dtype=alone.dtype)]))
    _, _, nothing = model.training_segment(text, model.initial_state())
    assert nothing.item() == 0.0
    assert torch.isfinite(torch.stack([g.abs().max() for g in naive.gradients(model, nothing.sum()).values()])).all()


def test_compression_reaches_further_back_than_the_memory_alone():
    """A token 20 positions back is out of the memory's M = 8, but in one of the C = 8 groups of 2."""
    model = build(layers=1, compressed_length=8)
    text = tokens(model, 1, 24)
    other = text.clone()
    other[0, 4] = (other[0, 4] + 1) % model.vocab_size
    segment = tokens(model, 1, 1, 3)
    a, b = (model(segment, model.read(t, model.initial_state())) for t in (text, other))
    assert float((a - b).abs().max()) > 1e-6


def test_training_segment_is_segment():
    model = build()
    state = model.read(tokens(model, 2, 16, 1), model.initial_state(2))
    logits, after, _ = model.training_segment(tokens(model, 2, 8, 2), state)
    same, also = model.segment(tokens(model, 2, 8, 2), state)
    assert torch.equal(logits, same)
    assert after.digest() == also.digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compression_rate": 0}, "compression_rate=0: must be at least 1"),
        ({"compressed_length": 0}, "compressed_length=0: must be at least 1"),
        ({"memory_length": 3, "compression_rate": 4}, "memory_length=3: must be at least compression_rate=4"),
        ({"memory_length": -8}, "memory_length=-8: must be at least compression_rate=2"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_at_construction(changes, message):
    with pytest.raises(ConfigError, match=message):
        build(**changes)
