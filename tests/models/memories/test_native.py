"""`native` passes the memory contract for every family, and generates what transformers' own `generate` does."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from everlong_lab.tasks.greedy import answer
from everlong_models.backbone.recurrent.families import FAMILIES as SUPPORTED
from everlong_models.backbone.recurrent.model import Recurrent
from everlong_models.errors import BackboneError, ConfigError
from everlong_models.memories.native import Native, NativeConfig
from everlong_models.memories.state import decode_state, encode_state
from tests.models.memory_contract import MemoryContract, assert_same_state, tokens
from tests.models.tiny import llama
from tests.models.tiny_families import mark_rare_long
from tests.models.tiny_recurrent import FAMILIES, recurrent

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
"""transformers computes recurrences in float32. The chunked and the recurrent form add in another order."""


each_family = pytest.mark.parametrize(
    "family", mark_rare_long(FAMILIES, common={"mamba2", "recurrent_gemma", "lfm2", "qwen3_next"})
)


def native(family: str, **options: int) -> Native:
    """A tiny model of the family with the memory."""
    return Native(
        NativeConfig(**({"segment_length": 12, "sinks": 3, "window": 17} | options)), Recurrent(FAMILIES[family]())
    )


def test_every_supported_family_is_tested():
    assert set(FAMILIES) == set(SUPPORTED)


@each_family
class TestNative(MemoryContract):
    close = CLOSE

    @pytest.fixture
    def model(self, family):
        return native(family)

    def moved(self, model: Native, device: str) -> Native:
        """Without values, PyTorch multiplies experts only one by one in float32."""
        model.backbone.model.set_experts_implementation("batched_mm")
        return model.to(device)


@each_family
class TestAgainstTransformers:
    """While all tokens fit into the attention of hybrids, results are transformers' own."""

    def test_it_generates_the_same_tokens(self, family):
        theirs = FAMILIES[family]()
        text = tokens(native(family), 2, 50, seed=3)
        expected = theirs.generate(
            text,
            attention_mask=torch.ones_like(text),
            max_new_tokens=40,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        assert len(set(expected[0, 50:].tolist())) > 4, "a model that repeats itself tells nothing"
        model = native(family, window=100)
        state = model.read(text[:, :48], model.initial_state(2))
        assert answer(model, state, text[:, 48:], most=40, ends=()) == expected[:, 50:].tolist()

    def test_logits_are_the_same_at_every_position(self, family):
        model = native(family, window=100)
        text = tokens(model, 2, 48, seed=4)
        with torch.no_grad():
            expected = FAMILIES[family]()(text, use_cache=False).logits
            state, found = model.initial_state(2), []
            for segment in text.split(12, dim=1):
                logits, state = model.segment(segment, state)
                found.append(logits)
        difference = torch.cat(found, dim=1) - expected
        assert difference.norm() <= 1e-5 * expected.norm()


@each_family
def test_a_saved_and_loaded_session_answers_bit_for_bit_as_if_it_never_stopped(family):
    model = native(family)
    text = tokens(model, 1, 12 * 5 + 7)
    with torch.no_grad():
        stopped = model.read(text[:, :36], model.initial_state())
        resumed = decode_state(encode_state(stopped, "m"), "m")
        whole = model.read(text[:, :60], model.initial_state())
        resumed = model.read(text[:, 36:60], resumed)
        assert_same_state(resumed, whole, exactly=True)
        ours, theirs = (model.open(state, text[:, 60:]) for state in (resumed, whole))
        for _ in range(4):
            assert torch.equal(ours[1], theirs[1])
            ours, theirs = ((cache, model.step(cache, logits.argmax(-1))) for cache, logits in (ours, theirs))


@pytest.mark.parametrize("family", ["mamba", "recurrent_gemma", "falcon_h1", "qwen3_next"])
def test_an_answer_continues_in_its_cache_across_a_segment_border(family):
    model = native(family)
    text = tokens(model, 1, 60)
    with torch.no_grad():
        state = model.read(text[:, :24], model.initial_state())
        cache, _ = model.open(state, text[:, 24:30])
        for at in range(30, 60):
            if at % 12 == 0:
                state = model.continue_in_cache(cache, text[:, at - 12 : at], state)
            logits = model.step(cache, text[:, at])
        reread = model.read(text[:, :48], model.initial_state())
        assert_same_state(state, reread, close=CLOSE)
        torch.testing.assert_close(logits, model.forward(text[:, 48:], reread)[:, -1], **CLOSE)


def test_layers_with_full_attention_see_the_first_and_the_last_tokens():
    """Exact for a model whose attention comes first: there, keys and values do not depend on earlier tokens."""
    layers = {"num_hidden_layers": 2, "layer_types": ["full_attention", "conv"]}
    model = Native(NativeConfig(segment_length=8, sinks=3, window=13), Recurrent(recurrent("lfm2", **layers)))
    text = tokens(model, 1, 45)
    kept = torch.cat([text[:, :3], text[:, 27:]], dim=1)
    with torch.no_grad():
        state = model.read(text[:, :40], model.initial_state())
        expected = recurrent("lfm2", **layers)(kept, use_cache=False).logits[:, -5:]
        found = model.forward(text[:, 40:], state)
    # The convolution sees two more tokens, which attended to tokens that are gone since.
    torch.testing.assert_close(found[:, 2:], expected[:, 2:], **CLOSE)


def test_a_sliding_window_of_the_model_is_kept():
    """However long the text, logits are transformers' own."""
    model = native("recurrent_gemma")
    assert (model.sinks, model.window) == (0, 11)
    text = tokens(model, 2, 12 * 7)
    with torch.no_grad():
        expected = FAMILIES["recurrent_gemma"]()(text, use_cache=False).logits[:, -12:]
        found = model.forward(text[:, -12:], model.read(text[:, :-12], model.initial_state(2)))
    assert (found - expected).norm() <= 1e-5 * expected.norm()


class TestRefusals:
    def test_a_model_without_recurrent_layers(self):
        with pytest.raises(
            BackboneError, match=r"LlamaForCausalLM \(llama\): it has no recurrent layer.*supports Mamba, .*LFM2"
        ):
            Recurrent(llama(torch.float32).model)

    @pytest.mark.parametrize(
        ("family", "reason"),
        [
            ("rwkv", r"its layers .* keep their state outside transformers' cache"),
            ("xlstm", "its layers keep no state in transformers' cache"),
            ("minimax", "its layers keep no state in transformers' cache"),
        ],
    )
    def test_recurrent_layers_that_keep_their_state_elsewhere(self, family, reason):
        options = {"xlstm": {"num_heads": 4}, "minimax": {"layer_types": ["linear_attention", "full_attention"]}}.get(
            family, {}
        )
        config = AutoConfig.for_model(family, vocab_size=97, hidden_size=32, num_hidden_layers=2, **options)
        with pytest.raises(BackboneError, match=rf"\({family}\): {reason}.* supports Mamba, "):
            Recurrent(AutoModelForCausalLM.from_config(config))

    def test_attention_beyond_the_models_positions(self):
        with pytest.raises(ConfigError, match=r"window=1024: .* exceeds the model's 512 positions"):
            native("lfm2", window=1024)
        assert native("jamba", window=1024).slots == 1027, "without positions there is no limit"
