"""GGUF files of GPT-2, GPT-NeoX and Falcon: every variant is the same model as transformers' own, from float weights and from one copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.gguf.families import config_of, misread_by_transformers
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.loading import find_backbone, load_backbone, load_tokenizer
from everlong_models.backbone.quantised_llama import MANY
from everlong_models.kernels.cpu.job import Layer
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from tests.models import tiny_families, tiny_gguf
from tests.models.backbone.rounding import CLOSE, ROUNDINGS, round_to

TOKENS = torch.randint(0, tiny_gguf.VOCABULARY, (2, 60), generator=torch.Generator().manual_seed(1))
MATRICES = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
FALCON_7B = {"falcon.attention.head_count_kv": 1, "norms": ("attn_norm",)}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-2": ("gpt2", {"tied": True}),
    "gpt-2 with a head": ("gpt2", {}),
    "gpt-neox": ("gptneox", {}),
    "gpt-neox in turn": ("gptneox", {"gptneox.use_parallel_residual": False}),
    "gpt-neox that rotates whole heads": ("gptneox", {"gptneox.rope.dimension_count": 32}),
    "gpt-neox without biases of the attention": ("gptneox", {"biases": ("ffn_up", "ffn_down")}),
    "gpt-neox with scaled positions": (
        "gptneox", {"gptneox.rope.scaling.type": "linear", "gptneox.rope.scaling.factor": 4.0},
    ),
    "falcon 7b": ("falcon", FALCON_7B),
    "falcon 7b with other rotary positions": ("falcon", FALCON_7B | {"falcon.rope.freq_base": 500.0}),
    "falcon 11b": ("falcon", {"norms": ("attn_norm",)}),
    "falcon 40b": ("falcon", {}),
    "falcon with biases": ("falcon", {"biases": MATRICES}),
}  # fmt: skip
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-2": ("gpt2", {"tied": True, "mlp": 4 * tiny_gguf.WIDTH, "length": 1024}),
    "gpt-2 with a head": ("gpt2", {"mlp": 4 * tiny_gguf.WIDTH, "length": 1024}),
    "falcon 7b": ("falcon", FALCON_7B | {"tied": True, "mlp": 4 * tiny_gguf.WIDTH}),
}
"""What transformers' reader reads right."""


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def load(file: Path, *, one_copy: bool = True, bfloat16: bool = False) -> Backbone:
    backbone, _ = load_backbone(str(file), models_dir=file.parent / "models", one_copy=one_copy)
    assert (backbone.digest is not None) == one_copy
    assert backbone.optimize(quantize=one_copy, bfloat16=bfloat16) is None
    return backbone


def logits(backbone: Backbone, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    """Return the logits of the last 8 positions by decode steps, and of the others by prefill."""
    x, kv = backbone.embed(tokens), backbone.new_kv(len(tokens), 64)
    start = tokens.shape[1] - 8
    hidden = [backbone.hidden(x[:, :start], kv=kv)]
    for n in range(start, tokens.shape[1]):
        hidden.append(backbone.hidden(x[:, n : n + 1], kv=kv, at=torch.full((len(tokens),), n)))
    return backbone.logits(torch.cat(hidden, dim=1))


@pytest.mark.parametrize("one_copy", [False, pytest.param(True, marks=pytest.mark.long)], ids=["floats", "one copy"])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
@pytest.mark.long
def test_every_variant_is_the_original_model(variant: str, one_copy: bool, tmp_path: Path) -> None:
    family, more = VARIANTS[variant]
    file = tiny_gguf.write(tmp_path / "model.gguf", family, **more)
    expected, found = tiny_gguf.float_model(file)(TOKENS).logits, logits(load(file, one_copy=one_copy))
    for part in (slice(0, 52), slice(52, 60)):  # prefill, decode steps
        assert distance(found[:, part], expected[:, part]) < (1e-3 if one_copy else 1e-5)


@pytest.mark.parametrize("variant", PLAIN)
@torch.no_grad()
@pytest.mark.long
def test_files_that_transformers_reads_right_are_left_to_it(variant: str, tmp_path: Path) -> None:
    """Their fingerprints stay."""
    family, more = PLAIN[variant]
    file = tiny_gguf.write(tmp_path / "model.gguf", family, **more)
    assert not misread_by_transformers(GGUFFile(file))
    expected = tiny_gguf.float_model(file)(TOKENS).logits
    for one_copy, close in ((False, 1e-5), (True, 1e-3)):
        assert distance(logits(load(file, one_copy=one_copy)), expected) < close


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("gpt2", {"length": 512}),
        ("gpt2", {"mlp": 512}),
        ("falcon", {"tied": False}),
        ("falcon", {"biases": MATRICES}),
        ("falcon", {"falcon.attention.layer_norm_epsilon": 1e-6}),
        ("falcon", {"falcon.rope.freq_base": 500.0}),
        ("falcon", {"norms": ("attn_norm", "attn_norm_2")}),
        ("falcon", {"falcon.attention.head_count_kv": 2}),
    ],
)
def test_files_that_transformers_misreads_are_read_here(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    plain = PLAIN["gpt-2" if family == "gpt2" else "falcon 7b"][1]
    assert misread_by_transformers(GGUFFile(tiny_gguf.write(tmp_path / "model.gguf", family, **plain | more)))


def test_the_activation_of_gpt_neox_20b_is_gelu_with_tanh(tmp_path: Path) -> None:
    file = GGUFFile(tiny_gguf.write(tmp_path / "model.gguf", "gptneox"))
    assert config_of(file).hidden_act == "gelu"
    file.metadata["gptneox.block_count"] = 44
    assert config_of(file).hidden_act == "gelu_fast"


@pytest.mark.parametrize(
    ("text", "parts"),
    [("1991", ["19", "9", "1"]), ("191991", ["19", "1", "9", "91"]), ("he!he", ["he", "!", "he"])],
)
def test_falcons_tokenizer_splits_off_three_digits_at_a_time(text: str, parts: list[str], tmp_path: Path) -> None:
    """The vocabulary has `he`, `19`, `91` and `1991`. transformers' reader would not split at all."""
    file = tiny_gguf.write(tmp_path / "model.gguf", "falcon", pre="falcon")
    tokenizer = load_tokenizer(find_backbone(str(file), models_dir=tmp_path / "models"))
    assert [tokenizer.decode([token]) for token in tokenizer.encode(text)] == parts


def test_gpt_neoxs_tokenizer_has_runs_of_spaces_and_composes_characters(tmp_path: Path) -> None:
    """transformers' reader would split a run of spaces, and leave characters as they are."""
    file = tiny_gguf.write(tmp_path / "model.gguf", "gptneox", spaces=True, pre="olmo")
    tokenizer = load_tokenizer(find_backbone(str(file), models_dir=tmp_path / "models"))
    text = "he  he   1991"
    ids = tokenizer.encode(text)
    assert [tokenizer.decode([token]) for token in ids] == ["he", "  ", "he", "  ", " ", "1991"]
    assert ids[1] == 260
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_ids == (259,)
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


@pytest.mark.parametrize("family", tiny_families.mark_rare_long(tiny_gguf.GPT))
@torch.no_grad()
def test_threads_change_nothing(family: str, tmp_path: Path) -> None:
    """Neither decode steps nor short prefills, to the bit."""
    backbone, before, found = load(tiny_gguf.write(tmp_path / "model.gguf", family)), torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(logits(backbone, TOKENS[:, :18]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("family", tiny_families.mark_rare_long(tiny_gguf.GPT))
@torch.no_grad()
def test_what_is_added_to_the_residual_stream_has_mean_0(family: str, tmp_path: Path) -> None:
    """Also after the backbone was optimised again."""
    backbone = load(tiny_gguf.write(tmp_path / "model.gguf", family))
    assert backbone.optimize(quantize=True) is None
    assert backbone._optimised is not None
    assert backbone._optimised.decoding is not None
    for layer in backbone._optimised.decoding.layers:
        for name in (Layer.O, Layer.DOWN):
            assert layer[name].update is not None
            y = layer[name](torch.randn(3, layer[name].inputs) + 1)
            assert float(y.mean(-1).abs().max()) < 1e-4 * float(y.std())


@pytest.mark.parametrize("rounding", ROUNDINGS[1:])
@pytest.mark.parametrize("family", tiny_families.mark_rare_long(tiny_gguf.GPT))
@torch.no_grad()
def test_rounded_products_leave_no_mean(
    family: str, rounding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rounding leaves a part of the mean, which would be the same error in all numbers of a row, and grow with each layer."""
    file = tiny_gguf.write(tmp_path / "model.gguf", family)
    expected = tiny_gguf.float_model(file)(TOKENS).logits
    backbone, rows = load(file, bfloat16=round_to(rounding, monkeypatch)), []
    in_16_bits = QuantisedMatrix.__call__

    def counting(matrix: QuantisedMatrix, x: torch.Tensor) -> torch.Tensor:
        rows.append(x.numel() // x.shape[-1])
        return in_16_bits(matrix, x)

    with monkeypatch.context() as patched:
        patched.setattr(QuantisedMatrix, "__call__", counting)
        backbone.hidden(backbone.embed(TOKENS))
    assert not [count for count in rows if count >= MANY], "every product of many rows is rounded"
    assert distance(logits(backbone), expected) < CLOSE[rounding] / 3
