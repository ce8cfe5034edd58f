"""A backbone with quantised matrices decodes as with float ones: every family, any threads, rows that are independent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from everlong_models.backbone.backbone import Backbone
from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.quantised_matrix import GROUP, can_quantise
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.weights import Manifest, load_weights, save_weights
from tests.models import tiny_families
from tests.models.q4_weights import q4_weights

pytestmark = pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")


def build(hidden: int = 64, head_dim: int = 16, heads: int = 4, family: str = "llama") -> Backbone:
    torch.manual_seed(2)
    sizes = {
        "vocab_size": 96, "hidden_size": hidden, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": heads,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": head_dim, "attention_bias": True,
    }  # fmt: skip
    model = tiny_families.model(family, **sizes | ({"mlp_bias": True} if family == "llama" else {}))
    tiny_families.randomise(model, 0.2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(1)  # trained biases are large, such as those of Qwen2's queries and keys
    return Backbone(model.eval())


@torch.no_grad()
def test_a_backbone_decodes_with_it_and_reads_without():
    exact, quantized = build(), build()
    exact.optimize()
    assert quantized.optimize(quantize=True) is None
    kv = exact.new_kv(2, 40)
    prompt, x = torch.randn(2, 20, 64), torch.randn(2, 1, 64)
    h = exact.hidden(prompt, kv=kv)
    other = quantized.new_kv(2, 40)
    assert torch.equal(quantized.hidden(prompt, kv=other), h)
    assert torch.equal(other, kv.half()), "what is kept has sixteen bits"
    assert torch.equal(quantized.logits(h), exact.logits(h))
    at = torch.tensor([20, 11])
    kv = other.float()
    expected, found = exact.hidden(x, kv=kv.clone(), at=at), quantized.hidden(x, kv=other.clone(), at=at)
    assert not torch.equal(found, expected)
    assert float((found - expected).norm() / expected.norm()) < 0.03
    scores, near = exact.logits(expected[:, 0]), quantized.logits(expected[:, 0])
    assert not torch.equal(near, scores)
    assert float((near - scores).norm() / scores.norm()) < 0.01
    several = torch.randn(2, 3, 64)
    expected, found = exact.hidden(several, kv=kv, at=at), quantized.hidden(several, kv=other, at=at)
    assert float((found - expected).norm() / expected.norm()) < 1e-3, (
        "of three positions each sees the others' sixteen bits"
    )
    torch.testing.assert_close(other.float(), kv, rtol=2e-3, atol=1e-3)


LAYERS = {
    "llama": (
        "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.o_proj",
        "model.layers.2.mlp.gate_proj", "model.layers.2.mlp.down_proj",
    ),
    "gpt2": ("transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_proj", "transformer.h.1.mlp.c_fc", "transformer.h.2.mlp.c_proj"),
    "gpt_neox": (
        "gpt_neox.layers.0.attention.query_key_value", "gpt_neox.layers.1.attention.dense", "gpt_neox.layers.1.mlp.dense_h_to_4h",
        "gpt_neox.layers.2.mlp.dense_4h_to_h",
    ),
    "falcon": (
        "transformer.h.0.self_attention.query_key_value", "transformer.h.1.self_attention.dense", "transformer.h.1.mlp.dense_h_to_4h",
        "transformer.h.2.mlp.dense_4h_to_h",
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("family", LAYERS)
@pytest.mark.long
def test_a_backbone_with_adapters_keeps_its_four_bits(family, tmp_path):
    def adapted() -> Backbone:
        backbone = build(family=family)
        backbone.requires_grad_(False)
        use_four_bits(backbone)
        layers = dict(backbone.model.named_modules())
        torch.manual_seed(2)
        lora = {}
        for name in LAYERS[family]:
            weight = layers[name].weight
            out, into = weight.t().shape if family == "gpt2" else weight.shape
            lora |= {
                f"lora.{name}.A": torch.randn(4, into) / 8,
                f"lora.{name}.B": torch.randn(out, 4) / 8,
            }
        memory = RMT(RMTConfig(segment_length=8, memory_tokens=2), backbone)
        save_weights(tmp_path, Manifest(memory={}), memory, lora)
        assert load_weights(tmp_path, memory, backbone, 0.5)
        return backbone

    exact, quantized = adapted(), adapted()
    exact.optimize()
    quantized.optimize(quantize=True)
    assert {matrix.bits for layer in quantized._optimised.decoding.layers for matrix in layer.values()} == {4}
    x, at = torch.randn(2, 1, 64), torch.tensor([20, 11])
    kv = quantized.new_kv(2, 40).normal_()
    expected, found = exact.hidden(x, kv=kv.float(), at=at), quantized.hidden(x, kv=kv, at=at)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)  # the rounding to 16 bits


def use_four_bits(backbone: Backbone, size: float = 1.0) -> None:
    """Replace all matrices by such that four bits hold."""
    for module in backbone.model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(q4_weights(*module.weight.shape, size))
        if isinstance(module, Conv1D):
            module.weight.copy_(q4_weights(*module.weight.t().shape, size).t())


def decoded(backbone: Backbone, rows: int, context: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inputs of a decode step: `x`, `kv`, `at`."""
    torch.manual_seed(3)
    x, kv = torch.randn(rows, 1, backbone.width), backbone.new_kv(rows, context).normal_()
    return x, kv, torch.randint(context, (rows,))


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 7, 32])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2", "gpt_neox", "falcon"])
@pytest.mark.long
def test_a_decoded_row_does_not_depend_on_its_neighbours(rows, family):
    backbone = build(family=family)
    backbone.optimize(quantize=True)
    x, kv, at = decoded(backbone, rows, 40)
    together, stored = kv.clone(), kv.clone()
    hidden = backbone.hidden(x, kv=together, at=at)
    for row in range(rows):
        alone = backbone.hidden(x[row : row + 1], kv=stored[row : row + 1], at=at[row : row + 1])
        assert torch.equal(alone[0], hidden[row])
        assert torch.equal(stored[row], together[row])
        assert torch.equal(backbone.logits(alone[:, 0])[0], backbone.logits(hidden[:, 0])[row])


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize(
    ("head_dim", "heads", "width"), [(64, 4, 64), (80, 2, 64), (16, 6, 96), (112, 8, 64), (32, 14, 224)]
)
def test_a_step_is_that_of_the_float_matrices(head_dim, heads, width, threads, family):
    """Weights that four bits hold: what differs are the sixteen of activations. One to seven heads a group, together or each by
    itself; contexts of no token, and beyond what is computed at once."""
    compare_steps(family, head_dim, heads, width, threads)


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize(
    "family", [*sorted(tiny_families.SWITCHES.keys() - {"llama", "qwen3"}), *tiny_families.VARIANTS]
)
def test_a_step_of_every_family_is_that_of_the_float_matrices(family, threads):
    """With their windows, norms, factors and rotations; two heads a group."""
    compare_steps(family, 32, 4, 128, threads)


def compare_steps(family: str, head_dim: int, heads: int, width: int, threads: int) -> None:
    exact, quantized = (build(width, head_dim, heads, family) for _ in range(2))
    for backbone in (exact, quantized):
        use_four_bits(backbone, 0.25)
        for parameter in backbone.model.parameters():
            if parameter.dim() == 3:  # experts, each with other weights
                parameter.copy_(
                    torch.stack([q4_weights(*each.shape, 0.25).roll(n, 0) for n, each in enumerate(parameter)])
                )
        assert backbone.optimize(quantize=backbone is quantized) is None
    assert quantized._optimised.decoding is not None
    assert {matrix.bits for layer in quantized._optimised.decoding.layers for matrix in layer.values()} == {4}
    x, kv, _ = decoded(quantized, 5, 400)
    kv /= 4
    at, other, before = torch.tensor([0, 1, 6, 399, 203]), kv.clone().float(), torch.get_num_threads()
    expected = exact.hidden(x, kv=other, at=at)
    torch.set_num_threads(threads)
    try:
        found = quantized.hidden(x, kv=kv, at=at)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)
    torch.testing.assert_close(kv.float(), other, rtol=1e-3, atol=2e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", tiny_families.mark_rare_long(["llama", "qwen3_moe", "gpt2", "gpt_neox", "falcon"]))
def test_a_step_is_the_same_with_any_number_of_threads(monkeypatch, family):
    """One thread, several, more than cores, and without OpenMP."""
    backbone = build(family=family)
    backbone.optimize(quantize=True)
    x, kv, at = decoded(backbone, 3, 40)
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 5, 16):
            torch.set_num_threads(count)
            results.append(backbone.hidden(x, kv=kv.clone(), at=at))
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(thread_pool, "_POOLED", False)
    results.append(backbone.hidden(x, kv=kv.clone(), at=at))
    assert all(torch.equal(result, results[0]) for result in results)


@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("family", tiny_families.mark_rare_long(sorted(tiny_families.SWITCHES)))
def test_several_steps_at_once_are_single_steps_bit_for_bit(family, threads):
    """Each position sees the keys and values of those before it in the same pass, as they are stored."""
    backbone = build(128, 32, family=family)
    backbone.optimize(quantize=True)
    torch.manual_seed(3)
    x, kv, at = torch.randn(3, 5, 128), backbone.new_kv(3, 100).normal_(), torch.tensor([0, 95, 61])
    one_by_one, at_once, before = kv.clone(), kv.clone(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = torch.cat([backbone.hidden(x[:, n : n + 1], kv=one_by_one, at=at + n) for n in range(5)], dim=1)
        found = backbone.steps(x, at_once, at)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, expected)
    assert torch.equal(at_once, one_by_one)
    singly = torch.stack([backbone.logits(expected[:, n]) for n in range(5)], dim=1)
    assert torch.equal(backbone.logits(found.flatten(0, 1)).unflatten(0, (3, 5)), singly)


@torch.no_grad()
def test_a_cache_whose_rows_are_not_contiguous():
    backbone = build()
    backbone.optimize(quantize=True)
    x, kv, at = decoded(backbone, 2, 40)
    apart = kv.new_zeros(2, 3, 5, 2, 90, 16)[:, :, 1:4:2, :, 3:43]
    apart.copy_(kv)
    assert torch.equal(backbone.hidden(x, kv=apart, at=at), backbone.hidden(x, kv=kv, at=at))
    assert torch.equal(apart, kv)


@torch.no_grad()
@pytest.mark.parametrize("at", [-1, 40])
def test_a_position_outside_the_cache(at):
    backbone = build()
    backbone.optimize(quantize=True)
    x, kv, _ = decoded(backbone, 1, 40)
    with pytest.raises(IndexError, match=rf"from 0 to 39, got .*{at}"):
        backbone.hidden(x, kv=kv, at=torch.tensor([at]))
    with pytest.raises(IndexError, match=r"from 0 to 39, got .*40"):
        backbone.steps(x.repeat(1, 3, 1), kv, torch.tensor([38]))


@pytest.mark.long
@torch.no_grad()
def test_a_position_that_was_not_learned():
    backbone = build(family="gpt2")
    backbone.optimize(quantize=True)
    x, kv, _ = decoded(backbone, 1, 600)
    with pytest.raises(IndexError, match=r"from 0 to 511, got .*512"):
        backbone.hidden(x, kv=kv, at=torch.tensor([512]))


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", {"x": torch.zeros(2, 1, 64, dtype=torch.float64)}),
        ("x", {"x": torch.zeros(2, 1, 32)}),
        ("kv", {"kv": torch.zeros(2, 3, 2, 2, 40, 16, dtype=torch.bfloat16)}),
        ("kv", {"kv": torch.zeros(2, 3, 2, 2, 40, 16)}),
        ("kv", {"kv": torch.zeros(1, 3, 2, 2, 40, 16).half()}),
        ("kv", {"kv": torch.zeros(2, 2, 2, 2, 40, 16).half()}),
        ("kv", {"kv": torch.zeros(2, 3, 2, 2, 16, 40).half().transpose(4, 5)}),
        ("at", {"at": torch.zeros(1, dtype=torch.int64)}),
        ("at", {"at": torch.zeros(2, dtype=torch.int32)}),
        ("cos", {"cos": torch.ones(1, 39, 16)}),
        ("cos", {"cos": torch.ones(2, 41, 16)}),
        ("sin", {"sin": torch.ones(1, 41, 8)}),
        ("sin", {"sin": torch.ones(1, 40, 16)}),
        ("sin", {"sin": torch.ones(1, 41, 16, dtype=torch.float64)}),
    ],
)
def test_wrong_types_and_shapes_of_a_step_are_refused(name, change):
    """The kernel only receives addresses, so types and shapes are checked before."""
    backbone = build()
    backbone.optimize(quantize=True)
    decoding = backbone._optimised.decoding
    x, kv, at = decoded(backbone, 2, 40)
    given = {"x": x, "kv": kv, "at": at, "cos": torch.ones(1, 41, 16), "sin": torch.zeros(1, 41, 16)}
    assert decoding(**given).shape == (2, 1, 64)
    with pytest.raises(ValueError, match=name):
        decoding(**given | change)


@torch.no_grad()
def test_two_threads_step_at_once_whatever_type_others_compute_in():
    backbone = build()
    backbone.optimize(quantize=True)
    x, kv, at = decoded(backbone, 3, 40)
    expected = backbone.hidden(x, kv=kv.clone(), at=at)

    def often(_: int) -> bool:
        with torch.no_grad():
            return all(torch.equal(backbone.hidden(x, kv=kv.clone(), at=at), expected) for _ in range(50))

    torch.set_default_dtype(torch.float16)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert all(pool.map(often, range(2)))
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def test_nan_does_not_crash_the_process():
    """A row of zeros with ε = 0 divides by zero and gives NaN; other rows do not change."""
    backbone = build()
    backbone.model.config.rms_norm_eps = 0.0
    backbone.optimize(quantize=True)
    x, kv, at = decoded(backbone, 2, 40)
    alone = backbone.hidden(x[1:], kv=kv[1:].clone(), at=at[1:])
    x[0] = 0
    found = backbone.hidden(x, kv=kv, at=at)
    assert found[0].isnan().all()
    assert torch.equal(found[1:], alone)


@torch.no_grad()
def test_matrices_that_cannot_be_quantised_stay_float():
    exact, same = build(72, 18), build(72, 18)
    exact.optimize()
    same.optimize(quantize=True)
    x, kv, at = torch.randn(1, 1, 72), torch.zeros(1, 3, 2, 2, 8, 18), torch.tensor([2])
    assert torch.equal(same.hidden(x, kv=kv.clone(), at=at), exact.hidden(x, kv=kv.clone(), at=at))
