"""RMT around an encoder equals the paper's recurrence, leaves the memory of padded rows alone, and refuses the rest."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from everlong_lab.tasks.rmt_encoder import RMTEncoder, RMTEncoderConfig
from everlong_models.errors import BackboneError, ConfigError, StateNotFinite, StateShape, TokenError
from everlong_models.memories.state import MemoryState
from tests.models.memory_contract import CLOSE, assert_same_state
from tests.models.tiny import gpt2

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "initializer_range": 0.3,  # so that what a segment holds is visible in the answer two segments later
}
FAMILIES = {
    "bert": (BertForMaskedLM, BertConfig, {}),
    "roberta": (RobertaModel, RobertaConfig, {"pad_token_id": 1, "max_position_embeddings": 26}),
    "distilbert": (
        DistilBertModel,
        DistilBertConfig,
        {
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 24,
            "initializer_range": 0.3,
        },
    ),
}
CLS, SEP, S, M = 2, 3, 8, 3


def encoder(family: str = "bert", **changes: object) -> PreTrainedModel:
    kind, config, more = FAMILIES[family]
    small = {"vocab_size": 61} if family == "distilbert" else SMALL
    torch.manual_seed(0)
    return kind(config(**(small | more | changes))).double().eval()


def rmt(family: str = "bert", **changes: object) -> RMTEncoder:
    config = {"segment_length": S, "memory_tokens": M, "classes": 4, "cls_token": CLS, "sep_token": SEP} | changes
    return RMTEncoder(RMTEncoderConfig(**config), encoder(family))


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=FAMILIES)
def model(request) -> RMTEncoder:
    return rmt(request.param)


def recurrence(model: RMTEncoder, row: Tensor) -> Tensor:
    """The paper's, for one text (N,) with nothing padded and nothing of ours: scores (classes,)."""
    base, embed = model.backbone, model.backbone.get_input_embeddings()
    first = len(row) % S or S
    memory = model.memory[None]
    for segment in (row[:first], *(row[start : start + S] for start in range(first, len(row), S))):
        cls, sep = embed(torch.tensor([[CLS]])), embed(torch.tensor([[SEP]]))
        out = base(inputs_embeds=torch.cat([cls, memory, sep, embed(segment[None]), sep], dim=1)).last_hidden_state
        memory = out[:, 1 : 1 + M]
    return model.head(out[0, 0])


def test_a_mixed_batch_is_the_papers_recurrence_of_each_row(model):
    """From one token to four segments; the first segment is the short one; loss and gradients too."""
    lengths = torch.tensor([1, 7, 8, 9, 16, 29])
    tokens, classes = text(6, 30), torch.tensor([0, 1, 2, 3, 0, 1])
    alone = torch.stack([recurrence(model, row[:n]) for row, n in zip(tokens, lengths, strict=True)])
    together = model(tokens, lengths)
    torch.testing.assert_close(together, alone, **CLOSE)
    named = {name: p for name, p in model.named_parameters() if "pooler" not in name}
    calls = []
    model.backbone.register_forward_pre_hook(lambda *_: calls.append(1))
    for checkpointed, expected_calls in ((False, 4), (True, 3 * 2 + 1)):
        calls.clear()
        scores = model(tokens, lengths, checkpointed=checkpointed)
        grads = torch.autograd.grad(nn.functional.cross_entropy(scores, classes), list(named.values()))
        expected = torch.autograd.grad(
            nn.functional.cross_entropy(alone, classes), list(named.values()), retain_graph=True
        )
        for name, mine, theirs in zip(named, grads, expected, strict=True):
            torch.testing.assert_close(mine, theirs, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
        assert len(calls) == expected_calls


def test_read_and_classify_are_forward_in_steps(model):
    tokens = text(2, 2 * S + 5)
    state = model.read(tokens[:, :5], model.initial_state(2))
    state = model.read(tokens[:, 5 : 5 + S], state)
    torch.testing.assert_close(model.classify(tokens[:, 5 + S :], state), model(tokens), **CLOSE)


def test_a_row_of_padding_keeps_its_memory_bit_for_bit(model):
    with torch.no_grad():
        before = model.read(text(3, S), model.initial_state(3))
        after = model.read(text(3, S, 1), before, torch.tensor([S, 0, 2]))
        assert torch.equal(after["memory"][1], before["memory"][1])
        assert not torch.equal(after["memory"][2], before["memory"][2])
        rest = [model.read(text(3, S, 1)[row : row + 1, :n], before.split()[row]) for row, n in ((0, S), (2, 2))]
        assert_same_state(MemoryState({"memory": after["memory"][[0, 2]]}), MemoryState.stack(rest))
        assert_same_state(model.read(text(3, S), before, torch.zeros(3)), before, exactly=True)


def test_no_gradient_of_a_padded_row_passes_through_the_encoder(model):
    memory = model.initial_state(2)["memory"].detach().requires_grad_()
    after = model.read(text(2, S), MemoryState({"memory": memory}), torch.tensor([S, 0]))["memory"]
    parameters = [p for p in model.backbone.parameters() if p.ndim == 2]
    of_padded = torch.autograd.grad(after[1].sum(), [memory, *parameters], retain_graph=True, allow_unused=True)
    assert torch.equal(of_padded[0][0], torch.zeros_like(memory[0]))
    assert torch.equal(of_padded[0][1], torch.ones_like(memory[1]))
    assert all(grad is None or not grad.any() for grad in of_padded[1:])
    of_read = torch.autograd.grad(after[0].square().sum(), [memory, *parameters], allow_unused=True)
    assert not of_read[0][1].any()
    assert any(grad is not None and grad.any() for grad in of_read[1:])


def test_what_stands_behind_a_rows_length_is_never_looked_at(model):
    lengths = torch.tensor([3, 11])
    tokens = text(2, 20)
    other = tokens.masked_fill(torch.arange(20) >= lengths[:, None], -100)
    with torch.no_grad():
        assert torch.equal(model(other, lengths), model(tokens, lengths))


def test_the_first_segment_reaches_the_answer_and_its_gradient(model):
    tokens = text(1, 3 * S)
    changed = tokens.clone()
    changed[0, 0] += 1 if changed[0, 0] < 60 else -1
    with torch.no_grad():
        assert float((model(tokens) - model(changed)).abs().max()) > 1e-4
    model(tokens).logsumexp(-1).backward()
    assert float(model.memory.grad.abs().min()) > 0
    assert float(model.head.weight.grad.abs().max()) > 0


def test_the_adapter_is_what_is_not_the_backbones():
    own = {name for name, _ in rmt().named_parameters() if not name.startswith("backbone.")}
    assert own == {"memory", "head.weight", "head.bias"}


def test_bad_input_is_refused(model):
    state = model.initial_state(2)
    with pytest.raises(TokenError, match="expected 1 to 8 tokens a row, got 9"):
        model.read(text(2, S + 1), state)
    with pytest.raises(TokenError, match="got 0"):
        model.read(text(2, 0), state)
    with pytest.raises(TokenError, match="3 rows of tokens for a state of 2 rows"):
        model.read(text(3, S), state)
    with pytest.raises(TokenError, match=r"2 numbers from 0 to 8, got \[4, 9\]"):
        model.read(text(2, S), state, torch.tensor([4, 9]))
    with pytest.raises(TokenError, match=r"from 1 to 8, got \[4, 0\]"):
        model.classify(text(2, S), state, torch.tensor([4, 0]))
    with pytest.raises(TokenError, match=r"from 1 to 20, got \[20, 0\]"):
        model(text(2, 20), torch.tensor([20, 0]))
    with pytest.raises(TokenError, match=r"\[0, 61\)"):
        model(torch.full((1, 4), 61))
    with pytest.raises(TokenError, match="shape"):
        model(text(2, S)[0])
    with pytest.raises(StateShape):
        model.read(text(1, S), MemoryState({"memory": torch.zeros(1, M + 1, 32, dtype=torch.float64)}))
    with pytest.raises(StateNotFinite, match="memory"):
        model.read(text(1, S), MemoryState({"memory": torch.full((1, M, 32), torch.nan, dtype=torch.float64)}))


def test_invalid_settings_are_refused_at_construction():
    with pytest.raises(ConfigError, match="memory_tokens=8: must be smaller than segment_length=8"):
        rmt(memory_tokens=8)
    for family in FAMILIES:  # of 24 positions each, RoBERTa's two padding positions not counted
        rmt(family, segment_length=18)
        with pytest.raises(ConfigError, match=r"segment_length=19: .* = 25 exceeds the backbone's 24 positions"):
            rmt(family, segment_length=19)
    with pytest.raises(ConfigError, match="sep_token=61: must be below the vocabulary's 61"):
        rmt(sep_token=61)
    with pytest.raises(ValidationError, match="classes"):
        rmt(classes=1)
    config = rmt().config
    with pytest.raises(BackboneError, match="GPT2Model is not an encoder"):
        RMTEncoder(config, gpt2().model)
    with pytest.raises(BackboneError, match="BertModel is not an encoder"):
        RMTEncoder(config, encoder(is_decoder=True))
    with pytest.raises(BackboneError, match="T5Model is not an encoder"):
        RMTEncoder(config, T5Model(T5Config(vocab_size=61, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)))
    with pytest.raises(BackboneError, match="ElectraModel embeds in 16 dimensions and puts out 32"):
        RMTEncoder(config, ElectraModel(ElectraConfig(**SMALL, embedding_size=16)))
