"""Unrolls: each row's loss and gradient are the same as if it were alone, however they are computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_lab.tasks.unroll import unroll
from everlong_models.errors import ConfigError, TokenError
from everlong_models.memories.armt import ARMT, ARMTConfig
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.infinite.scratch import InfiniteScratch, InfiniteScratchConfig
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.state import MemoryState
from tests.lab.tasks.losses import document_loss
from tests.models.memory_contract import CLOSE, assert_same_state, tokens
from tests.models.tiny import gpt2, llama

S = 8
LENGTHS = (1, S - 1, S, S + 1, 2 * S + 3, 4 * S)


def rmt() -> RMT:
    return RMT(RMTConfig(segment_length=S, memory_tokens=3), llama())


def armt() -> ARMT:
    model = ARMT(ARMTConfig(segment_length=S, memory_tokens=3, memory_width=4), gpt2())
    torch.manual_seed(1)
    torch.nn.init.normal_(model.value, std=0.3)
    return model


@pytest.fixture
def infinite() -> InfiniteScratch:
    config = InfiniteScratchConfig(
        segment_length=S, vocab_size=50, width=16, layers=2, heads=2, short_term=S, basis=8, samples=8, widths=(0.1,)
    )
    return InfiniteScratch(config, torch.float64)


@pytest.fixture(params=[rmt, armt])
def model(request) -> SegmentReader:
    return request.param()


def by_hand(model: SegmentReader, row: Tensor, wanted: Tensor, truncate: int = 99) -> tuple[Tensor, Tensor]:
    """Return summed loss and final memory of one document (N,), using only `forward` and `read`."""
    state, loss = model.initial_state(), torch.zeros((), dtype=torch.float64)
    segments = row.split(S)
    for index, segment in enumerate(segments):
        if index and (len(segments) - index) % truncate == 0:
            state = MemoryState({name: state[name].detach() for name in state})
        log_p = model.forward(segment[None], state)[0].log_softmax(-1)
        for offset in range(len(segment)):
            target = index * S + offset + 1
            if target < len(row) and wanted[target]:
                loss = loss - log_p[offset, row[target]]
        if len(segment) == S:
            state = model.read(segment[None], state)
    return loss, state


def gradients(model: SegmentReader, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), grads, strict=True)}


def assert_same_gradients(mine: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(mine) == set(expected)
    for name, grad in expected.items():
        torch.testing.assert_close(mine[name], grad, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
    assert any(bool(grad.any()) for grad in mine.values())


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("truncate", [None, 1, 2, 3])
@pytest.mark.long
def test_every_row_of_a_mixed_batch_is_as_it_is_alone(model, truncate, checkpointed):
    text = tokens(model, len(LENGTHS), 4 * S)
    wanted = torch.rand(text.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    alone = [by_hand(model, row[:n], w, truncate or 99) for row, n, w in zip(text, LENGTHS, wanted, strict=True)]
    how = {"lengths": torch.tensor(LENGTHS), "loss_mask": wanted, "truncate": truncate, "checkpointed": checkpointed}
    parts = list(unroll(model, text, **how))
    assert len(parts) == 4
    losses = torch.stack([part.loss for part in parts]).sum(0)
    torch.testing.assert_close(losses, torch.stack([loss for loss, _ in alone]), **CLOSE)
    assert_same_state(parts[-1].state, MemoryState.stack([state for _, state in alone]))
    counts = [int(wanted[row, 1:n].sum()) for row, n in enumerate(LENGTHS)]
    assert torch.stack([part.targets for part in parts]).sum(0).tolist() == counts
    expected = torch.stack([loss for loss, _ in alone]).sum() / sum(counts)
    mine = document_loss(model, text, **how)
    torch.testing.assert_close(mine, expected, **CLOSE)
    assert_same_gradients(gradients(model, mine), gradients(model, expected))


def test_ended_rows_keep_their_memory_bit_for_bit(model):
    text = tokens(model, 3, 3 * S)
    with torch.no_grad():
        parts = list(unroll(model, text, lengths=torch.tensor([S, 3 * S, S + 2])))
    for row in (0, 2):
        for part in parts[1:]:
            assert_same_state(part.state.split()[row], parts[0].state.split()[row], exactly=True)
    assert parts[2].state.split()[1].digest() != parts[1].state.split()[1].digest()


def test_truncation_beyond_the_document_is_no_truncation(model):
    text = tokens(model, 2, 3 * S)
    full = gradients(model, document_loss(model, text))
    assert_same_gradients(gradients(model, document_loss(model, text, truncate=3)), full)
    cut = gradients(model, document_loss(model, text, truncate=2))
    assert any(not torch.allclose(cut[name], full[name]) for name in full)


@pytest.mark.parametrize(("truncate", "reached"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])])
def test_gradients_stop_exactly_at_the_border(truncate, reached):
    """Each segment has tokens of its own, so that the embedding table's gradient shows which segments it reaches."""
    model = rmt()
    text = torch.arange(4 * S)[None]
    answer = torch.arange(4 * S)[None] == 4 * S - 1
    loss = document_loss(model, text, loss_mask=answer, truncate=truncate)
    model.backbone.model.lm_head.weight = torch.nn.Parameter(model.backbone.model.lm_head.weight.detach().clone())
    embeddings = model.backbone.model.get_input_embeddings().weight
    grad = torch.autograd.grad(loss, embeddings)[0][: 4 * S].reshape(4, S, -1)
    assert [segment for segment in range(4) if bool(grad[segment].any())] == reached


def test_backward_at_the_borders_is_the_whole_truncated_gradient(model):
    text = tokens(model, 2, 5 * S)
    total = sum(part.loss.sum() for part in unroll(model, text, truncate=2))
    expected = gradients(model, total)
    pending, borders = torch.zeros(()), []
    for part in unroll(model, text, truncate=2):
        pending = pending + part.loss.sum()
        borders.append(part.border)
        if part.border:
            pending.backward()  # frees its graph: a later part that led back into it would raise
            pending = torch.zeros(())
    assert borders == [True, False, True, False, True]
    assert_same_gradients({name: p.grad for name, p in model.named_parameters() if p.grad is not None}, {
        name: grad for name, grad in expected.items() if bool(grad.any())
    })  # fmt: skip


def test_backward_at_the_borders_where_a_row_has_ended_before(model):
    text, how = tokens(model, 3, 4 * S), {"lengths": torch.tensor([S, 4 * S, 2 * S]), "truncate": 1}
    whole = gradients(model, sum(part.loss.sum() for part in unroll(model, text, **how)))
    for part in unroll(model, text, **how):
        assert part.border
        part.loss.sum().backward()
    named = dict(model.named_parameters())
    assert_same_gradients({name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named.items()}, whole)


def test_a_border_is_one_only_if_all_rows_that_go_on_have_it(model):
    parts = unroll(model, tokens(model, 2, 4 * S), lengths=torch.tensor([4 * S, 3 * S]), truncate=2)
    assert [part.border for part in parts] == [False, False, False, True]
    assert [part.border for part in unroll(model, tokens(model, 1, 2 * S))] == [False, True]


def test_checkpointing_replays_dropout_and_computes_twice():
    model = armt().train()  # GPT-2 drops one in ten
    text = tokens(model, 2, 3 * S)
    calls = []
    model.backbone.model.transformer.h[0].register_forward_pre_hook(lambda *_: calls.append(1))
    grads = []
    for checkpointed in (False, True):
        torch.manual_seed(3)
        grads.append(gradients(model, document_loss(model, text, checkpointed=checkpointed)))
    assert_same_gradients(grads[1], grads[0])
    assert len(calls) == 3 + 2 * 3
    torch.manual_seed(4)
    other = gradients(model, document_loss(model, text))
    assert any(not torch.allclose(other[name], grads[0][name]) for name in other)


def test_only_the_answer_counts_and_only_its_segment_computes_logits(model):
    text = tokens(model, 2, 3 * S)
    mask = torch.zeros(2, 3 * S)
    mask[:, -2:] = 1
    heads = []
    model.backbone.model.get_output_embeddings().register_forward_hook(lambda _, args, out: heads.append(out.shape))
    parts = list(unroll(model, text, loss_mask=mask))
    assert len(heads) == 1
    assert [part.targets.tolist() for part in parts] == [[0, 0], [0, 0], [2, 2]]
    state = model.read(text[:, : 2 * S], model.initial_state(2))
    logits = model.forward(text[:, 2 * S :], state)[:, S - 3 : S - 1]
    losses = F.cross_entropy(logits.flatten(0, 1), text[:, -2:].flatten(), reduction="none").reshape(2, 2).sum(1)
    torch.testing.assert_close(parts[2].loss, losses, **CLOSE)


def test_correct_counts_the_targets_that_come_first(model):
    text = tokens(model, 1, 2 * S)
    with torch.no_grad():
        text[0, S] = model.forward(text[:, :S], model.initial_state())[0, -1].argmax()
        first, second = unroll(model, text, loss_mask=torch.arange(2 * S)[None] == S)
    assert (first.targets.item(), first.correct.item(), second.targets.item()) == (1, 1, 0)
    text[0, S] = (text[0, S] + 1) % model.vocab_size
    with torch.no_grad():
        assert next(unroll(model, text, loss_mask=torch.arange(2 * S)[None] == S)).correct.item() == 0


def test_it_goes_on_from_a_state(model):
    text = tokens(model, 2, 3 * S)
    with torch.no_grad():
        parts = list(unroll(model, text))
        later = list(unroll(model, text[:, S:], state=parts[0].state))
    torch.testing.assert_close(later[0].loss, parts[1].loss, **CLOSE)
    assert_same_state(later[1].state, parts[2].state)


def test_padding_is_never_looked_at(model):
    text, lengths = tokens(model, 4, 2 * S), torch.tensor([S + 3, 2, S + 6, S])
    padded = text.masked_fill(torch.arange(2 * S) >= lengths[:, None], -100)
    with torch.no_grad():
        loss = document_loss(model, text, lengths=lengths)
        assert torch.equal(document_loss(model, padded, lengths=lengths), loss)


def test_the_loss_is_computed_in_float32_under_a_bfloat16_backbone():
    model = RMT(RMTConfig(segment_length=S, memory_tokens=3), llama(dtype=torch.bfloat16))
    text = tokens(model, 1, S)
    with torch.no_grad():
        logits = model.forward(text, model.initial_state())[0, :-1]
        loss = document_loss(model, text)
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), text[0, 1:]), rtol=1e-6, atol=0)


def test_a_part_of_a_segment_has_its_auxiliary_loss(infinite):
    text, lengths = tokens(infinite, 2, 3 * S), torch.tensor([2 * S + 3, 3 * S - 1])
    last = [*unroll(infinite, text, lengths=lengths)][-1]
    state = infinite.read(text[:, : 2 * S], infinite.initial_state(2))
    for row, length in enumerate(lengths.tolist()):
        alone = MemoryState({name: tensor[row : row + 1] for name, tensor in state.tensors.items()})
        own = infinite.training_segment(text[row : row + 1, 2 * S : length], alone).auxiliary
        assert own > 0
        torch.testing.assert_close(last.auxiliary[row : row + 1], own, **CLOSE)
    asked = torch.arange(3 * S) < 2 * S + 4  # of the first row nothing is predicted there
    quiet = [*unroll(infinite, text, lengths=lengths, loss_mask=asked & torch.tensor([[False], [True]]))][-1]
    assert quiet.auxiliary.tolist() == [0, last.auxiliary[1].item()]


def test_bad_input_is_refused_at_the_call(model):
    text = tokens(model, 2, 2 * S)
    with pytest.raises(TokenError, match=r"2 numbers from 0 to 16, got \[3, 17\]"):
        unroll(model, text, lengths=torch.tensor([3, 17]))
    with pytest.raises(TokenError, match=r"got \[3\]"):
        unroll(model, text, lengths=torch.tensor([3]))
    with pytest.raises(TokenError, match=r"loss_mask has the shape \(2, 15\), must be \(2, 16\)"):
        unroll(model, text, loss_mask=torch.ones(2, 15))
    with pytest.raises(TokenError, match="shape"):
        unroll(model, text[0])
    with pytest.raises(ConfigError, match="truncate=0"):
        unroll(model, text, truncate=0)
    assert list(unroll(model, text, lengths=torch.tensor([0, 0]))) == []


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
def test_a_document_goes_on_with_what_is_returned_between_its_segments(checkpointed):
    model = rmt()
    text, seen = tokens(model, 2, 3 * S), []

    def between(index: int, state: MemoryState) -> MemoryState:
        seen.append((index, state))
        return MemoryState({"memory": 2 * state["memory"]})

    parts = list(unroll(model, text, checkpointed=checkpointed, between=between))
    assert [index for index, _ in seen] == [0, 1], "nothing goes on from the last"
    state = model.initial_state(2)
    for index, part in enumerate(parts):
        state = model.read(text[:, index * S : (index + 1) * S], state)
        assert_same_state(part.state, state)
        if index < 2:
            assert_same_state(seen[index][1], state)
        state = MemoryState({"memory": 2 * state["memory"]})
