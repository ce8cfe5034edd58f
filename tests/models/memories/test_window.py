"""`window` passes the memory contract and is the backbone's own attention over sinks, window and open segment."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from everlong_lab.tasks.unroll import unroll
from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import ConfigError, TokenError
from everlong_models.memories.window import Window, WindowConfig
from tests.models.memory_contract import MemoryContract, tokens
from tests.models.tiny import FAMILIES, llama


class TestWindow(MemoryContract):
    pauses = 0  # reading is keeping token ids

    @pytest.fixture(params=[(f, s, w) for f in FAMILIES for s, w in ((5, 17), (0, 30), (12, 7))], ids=str)
    def model(self, request):
        family, sinks, window = request.param
        return Window(WindowConfig(segment_length=12, sinks=sinks, window=window), FAMILIES[family]())


@pytest.mark.parametrize("read", [0, 8, 16, 24, 80])
def test_the_answer_is_the_backbones_over_first_and_last_tokens(read):
    model = Window(WindowConfig(segment_length=8, sinks=3, window=10), llama())
    text = tokens(model, 1, read + 5)
    kept = text if read <= 13 else torch.cat([text[:, :3], text[:, read - 10 :]], dim=1)
    state = model.read(text[:, :read], model.initial_state())
    expected = model.backbone.model(kept).logits[:, -1]
    _, logits = model.open(state, text[:, read:])
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("read", [8, 40])
def test_layers_with_a_sliding_window_of_their_own_keep_it(read):
    """As in Gemma 3: the window of 6 is shorter than what the memory keeps."""
    config = Gemma3TextConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=12, sliding_window=6, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = Window(WindowConfig(segment_length=8, sinks=3, window=10), Backbone(Gemma3ForCausalLM(config).eval()))
    text = tokens(model, 1, read + 5)
    kept = text if read <= 13 else torch.cat([text[:, :3], text[:, read - 10 :]], dim=1)
    with torch.no_grad():
        cache, logits = model.open(model.read(text[:, :read], model.initial_state()), text[:, read:])
        torch.testing.assert_close(logits, model.backbone.model(kept).logits[:, -1], rtol=1e-5, atol=1e-5)
        token = torch.tensor([7])
        expected = model.backbone.model(torch.cat([kept, token[:, None]], dim=1)).logits[:, -1]
        torch.testing.assert_close(model.step(cache, token), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_short_documents_are_learnt_from_in_one_pass(family, checkpointed):
    model = Window(WindowConfig(segment_length=8, sinks=3, window=14), FAMILIES[family]())
    assert model.one_pass_tokens == 24
    text, wanted = tokens(model, 3, 24), torch.rand(3, 24) < 0.4
    lengths = torch.tensor([24, 5, 18])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    (whole,) = unroll(model, text, lengths=lengths, loss_mask=wanted, checkpointed=checkpointed)
    parts = list(unroll(model, text, lengths=lengths, loss_mask=wanted, state=model.initial_state(3)))
    assert len(parts) == 3
    for name in ("loss", "auxiliary", "targets", "correct"):
        added = sum(getattr(part, name) for part in parts)
        torch.testing.assert_close(getattr(whole, name), added, check_dtype=name != "auxiliary")
    assert whole.state.digest() == parts[-1].state.digest()
    by_segments = torch.autograd.grad(sum(part.loss.sum() for part in parts), weights, allow_unused=True)
    torch.testing.assert_close(torch.autograd.grad(whole.loss.sum(), weights, allow_unused=True), by_segments)


def test_a_document_with_evictions_is_learnt_from_segment_by_segment():
    model = Window(WindowConfig(segment_length=8, sinks=3, window=14), llama())
    text = tokens(model, 1, 25)
    assert len(list(unroll(model, text))) == 4
    with pytest.raises(TokenError, match="one pass takes 1 to 24 tokens of a document, got 25"):
        model.logits_at(text, torch.tensor([0]), torch.tensor([24]))


def test_invalid_settings_are_refused_at_construction():
    with pytest.raises(ConfigError, match="sinks=9: must be at most segment_length=8"):
        Window(WindowConfig(segment_length=8, sinks=9), llama())
    with pytest.raises(ConfigError, match="exceeds the backbone's 128 positions"):
        Window(WindowConfig(segment_length=8, sinks=4, window=117), llama())


@pytest.mark.parametrize("newest", [0, 4, 10, 50])
def test_opening_with_the_newest_tokens_only_loses_nothing(newest):
    model = Window(WindowConfig(segment_length=8, sinks=3, window=10), llama())
    text = tokens(model, 1, 45)
    state = model.read(text[:, :40], model.initial_state())
    seen = torch.cat([text[:, :3], text[:, 40 - min(newest, 10) :]], dim=1)
    cache, logits = model.open_recent(state, text[:, 40:], newest)
    torch.testing.assert_close(logits, model.backbone.model(seen).logits[:, -1])
    token = torch.tensor([7])
    torch.testing.assert_close(
        model.step(cache, token), model.backbone.model(torch.cat([seen, token[:, None]], dim=1)).logits[:, -1]
    )
    whole, _ = model.open(state, text[:, 40:])
    model.step(whole, token)
    assert model.close(cache).digest() == model.close(whole).digest()


@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize("newest", [0, 3, 20])
@pytest.mark.parametrize("read", [0, 8, 16, 24, 40])
def test_an_answer_continues_in_its_cache_across_a_segment_border(read, newest, sinks):
    """As if it saw the first three positions and the last twenty. That is exact for one layer, whose keys and values do not
    depend on earlier positions."""
    model = Window(WindowConfig(segment_length=8, sinks=3, window=20), llama(num_hidden_layers=1))
    text = tokens(model, 1, read + 29)
    state = model.read(text[:, :read], model.initial_state())
    cache, _ = model.open_recent(state, text[:, read : read + 5], newest, sinks=sinks)
    first = min(read, 3)
    tail = min(read - first, newest, 20)
    held = torch.cat([text[:, : first if sinks else 0], text[:, read - tail : read + 5]], dim=1)
    for at in range(read + 5, read + 29):
        if (at - read) % 8 == 0:
            after = model.continue_in_cache(cache, text[:, at - 8 : at], state)
            assert after is not None
            state = after
            held = torch.cat([held[:, :3], held[:, 3:][:, -20:]], dim=1)
        held = torch.cat([held, text[:, at : at + 1]], dim=1)
        found, wanted = model.step(cache, text[:, at]), model.backbone.model(held).logits[:, -1]
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)  # angles are of float32
    assert held.shape[1] == min(first * sinks + tail + 29, 28), "all but the shortest contexts evict positions"
    whole = model.read(text[:, : read + 24], model.initial_state())
    assert state.digest() == whole.digest()
    assert model.close(cache).digest() == model.close(model.open(whole, text[:, read + 24 :])[0]).digest()


@pytest.mark.parametrize(("family", "sinks"), [("gpt2", 3), ("llama", 0)])
def test_where_keys_cannot_move_a_cache_continues_until_the_first_eviction(family, sinks):
    """Keys with learned positions cannot be moved, and without sinks the rest degenerates (Xiao et al. 2023)."""
    model = Window(WindowConfig(segment_length=8, sinks=sinks, window=23 - sinks), FAMILIES[family]())
    text, state = tokens(model, 1, 32), model.initial_state()
    cache, _ = model.open(state, text[:, :8])
    for at in (0, 8):
        after = model.continue_in_cache(cache, text[:, at : at + 8], state)
        assert after is not None
        state = after
        for token in text[0, at + 8 : at + 16]:
            logits = model.step(cache, token[None])
    torch.testing.assert_close(logits, model.backbone.model(text[:, :24]).logits[:, -1])
    untouched = {name: tensor.clone() for name, tensor in cache.tensors.items()}
    assert model.continue_in_cache(cache, text[:, 16:24], state) is None
    assert int(cache.lengths) == 8
    assert all(torch.equal(cache[name], tensor) for name, tensor in untouched.items())
