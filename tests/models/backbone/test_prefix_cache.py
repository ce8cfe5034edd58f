"""A prompt takes from earlier ones the keys and values of what they have in common, and every result is the same to the bit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.loading import load_backbone
from everlong_models.backbone.prefix_cache import PrefixCache
from everlong_models.backbone.quantised_llama import MANY
from everlong_models.kernels.attention import SHORT
from everlong_models.kernels.blocks import BLOCK
from everlong_models.kernels.cpu.quantised_matrix import GROUP, can_quantise
from everlong_models.kernels.linear import has_simd_kernels
from everlong_models.memories.window import Window, WindowConfig
from tests.models import tiny_gguf
from tests.models.backbone.rounding import ROUNDINGS, round_to
from tests.models.kernels.cpu.test_quantised_steps import build


def prompt(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens)


def kv(tokens: torch.Tensor, room: int = 0) -> torch.Tensor:
    """Keys and values that are the tokens themselves, of 2 layers and 3 heads of 4 numbers, with `room` for more positions."""
    values = torch.cat([tokens, torch.zeros(room, dtype=tokens.dtype)]).half()
    return values[:, None].expand(1, 2, 2, 3, -1, 4).contiguous()


def last(tokens: torch.Tensor) -> torch.Tensor:
    """A last hidden state that tells the prompt."""
    return tokens.sum().float().view(1, 1, 1)


def test_the_longest_beginning_is_found_and_only_by_its_owner() -> None:
    cache = PrefixCache()
    for tokens in (prompt(1, 2, 3, 4), prompt(1, 2, 9, 9, 9)):
        cache.keep("a", tokens, kv(tokens, room=3), last(tokens))
    for tokens, count in ((prompt(1, 2, 3, 7), 3), (prompt(1, 2, 9, 9), 4), (prompt(1, 5), 1)):
        found, stored = cache.find("a", tokens, 4)
        assert found == count
        assert stored is not None
        assert torch.equal(stored[..., :count, :], kv(tokens[:count]))
        assert cache.find("a", tokens, 1)[0] == 1
        assert cache.find("b", tokens, 4) == (0, None)
    assert cache.find("a", prompt(5, 1, 2), 4) == (0, None)


def test_the_same_prompt_is_found_with_its_last_hidden_state_and_only_by_its_owner() -> None:
    cache = PrefixCache()
    cache.keep("a", prompt(1, 2, 3), kv(prompt(1, 2, 3), room=2), last(prompt(1, 2, 3)))
    assert (same := cache.same("a", prompt(1, 2, 3))) is not None
    assert torch.equal(same[0], kv(prompt(1, 2, 3)))
    assert torch.equal(same[1], last(prompt(1, 2, 3)))
    assert cache.same("b", prompt(1, 2, 3)) is None
    assert cache.same("a", prompt(1, 2)) is None, "it has the last hidden state of the whole prompt alone"
    assert cache.same("a", prompt(1, 2, 4)) is None


def test_a_prompt_takes_the_place_of_its_beginnings_and_the_oldest_make_room() -> None:
    bytes_each = kv(prompt(1)).nbytes
    cache = PrefixCache(7 * bytes_each)
    cache.keep("a", prompt(1, 2), kv(prompt(1, 2)), last(prompt(1, 2)))
    cache.keep("a", prompt(1, 2, 3), kv(prompt(1, 2, 3)), last(prompt(1, 2, 3)))
    assert len(cache) == 1
    cache.keep("b", prompt(4, 5, 6), kv(prompt(4, 5, 6)), last(prompt(4, 5, 6)))
    assert len(cache) == 2
    cache.keep("a", prompt(7, 8), kv(prompt(7, 8)), last(prompt(7, 8)))
    assert cache.find("a", prompt(1, 2, 3), 3) == (0, None), "the oldest"
    assert cache.find("b", prompt(4, 5), 2)[0] == 2
    cache.keep("a", prompt(*range(8)), kv(prompt(*range(8))), last(prompt(*range(8))))
    assert cache.find("a", prompt(0, 1), 2)[0] == 2, "the newest one is kept, however large"
    assert len(cache) == 1


LENGTHS, NEWEST = (20, 50, 110, 110, 127, 250, 400, 440), 48
CONFIG = WindowConfig(segment_length=448, sinks=4, window=60)


@torch.no_grad()
def compare(memory: Window) -> None:
    """Open segments of `LENGTHS` tokens, each with the beginning of the one before it, with and without what the earlier ones left; each twice with it."""
    text = torch.randint(5, 90, (1, 896), generator=torch.Generator().manual_seed(1))
    state, prefixes = memory.read(text[:, :448], memory.initial_state()), PrefixCache()
    for length in LENGTHS:
        segment = text[:, 448 : 448 + length]
        warm, warm_logits = memory.open_recent(state, segment, NEWEST, prefixes=prefixes)
        again, again_logits = memory.open_recent(state, segment, NEWEST, prefixes=prefixes)
        cold, cold_logits = memory.open_recent(state, segment, NEWEST)
        token = segment[:, -1]
        stepped = memory.step(cold, token)
        for other, logits in ((warm, warm_logits), (again, again_logits)):
            assert torch.equal(logits, cold_logits)
            assert torch.equal(memory.step(other, token), stepped)
            assert all(torch.equal(other[name], cold[name]) for name in cold.tensors)


@pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")
@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma3_text", "gpt_neox"])
def test_it_changes_no_result(family: str, quantize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = build(family=family)
    backbone.optimize(quantize=quantize)
    if backbone.exact_step is None:
        assert not (has_simd_kernels(torch.empty(0)) and family in ("llama", "qwen2"))
        pytest.skip("this family, or this processor's kernels, may compute several positions together")
    memory = Window(CONFIG, backbone)
    encoded = counted(backbone, monkeypatch)
    compare(memory)
    assert_reused(encoded, backbone.exact_step)


def counted(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every pass of the backbone adds its number of positions."""
    encoded, hidden = list[int](), backbone.hidden

    def counting(x, **arguments):
        encoded.append(x.shape[1])
        return hidden(x, **arguments)

    monkeypatch.setattr(backbone, "hidden", counting)
    return encoded


def test_what_is_computed_again_is_enough_for_products_of_many_rows() -> None:
    """Otherwise the rest of a prompt would be multiplied with integers, and the whole prompt with activations in 8 bits or bfloat16."""
    assert SHORT >= MANY


def assert_reused(encoded: list[int], step: int) -> None:
    """Assert that each prompt of `compare` was encoded without what the one before it has in common with it, in whole steps; the same prompt
    again was not encoded at all. Each is encoded whole after that, for the comparison."""
    everything = [4 + NEWEST + length for length in LENGTHS]
    expected = [everything[0], everything[0]]
    for before, count in pairwise(everything):
        known = min(before, count - SHORT - 1)
        rest = [count - known + known % step] if count != before else []
        expected += [*rest, count]
    assert [count for count in encoded if count > 1] == expected


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("family", ["qwen2", *tiny_gguf.FIELDS])
@pytest.mark.long
def test_it_changes_no_result_of_one_copy_of_the_weights(
    family: str, threads: int, rounding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of threads, among which PyTorch divides the numbers of all positions."""
    file = tiny_gguf.write(tmp_path / "tiny.gguf", family, mlp=tiny_gguf.MLP if family == "qwen3moe" else 1024)
    backbone, _ = load_backbone(str(file), models_dir=tmp_path, one_copy=True)
    backbone.optimize(quantize=True, bfloat16=round_to(rounding, monkeypatch))
    assert backbone.exact_step in (1, BLOCK)
    encoded = counted(backbone, monkeypatch)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compare(Window(CONFIG, backbone))
        assert_reused(encoded, backbone.exact_step)
    finally:
        torch.set_num_threads(before)
