"""`compact` passes the memory contract, keeps each stretch's share of the text, and refuses what cannot work."""

from __future__ import annotations

import pytest
import torch
import transformers

from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import BackboneError, ConfigError
from everlong_models.memories.compact import Compact, CompactConfig
from tests.models.backbone.test_layers import NAMES, make
from tests.models.memory_contract import MemoryContract, tokens
from tests.models.tiny import FAMILIES, llama


def compact(backbone: Backbone, **changes: int) -> Compact:
    return Compact(
        CompactConfig(**({"segment_length": 12, "entries": 20, "pinned": 2, "queries": 9} | changes)), backbone
    )


class TestCompact(MemoryContract):
    @pytest.fixture(params=[(f, t, p) for f in FAMILIES for t, p in ((20, 2), (7, 0), (70, 4))], ids=str)
    def model(self, request):
        family, entries, pinned = request.param
        return compact(FAMILIES[family](), entries=entries, pinned=pinned)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_with_room_for_everything_the_answer_is_the_backbones_own(name):
    """Reading segment by segment, and moving keys to position 0 and back, loses nothing."""
    backbone = make(name)
    model = compact(backbone, entries=60)
    text = tokens(model, 2, 41)
    expected = backbone.logits(backbone.hidden(backbone.embed(text))[:, 36:])
    if name == "falcon":  # transformers does not show its queries
        assert backbone.optimize() is None
    state = model.read(text[:, :36], model.initial_state(2))
    torch.testing.assert_close(model.forward(text[:, 36:], state), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("segments", [2, 5, 19, 60])
@torch.no_grad()
def test_every_stretch_keeps_its_share(segments):
    model = compact(llama(), entries=20, pinned=0)
    state = model.read(tokens(model, 1, segments * 12), model.initial_state())
    position = state["position"][0]  # (L, G, t)
    assert position.diff(dim=-1).min() > 0, "in the order of the text, each once"
    for head in position.flatten(0, 1):
        kept = torch.bincount(head // 12, minlength=segments)
        assert kept.sum() == 20
        assert kept.max() - kept.min() <= 1
        if segments > 20:  # those that keep one are spread over the text
            assert (head // 12).diff().max() <= 2 * segments / 20 + 1
    assert len({tuple(head.tolist()) for head in position.flatten(0, 1)}) > 1, "each head chooses for itself"


@torch.no_grad()
def test_the_first_tokens_stay_for_ever():
    model = compact(llama(), entries=20, pinned=3)
    state = model.read(tokens(model, 1, 240), model.initial_state())
    assert (state["position"][..., :3] == torch.arange(3)).all()


@torch.no_grad()
def test_a_segment_keeps_what_its_queries_attend_to():
    """The score written out: every query behind the segment sees all of it and the entries kept so far."""
    model = compact(llama(num_hidden_layers=1), entries=20, pinned=0, queries=12)
    text = tokens(model, 1, 24)
    before = model.read(text[:, :12], model.initial_state())
    after = model.read(text, model.initial_state())
    backbone, seen = model.backbone, {}
    kv = backbone.new_kv(1, 36)
    x = backbone.embed(torch.cat([text, text[:, 12:]], dim=1))  # one layer: keys and queries depend on no other token
    backbone.hidden(x, kv=kv, at=torch.zeros(1, dtype=torch.int64), observer=lambda n, q, k: seen.update({n: (q, k)}))
    assert before["seen"] == 12
    queries, keys = seen[0]
    attention = (queries[..., 24:, :] @ keys[:, :, None, :24].mT).softmax(-1)  # (1, G, R, 12, 24)
    score = attention.square().mean((2, 3))[0, :, 12:]
    # 20 of 24 tokens are kept, ten of each segment.
    expected = score.topk(10).indices.sort().values + 12
    assert torch.equal(after["position"][0, 0][:, 10:], expected)


@torch.no_grad()
def test_a_state_has_sixteen_bits_and_reads_on_after_saturating():
    model = compact(llama(torch.float32))
    state = model.initial_state()
    assert {name: state[name].dtype for name in ("keys", "values")} == dict.fromkeys(("keys", "values"), torch.float16)
    assert torch.isfinite(model._rounded(torch.tensor([1e9, -1e9]))).all()


def test_the_view_tells_how_many_entries_are_in_use():
    model = compact(llama())
    view = model.view(model.read(tokens(model, 1, 12), model.initial_state()), tokens(model, 1, 5), 12)
    (part,) = view.parts
    assert (part.name, part.start, part.end, part.slots, part.used, part.age) == ("entries", 0, 12, 20, 12, 5)


def test_invalid_settings_are_refused_at_construction():
    with pytest.raises(ConfigError, match="pinned=20: must be smaller than entries=20"):
        compact(llama(), pinned=20)
    with pytest.raises(ConfigError, match=r"entries \+ segment_length = 132 exceeds the backbone's 128 positions"):
        compact(llama(), entries=120)


def test_an_architecture_that_shows_no_queries_is_refused():
    config = transformers.GPTJConfig(
        vocab_size=97, n_embd=48, n_layer=2, n_head=4, rotary_dim=8, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    model = compact(Backbone(transformers.GPTJForCausalLM(config).double().eval()))
    with pytest.raises(BackboneError, match="GPTJForCausalLM: this memory needs the queries of every layer"):
        model.optimize()
