"""The optimised forward equals transformers' own, and an optimised backbone refuses what it cannot do."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.description import unsupported_reason
from everlong_models.errors import BackboneError
from everlong_models.kernels import attention
from everlong_models.kernels.linear import has_bfloat16
from everlong_models.memories.rmt import RMT, RMTConfig
from tests.models import tiny_families
from tests.models.memory_contract import MemoryContract
from tests.models.tiny import gpt2, llama

SIZES = {name: size for name, size in tiny_families.SIZES.items() if name != "head_dim"}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
COMMON = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "no-groups": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 6})),
    "head-dim": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=16)),
    "llama3": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "full-mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}
MODELS = {
    kind: partial(tiny_families.model, kind) for kind in (*tiny_families.SWITCHES, *tiny_families.VARIANTS)
} | COMMON
TYPES = {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 1e-4, "atol": 1e-4}}


def build(name: str, dtype: torch.dtype) -> Backbone:
    """The same weights at every call, none of them trivial."""
    torch.manual_seed(0)
    model: PreTrainedModel = MODELS[name]()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.3)
    return Backbone(model.to(dtype).eval())


@pytest.fixture(params=TYPES, ids=lambda dtype: str(dtype)[6:])
def dtype(request):
    return request.param


@pytest.fixture(params=tiny_families.mark_rare_long(MODELS, common={*COMMON, "mistral", "gemma3_text"}))
def twins(request, dtype, monkeypatch):
    """The plain backbone, the optimized one and how close they are."""
    name = request.param
    naive, fast = build(name, dtype), build(name, dtype)
    assert fast.optimize() is None
    # transformers' norms, and the softmax of its own attention (Gemma 2), compute in float32 whatever the model's type, which would hide differences of 1e-8.
    norms = {type(module) for module in naive.model.modules() if "Norm" in type(module).__name__}
    assert len(norms) == 1
    norms -= {nn.LayerNorm}  # computes in the type of its input
    for norm in norms:
        monkeypatch.setattr(norm, "forward", exact_norm)
    softmax = F.softmax
    monkeypatch.setattr(F, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    with torch.no_grad():
        yield naive, fast, TYPES[dtype]


def exact_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """What `forward` of one of transformers' norms would compute in the type of `x`."""
    gemma = type(norm).__name__.startswith("Gemma")
    weight, eps = (1 + norm.weight, norm.eps) if gemma else (norm.weight, norm.variance_epsilon)
    return F.rms_norm(x, weight.shape, weight, eps)


def embeddings(backbone: Backbone, rows: int, length: int, seed: int = 1) -> torch.Tensor:
    """Random inputs (rows, length, D)."""
    torch.manual_seed(seed)
    return torch.randn(rows, length, backbone.width, dtype=backbone.dtype)


def shared(kv: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The heads of `kv` that `other` has, too: transformers copies the keys of Falcon to all heads."""
    return kv[:, :, :, :: kv.shape[3] // other.shape[3]]


def test_evicting_positions_equals_never_having_counted_them(twins):
    """A text computed from position 7 on, with seven positions removed before it, equals the text from position 0 on.

    The positions before and after it do not change.
    """
    naive, fast, _ = twins
    if not naive.can_evict:
        # Frequencies that depend on the length, or learned positions.
        assert naive.model.config.model_type in ("phi3", "gpt2")
        return
    x = embeddings(naive, 1, 20)
    late = DynamicCache()
    naive.model.base_model(inputs_embeds=x, position_ids=torch.arange(7, 27)[None], past_key_values=late)
    kv, untouched = naive.new_kv(1, 40), torch.randn(1, 40, 1, dtype=x.dtype)
    kv[:] = untouched
    for index, layer in enumerate(late.layers):
        kv[:, index, 0, :, 9:29], kv[:, index, 1, :, 9:29] = layer.keys, layer.values
    early = naive.new_kv(1, 20)
    naive.hidden(x, kv=early)
    for backbone in (naive, fast):
        slid = kv.clone()
        backbone.evict(slid, 2, 7, 29)
        # transformers computes angles in float32 whatever the model's type.
        torch.testing.assert_close(
            slid[..., 2:22, :], early, rtol=1e-5, atol=1e-4 if x.dtype == torch.float32 else 1e-5
        )
        assert torch.equal(slid[..., :2, :], kv[..., :2, :])
        assert not slid[..., 22:29, :].any()
        assert torch.equal(slid[..., 29:, :], kv[..., 29:, :])


# 1 block of queries, exactly 2, and 3 uneven ones.
@pytest.mark.parametrize("length", [1, 20, 2 * attention.BLOCK, 2 * attention.BLOCK + 13])
def test_reading(twins, length):
    naive, fast, close = twins
    x = embeddings(naive, 2, length)
    expected = naive.hidden(x)
    torch.testing.assert_close(fast.hidden(x), expected, **close)
    torch.testing.assert_close(fast.logits(expected), naive.logits(expected), **close)


@pytest.mark.parametrize("keep", [1, 5, attention.BLOCK + 9])
def test_keeping_the_last_positions(twins, keep):
    naive, fast, close = twins
    x = embeddings(naive, 2, attention.BLOCK + 9)
    kept = fast.hidden(x, keep=keep)
    assert kept.shape == (2, keep, naive.width)
    torch.testing.assert_close(kept, naive.hidden(x, keep=keep), **close)


def test_prefilling_and_continuing_at_each_rows_own_position(twins):
    naive, fast, close = twins
    caches = [backbone.new_kv(3, 40) for backbone in (naive, fast)]
    prompt = embeddings(naive, 3, 20)
    results = [b.hidden(prompt, kv=kv, keep=2) for b, kv in zip((naive, fast), caches, strict=True)]
    torch.testing.assert_close(results[1], results[0], **close)
    torch.testing.assert_close(caches[1], shared(*caches), **close)
    assert caches[1][..., :20, :].abs().min() > 0
    for at, count, keep in (([20, 7, 13], 1, None), ([21, 8, 14], 5, None), ([26, 13, 35], 5, 2), ([31, 3, 39], 1, 1)):
        x, where = embeddings(naive, 3, count, seed=at[0]), torch.tensor(at)
        # Each row alone: transformers chooses Phi 3's frequencies by the longest row.
        rows = [slice(n, n + 1) for n in range(3)]
        expected = [naive.hidden(x[row], kv=caches[0][row], at=where[row], keep=keep) for row in rows]
        found = fast.hidden(x, kv=caches[1], at=where, keep=keep)
        torch.testing.assert_close(found, torch.cat(expected), **close)
        torch.testing.assert_close(caches[1], shared(*caches), **close)


@pytest.mark.parametrize("keep", [None, 1, attention.SHORT + 9])
@pytest.mark.long
def test_a_long_pass_continues_where_all_rows_are(twins, keep):
    """Without a mask: also one block of queries and a bit."""
    naive, fast, close = twins
    for count in (attention.SHORT + 9, attention.BLOCK + 7):
        caches = [backbone.new_kv(2, 20 + count + 5) for backbone in (naive, fast)]
        results = []
        for backbone, kv in zip((naive, fast), caches, strict=True):
            backbone.hidden(embeddings(naive, 2, 20), kv=kv)
            at, x = torch.tensor([20, 20]), embeddings(naive, 2, count, seed=1)
            results.append(backbone.hidden(x, kv=kv, at=at, keep=keep))
        torch.testing.assert_close(results[1], results[0], **close)
        torch.testing.assert_close(caches[1], shared(*caches), **close)


@pytest.mark.skipif(not has_bfloat16(), reason="this processor has no instructions for bfloat16")
def test_bfloat16():
    """Near transformers' forward, and a row is as it is alone, to the bit."""
    naive, fast = build("biases", torch.float32), build("biases", torch.float32)
    assert fast.optimize(bfloat16=True) is None
    x = embeddings(naive, 3, 100)
    with torch.no_grad():
        expected, found = naive.hidden(x), fast.hidden(x)
        error = (found - expected).norm() / expected.norm()
        assert 1e-4 < error < 0.03
        kv = fast.new_kv(3, 120)
        assert torch.equal(fast.hidden(x, kv=kv), found)
        assert kv.dtype == torch.float32
        for row in range(3):
            assert torch.equal(fast.hidden(x[row : row + 1]), found[row : row + 1])


def test_inputs_are_not_changed(twins):
    _, fast, _ = twins
    x = embeddings(fast, 2, 20)
    before = x.clone()
    fast.hidden(x)
    fast.hidden(x[:, :2], kv=fast.new_kv(2, 30), at=torch.tensor([3, 4]))
    assert torch.equal(x, before)


class TestLaws(MemoryContract):
    autocast = False

    @pytest.fixture
    def model(self):
        backbone = llama()
        assert backbone.optimize() is None
        return RMT(RMTConfig(segment_length=12, memory_tokens=3), backbone)

    def moved(self, model, device):
        """Built again: weights that have been taken over stay where they are."""
        twin = RMT(model.config, llama()).to(device)
        assert twin.backbone.optimize() is None
        return twin


def unlike(change: dict[str, object]) -> Backbone:
    """A Llama whose configuration says something else."""
    return Backbone(LlamaForCausalLM(LlamaConfig(**SIZES | change)).eval())


def with_adapter() -> Backbone:
    """A Llama with a matrix that is more than a matrix."""

    class Linear(nn.Linear):
        pass

    backbone = llama()
    backbone.model.model.layers[1].mlp.up_proj = Linear(48, 64, bias=False, dtype=backbone.dtype)
    return backbone


@pytest.mark.parametrize(
    ("backbone", "reason"),
    [
        (lambda: Backbone(tiny_families.model("gemma").eval()), "architecture 'gemma'"),
        (lambda: gpt2(activation_function="relu"), "activation 'relu'"),
        (lambda: gpt2(scale_attn_by_inverse_layer_idx=True), "attention that is scaled by the layer's index"),
        (lambda: unlike({"hidden_act": "gelu"}), "activation 'gelu'"),
        (lambda: unlike({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}), "dynamic"),
        (with_adapter, "matrices of type .*Linear"),
    ],
    ids=["architecture", "gpt2-activation", "layer-index", "activation", "rope", "adapter"],
)
def test_an_unsupported_model_is_left_unchanged(backbone, reason):
    backbone = backbone()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    assert re.search(reason, backbone.optimize())
    assert backbone.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    x = torch.randn(1, 3, backbone.width, dtype=backbone.dtype, requires_grad=True)
    backbone.hidden(x).sum().backward()
    assert x.grad is not None


def test_falcon_with_alibi_is_refused():
    """Already when it is loaded: transformers' layers take no keys and values with it."""
    model = tiny_families.model("falcon", alibi=True).eval()
    assert "ALiBi" in str(unsupported_reason(model))
    with pytest.raises(BackboneError, match="do not take keys and values"):
        Backbone(model)


class Packed(nn.Module):
    """Stands for a quantised matrix of another package: it has no weight of the usual form."""


@pytest.mark.parametrize(
    ("family", "matrix"),
    [("llama", "self_attn.q_proj"), ("gpt2", "attn.c_attn"), ("gpt_neox", "attention.query_key_value"), ("falcon", "mlp.dense_h_to_4h")],
)  # fmt: skip
def test_matrices_of_another_package_are_left_to_it(family, matrix):
    model = tiny_families.model(family).eval()
    layers = model.base_model.layers if hasattr(model.base_model, "layers") else model.base_model.h
    layers[0].set_submodule(matrix, Packed())
    assert "matrices of type" in str(unsupported_reason(model))
    assert "Packed" in str(unsupported_reason(model))


def test_guesses_are_verified_only_where_steps_at_once_are_single_steps():
    """Phi 3 chooses the frequencies of all positions by the last one; LLM.int8() chooses columns by all rows."""
    llama, phi3 = build("llama", torch.float32), build("phi3", torch.float32)
    assert llama.can_verify_guesses
    assert not phi3.can_verify_guesses
    phi3.optimize(quantize=True)
    assert phi3.can_verify_guesses == (phi3._optimised.decoding is not None)
    llama.model.config.quantization_config = {"load_in_8bit": True}
    assert not llama.can_verify_guesses


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "falcon"])
def test_an_optimized_backbone_holds_no_weight_twice(family):
    backbone = build(family, torch.float32)
    backbone.optimize()
    kept = [r"\bnorm|layernorm|layer_norm|\bln_", "embed", r"\bw[tp]e\b", r"\.bias$"]
    left = {name for name, parameter in backbone.model.named_parameters() if parameter.device.type != "meta"}
    assert all(re.search("|".join(kept), name) for name in left), left
    assert backbone.device.type == "cpu"


def test_an_optimized_backbone_refuses_to_train_to_save_and_to_load():
    backbone, weights = llama(), llama().state_dict()
    backbone.load_state_dict(weights)
    backbone.optimize()
    assert backbone.optimize() is None
    x = torch.randn(1, 3, 48, dtype=torch.float64, requires_grad=True)
    with pytest.raises(BackboneError, match="no gradients"):
        backbone.hidden(x)
    with torch.no_grad():
        backbone.hidden(x)
    with pytest.raises(BackboneError, match="no weights to save"):
        backbone.model.save_pretrained("/nowhere")
    model = RMT(RMTConfig(segment_length=8, memory_tokens=2), backbone)
    with pytest.raises(BackboneError, match="no weights to save"):
        model.state_dict()
    with pytest.raises(BackboneError, match="takes no weights"):
        backbone.load_state_dict(weights)
    model.load_state_dict({"memory": torch.zeros(2, 48)}, strict=False)
    assert not model.memory.any()
