"""`Quantized` against float: what four bits keep, what eight cost, rows that do not see each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from everlong_models.backbone import Backbone
from everlong_models.quantized import GROUP, Quantized, fits
from everlong_models.rmt import RMT, RMTConfig
from everlong_models.weights import Manifest, load_weights, save_weights

pytestmark = pytest.mark.skipif(not fits(torch.zeros(16, GROUP)), reason="this processor has no kernel for four bits")


def stored(rows: int, columns: int) -> torch.Tensor:
    """Weights as llama.cpp's Q4_1 restores them: 16 steps of d from m, both of half precision, in groups of 32."""
    torch.manual_seed(0)
    q = torch.randint(0, 16, (rows, columns // GROUP, GROUP)).float()
    q[..., 3], q[..., 30] = 0, 15
    d, m = (torch.rand(rows, columns // GROUP, 1) * scale for scale in (0.02, -0.15))
    return (q * d.half().float() + m.half().float()).flatten(1)


@pytest.mark.parametrize(("columns", "bits", "error"), [(96, 4, 6e-3), (96, 8, 8e-3), (1536, 4, 6e-3), (1536, 8, 8e-3)])
@pytest.mark.parametrize("biased", [True, False])
def test_the_formula(columns, bits, error, biased):
    weight = stored(48, columns) if bits == 4 else torch.randn(48, columns)
    bias = torch.randn(48) if biased else None
    x, other = torch.randn(2, 3, columns), torch.randn(2, 3, 48)
    layer, y = Quantized(weight, bias), F.linear(x, weight, bias)
    assert layer.bits == bits

    def off(found, expected):
        return float((found - expected).square().mean().sqrt() / y.square().mean().sqrt())

    assert layer(x).dtype == torch.float32
    assert layer(x).shape == y.shape
    # bfloat16 has 8 bits: a rounding is off by 2^-9 at most, and there are those of x, of d and c, and of the result.
    assert off(layer(x), y) < error
    assert off(layer(x, silu=True), F.silu(y)) < error
    assert off(layer(x, plus=other), y + other) < error
    assert off(layer(x, times=other), y * other) < 2 * error


def test_four_bits_are_taken_only_where_they_lose_nothing():
    weight = stored(16, 64)
    assert Quantized(weight).bits == 4
    assert Quantized(weight / 8).bits == 4, "the attention's scale"
    weight[5, 7] += 0.2 * weight.unflatten(1, (-1, GROUP)).diff(dim=-1).abs().max() / 15
    assert Quantized(weight).bits == 8
    assert Quantized(torch.ones(16, 64)).bits == 4, "a group without a step"


def test_an_update_stays_beside_four_bits():
    weight, bias, (a, b) = stored(48, 96), torch.randn(48), (torch.randn(8, 96), torch.randn(48, 8) / 30)
    x, other = torch.randn(2, 3, 96), torch.randn(2, 3, 48)
    layer, plain, y = Quantized(weight, bias, (a, b)), Quantized(weight, bias), F.linear(x, weight + b @ a, bias)
    assert layer.bits == 4
    assert Quantized(weight + b @ a).bits == 8
    assert float((y - F.linear(x, weight, bias)).norm() / y.norm()) > 0.3
    torch.testing.assert_close(layer(x) - plain(x), x @ (b @ a).T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer(x, silu=True), F.silu(layer(x)))
    torch.testing.assert_close(layer(x, plus=other), layer(x) + other)
    torch.testing.assert_close(layer(x, times=other), layer(x) * other)


def test_a_group_of_one_value_and_zeros():
    x = torch.randn(2, 64)
    for weight in (torch.full((16, 64), 0.375), torch.zeros(16, 64)):
        torch.testing.assert_close(Quantized(weight)(x), x @ weight.T, rtol=2e-2, atol=2e-2)


def test_a_row_does_not_depend_on_its_neighbours():
    torch.manual_seed(1)
    wide = Quantized(stored(160, 1536), None, (torch.randn(24, 1536), torch.randn(160, 24)))
    for layer, columns in ((Quantized(stored(160, 96)), 96), (Quantized(torch.randn(160, 96)), 96), (wide, 1536)):
        x = torch.randn(33, columns)
        y = layer(x)
        for rows in (1, 2, 7, 32):
            assert torch.equal(layer(x[:rows]), y[:rows])
            assert torch.equal(layer(x[-rows:]), y[-rows:])


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(15, 64),
        torch.zeros(16, 63),
        torch.zeros(16, 64, dtype=torch.float64),
        torch.zeros(16, 64, device="meta"),
    ],
    ids=["rows", "columns", "type", "device"],
)
def test_what_does_not_fit(weight):
    assert not fits(weight)


def build(hidden: int = 64) -> Backbone:
    torch.manual_seed(2)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=hidden, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, attention_bias=True, mlp_bias=True,
        )
    )  # fmt: skip
    for parameter in model.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
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
    assert torch.equal(other, kv)
    assert torch.equal(quantized.logits(h), exact.logits(h))
    at = torch.tensor([20, 11])
    expected, found = (b.hidden(x, kv=c.clone(), at=at) for b, c in ((exact, kv), (quantized, kv)))
    assert not torch.equal(found, expected)
    assert float((found - expected).norm() / expected.norm()) < 0.03
    scores, near = exact.logits(expected[:, 0]), quantized.logits(expected[:, 0])
    assert not torch.equal(near, scores)
    assert float((near - scores).norm() / scores.norm()) < 0.01
    several = torch.randn(2, 3, 64)
    assert torch.equal(quantized.hidden(several, kv=kv.clone(), at=at), exact.hidden(several, kv=kv.clone(), at=at))


@torch.no_grad()
def test_a_backbone_with_adapters_keeps_its_four_bits(tmp_path):
    def adapted() -> Backbone:
        backbone = build()
        backbone.requires_grad_(False)
        layers = dict(backbone.model.named_modules())
        for layer in layers.values():
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(stored(*layer.weight.shape))
        torch.manual_seed(2)
        lora = {}
        for name in (
            "0.self_attn.q_proj",
            "1.self_attn.v_proj",
            "1.self_attn.o_proj",
            "2.mlp.gate_proj",
            "2.mlp.down_proj",
        ):
            out, into = layers[f"model.layers.{name}"].weight.shape
            lora |= {
                f"lora.model.layers.{name}.A": torch.randn(4, into) / 8,
                f"lora.model.layers.{name}.B": torch.randn(out, 4) / 8,
            }
        memory = RMT(RMTConfig(segment_length=8, memory_tokens=2), backbone)
        save_weights(tmp_path, Manifest(memory={}), memory, lora)
        assert load_weights(tmp_path, memory, backbone, 0.5)
        return backbone

    exact, quantized = adapted(), adapted()
    exact.optimize()
    quantized.optimize(quantize=True)
    decoding = quantized._lean._decoding
    assert {matrix.bits for layer in decoding for matrix in (layer.qkv, layer.o, layer.gate, layer.up, layer.down)} == {
        4
    }
    kv, x, at = torch.randn(2, 3, 2, 2, 40, 16), torch.randn(2, 1, 64), torch.tensor([20, 11])
    expected, found = (b.hidden(x, kv=kv.clone(), at=at) for b in (exact, quantized))
    assert float((found - expected).norm() / expected.norm()) < 0.03


@torch.no_grad()
def test_a_decoded_row_does_not_depend_on_its_neighbours():
    backbone = build()
    backbone.optimize(quantize=True)
    kv, x, at = torch.randn(7, 3, 2, 2, 40, 16), torch.randn(7, 1, 64), torch.tensor([20, 3, 39, 20, 0, 11, 25])
    together = backbone.hidden(x, kv=kv.clone(), at=at)
    for row in range(7):
        alone = backbone.hidden(x[row : row + 1], kv=kv[row : row + 1].clone(), at=at[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_matrices_that_do_not_fit_stay_float():
    exact, same = build(72), build(72)
    exact.optimize()
    same.optimize(quantize=True)
    x, kv, at = torch.randn(1, 1, 72), torch.zeros(1, 3, 2, 2, 8, 18), torch.tensor([2])
    assert torch.equal(same.hidden(x, kv=kv.clone(), at=at), exact.hidden(x, kv=kv.clone(), at=at))


def test_rows_that_do_not_lie_side_by_side():
    layer, x = Quantized(stored(48, 96)), torch.randn(5, 3, 96)
    assert torch.equal(layer(x[:, -1]), layer(x[:, -1].contiguous()))
