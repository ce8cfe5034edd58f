"""`QuantisedMatrix` against float: four bits are exact where they are used, eight are close, and rows are independent."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from numba import cfunc
from torch import nn
from torch.nn import functional as F

from everlong_models.backbone.backbone import Backbone
from everlong_models.kernels.cpu import matrix_product, thread_pool
from everlong_models.kernels.cpu.quantised_matrix import GROUP, QuantisedMatrix, can_quantise
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.weights import Manifest, load_weights, save_weights
from tests.models import tiny_families
from tests.models.q4_weights import q4_weights

pytestmark = pytest.mark.skipif(not can_quantise(torch.zeros(16, GROUP)), reason="this processor would be slow at it")


def test_one_input_by_itself():
    weight, x = q4_weights(47, 96), torch.randn(96)
    assert torch.equal(QuantisedMatrix(weight)(x), QuantisedMatrix(weight)(x[None])[0])


@pytest.mark.parametrize(("bits", "error"), [(4, 4e-5), (8, 6e-3)])
@pytest.mark.parametrize("columns", [96, 1536])
@pytest.mark.parametrize("biased", [True, False])
def test_the_formula(columns, bits, error, biased):
    weight = q4_weights(47, columns) if bits == 4 else torch.randn(47, columns)
    bias = torch.randn(47) if biased else None
    x = torch.randn(2, 3, columns)
    layer, y = QuantisedMatrix(weight, bias), F.linear(x, weight, bias)
    assert layer.bits == bits
    assert layer(x).dtype == torch.float32
    assert layer(x).shape == y.shape
    assert float((layer(x) - y).norm() / y.norm()) < error


@pytest.mark.parametrize("columns", [96, 1536])
def test_activations_of_sixteen_bits_lose_nothing(columns):
    """Integers that use the full scale of each group are exact, up to the rounding of float32."""
    x = torch.randint(-32767, 32768, (5, columns)).float()
    x[:, ::GROUP] = 32767
    x[0] /= 1024
    x[1, GROUP:] = 0
    weight = q4_weights(47, columns)
    exact = x.double() @ weight.double().T
    assert float((QuantisedMatrix(weight)(x) - exact).abs().max() / exact.abs().max()) < 1e-6
    groups = (
        x.unflatten(1, (-1, GROUP)) * torch.logspace(-20, 8, columns // GROUP)[:, None]
    )  # each has a scale of its own
    exact = groups.flatten(1).double() @ weight.double().T
    assert float(((QuantisedMatrix(weight)(groups.flatten(1)) - exact) / exact).abs().max()) < 1e-4


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("weight", [q4_weights(48, 96), torch.randn(48, 96), torch.zeros(48, 96)])
def test_nan_stays_nan(number, weight):
    """And other rows do not change; magnitudes too small for a scale become 0."""
    x = torch.randn(3, 96)
    expected = QuantisedMatrix(weight)(x[2:])
    x[0, 37], x[1] = number, 1e-33 * x[1]
    found = QuantisedMatrix(weight)(x)
    assert not found[0].isfinite().any()
    assert found[1].abs().max() < 1e-30
    assert torch.equal(found[2:], expected)


def test_four_bits_are_taken_only_where_they_lose_nothing():
    weight = q4_weights(16, 64)
    assert QuantisedMatrix(weight).bits == 4
    weight[5, 7] += 0.2 * weight.unflatten(1, (-1, GROUP)).diff(dim=-1).abs().max() / 15
    assert QuantisedMatrix(weight).bits == 8
    assert QuantisedMatrix(torch.ones(16, 64)).bits == 4, "a group without a step"
    for row in (0, 15, 300):
        weight = q4_weights(301, 64)
        weight[row, 9] = torch.nan
        assert QuantisedMatrix(weight).bits == 8


def test_a_low_rank_update_stays_separate_from_four_bits():
    weight, bias, (a, b) = q4_weights(48, 96), torch.randn(48), (torch.randn(8, 96), torch.randn(48, 8) / 30)
    x = torch.randn(2, 3, 96)
    layer, plain, y = (
        QuantisedMatrix(weight, bias, (a, b)),
        QuantisedMatrix(weight, bias),
        F.linear(x, weight + b @ a, bias),
    )
    assert layer.bits == 4
    assert QuantisedMatrix(weight + b @ a).bits == 8
    assert float((y - F.linear(x, weight, bias)).norm() / y.norm()) > 0.3
    torch.testing.assert_close(layer(x) - plain(x), x @ (b @ a).T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer(x), y, rtol=1e-4, atol=1e-4)


def test_a_group_of_one_value_and_zeros():
    x = torch.randn(2, 64)
    for weight in (torch.full((16, 64), 0.375), torch.zeros(16, 64)):
        torch.testing.assert_close(QuantisedMatrix(weight)(x), x @ weight.T, rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours():
    torch.manual_seed(1)
    wide = QuantisedMatrix(q4_weights(160, 1536), None, (torch.randn(24, 1536), torch.randn(160, 24)))
    for layer, columns in (
        (QuantisedMatrix(q4_weights(160, 96)), 96),
        (QuantisedMatrix(torch.randn(160, 96)), 96),
        (wide, 1536),
    ):
        x = torch.randn(33, columns)
        y = layer(x)
        for rows in (1, 2, 7, 32):
            assert torch.equal(layer(x[:rows]), y[:rows])
            assert torch.equal(layer(x[-rows:]), y[-rows:])


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(16, 63),
        torch.zeros(16, 64, dtype=torch.float64),
        torch.zeros(16, 64, device="meta"),
        torch.randn(16, 64) * 1e-5,
        torch.randn(16, 64) * 1e5,
        torch.full((16, 64), torch.nan),
    ],
    ids=["columns", "type", "device", "small", "large", "no number"],
)
def test_matrices_that_cannot_be_quantised(weight):
    assert not can_quantise(weight)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("least", [1.0, 1e-2])
def test_extreme_scales_are_multiplied_accurately(size, least):
    """Scales have 16 bits, for groups of small weights, too."""
    torch.manual_seed(4)
    weight, x = torch.randn(32, 64) * size, torch.randn(5, 64)
    weight[:, 32:] *= least
    exact = x.double() @ weight.double().T
    assert can_quantise(weight)
    assert float((QuantisedMatrix(weight)(x) - exact).norm() / exact.norm()) < 0.012


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


@torch.no_grad()
def test_a_backbone_with_adapters_keeps_its_four_bits(tmp_path):
    def adapted() -> Backbone:
        backbone = build()
        backbone.requires_grad_(False)
        layers = dict(backbone.model.named_modules())
        for layer in layers.values():
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(q4_weights(*layer.weight.shape))
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
    assert {matrix.bits for layer in quantized._optimised.decoding.layers for matrix in layer.values()} == {4}
    kv, x, at = torch.randn(2, 3, 2, 2, 40, 16).half(), torch.randn(2, 1, 64), torch.tensor([20, 11])
    expected, found = exact.hidden(x, kv=kv.float(), at=at), quantized.hidden(x, kv=kv, at=at)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)  # the rounding to 16 bits


def decoded(backbone: Backbone, rows: int, context: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inputs of a decode step: `x`, `kv`, `at`."""
    torch.manual_seed(3)
    x, kv = torch.randn(rows, 1, backbone.width), backbone.new_kv(rows, context).normal_()
    return x, kv, torch.randint(context, (rows,))


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 7, 32])
def test_a_decoded_row_does_not_depend_on_its_neighbours(rows):
    backbone = build()
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


@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("family", sorted(tiny_families.SWITCHES.keys() - {"llama", "qwen3"}))
def test_a_step_of_every_family_is_that_of_the_float_matrices(family, threads):
    """With their windows, norms, factors and rotations; two heads a group."""
    compare_steps(family, 32, 4, 128, threads)


def compare_steps(family: str, head_dim: int, heads: int, width: int, threads: int) -> None:
    exact, quantized = (build(width, head_dim, heads, family) for _ in range(2))
    for backbone in (exact, quantized):
        for module in backbone.model.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(q4_weights(*module.weight.shape, 0.25))
        assert backbone.optimize(quantize=backbone is quantized) is None
    assert quantized._optimised.decoding is not None
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
def test_a_step_is_the_same_with_any_number_of_threads(monkeypatch):
    """One thread, several, more than cores, and without OpenMP."""
    backbone = build()
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


def test_a_product_with_another_type_or_width():
    layer = QuantisedMatrix(q4_weights(48, 96))
    for x in (torch.zeros(2, 96, dtype=torch.float64), torch.zeros(2, 64)):
        with pytest.raises(ValueError, match="x must be float32"):
            layer(x)


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


COMPILED = """
import torch
from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.prefill import Epilogue
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix, can_quantise
torch.manual_seed(0)
weight, x = torch.randn(48, 96), torch.randn(7, 96)
print(thread_pool.linear(x, thread_pool.pack_panels(weight), None, Epilogue.SILU, None).double().sum().item())
print(QuantisedMatrix(weight)(x).double().sum().item() if can_quantise(weight) else "does not fit")
"""


@pytest.mark.long
def test_stored_machine_code_is_reused_and_damaged_files_are_replaced(tmp_path):
    def compute() -> str:
        run = [sys.executable, "-c", COMPILED]
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        return subprocess.run(run, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout

    def stored_files() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")}

    first, files = compute(), stored_files()
    assert {file.suffix for file in files} == {".nbi", ".nbc"}
    assert compute() == first
    assert stored_files() == files
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    assert compute() == first


@pytest.mark.long
@pytest.mark.parametrize("processor", ["ivybridge", "generic"])
def test_a_processor_with_fewer_instructions_computes_the_same_or_is_not_supported(tmp_path, processor):
    """What numba compiles for may lack instructions that this processor has: naming one would end the process. The first knows no
    products of whole numbers in vectors, the second no numbers of 16 bits either."""
    run = [sys.executable, "-c", COMPILED]
    found = [
        subprocess.run(
            run, env=os.environ | more, check=True, capture_output=True, text=True, timeout=120
        ).stdout.split("\n")
        for more in ({}, {"NUMBA_CPU_NAME": processor, "NUMBA_CACHE_DIR": str(tmp_path)})
    ]
    (first, product, _), (second, other, _) = found
    assert float(first) == pytest.approx(float(second), rel=1e-6)
    assert other == (product if processor == "ivybridge" else "does not fit")


def test_stored_code_is_of_one_version_and_one_processor(monkeypatch):
    names: list[str] = []
    monkeypatch.setattr(
        thread_pool, "cfunc", lambda *args, **options: lambda function: names.append(function.__qualname__)
    )
    monkeypatch.setattr(matrix_product.multiply, "__qualname__", "multiply")  # restored at the end

    def name() -> str:
        thread_pool.compiled.__wrapped__(matrix_product.multiply)
        return names.pop()

    usual = name()
    assert name() == usual
    for where, what, value in (
        (thread_pool.numba, "__version__", "0.0.1"),
        (thread_pool.llvm, "get_host_cpu_name", lambda: "another"),
        (thread_pool.inspect, "getsource", lambda module: f"other {module.__name__}"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(where, what, value)
            assert name() != usual


@pytest.mark.long
def test_without_a_writable_folder_each_process_compiles(monkeypatch):
    """Compiled code is kept in the process's memory."""

    def refuse(*args, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return cfunc(*args, **options)

    monkeypatch.setattr(thread_pool, "cfunc", refuse)
    monkeypatch.setattr(thread_pool, "compiled", lru_cache(thread_pool.compiled.__wrapped__))
    layer, x = QuantisedMatrix(q4_weights(48, 96)), torch.randn(5, 96)
    torch.testing.assert_close(layer(x), x @ q4_weights(48, 96).T, rtol=1e-3, atol=2e-4)


@torch.no_grad()
def test_matrices_that_cannot_be_quantised_stay_float():
    exact, same = build(72, 18), build(72, 18)
    exact.optimize()
    same.optimize(quantize=True)
    x, kv, at = torch.randn(1, 1, 72), torch.zeros(1, 3, 2, 2, 8, 18), torch.tensor([2])
    assert torch.equal(same.hidden(x, kv=kv.clone(), at=at), exact.hidden(x, kv=kv.clone(), at=at))


def test_rows_that_are_not_contiguous():
    layer, x = QuantisedMatrix(q4_weights(48, 96)), torch.randn(5, 3, 96)
    assert torch.equal(layer(x[:, -1]), layer(x[:, -1].contiguous()))
