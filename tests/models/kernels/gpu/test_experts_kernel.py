"""A mixture of experts as a GPU computes it equals its formula, and transformers' forward. Without a GPU, Triton interprets the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.description import unsupported_reason
from everlong_models.kernels.experts import GroupedExperts, Router
from everlong_models.kernels.gpu import experts_kernel, layer_kernels
from everlong_models.kernels.linear import Activation
from tests.models import tiny_families
from tests.models.fake_gpu import REAL
from tests.models.kernels.gpu.test_layer_kernels import compiled_by
from tests.models.kernels.test_experts import INNER, WIDTH, expected, matrices

pytestmark = pytest.mark.long

tl = pytest.importorskip("triton.language")
interpreter = pytest.importorskip("triton.runtime.interpreter")
WHERE = "cuda" if REAL else "cpu"


@pytest.fixture(params=[1000, 1], ids=["small tiles", "large tiles"])
def tiles(request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_kernel, "MANY", request.param)


def products(rows: int, sizes: tuple[int, int, int, int], dtype: torch.dtype, *, one: bool = False):
    """Return the product that the kernel computes, and the exact one. `one`: all rows choose the same experts."""
    experts, chosen, width, depth = sizes
    made = torch.Generator().manual_seed(rows)
    x, weights = (torch.randn(*size, generator=made).to(dtype) for size in ((rows, depth), (experts, width, depth)))
    numbers = torch.rand(1 if one else rows, experts, generator=made).argsort(1)[:, :chosen].expand(rows, -1).flatten()
    found, pairs = numbers.sort()
    ends = torch.searchsorted(found, torch.arange(experts), right=True)
    given = (tensor.to(WHERE) for tensor in (x, weights, pairs, ends))
    exact = torch.einsum("pnk,pk->pn", weights.double()[numbers], x.double().repeat_interleave(chosen, 0))
    return experts_kernel.multiply(*given).cpu(), exact


@pytest.mark.parametrize(
    ("rows", "sizes", "one"),
    [(1, (4, 2, 40, 48), False), (7, (5, 3, 130, 70), False), (90, (6, 2, 65, 33), False), (70, (3, 1, 64, 64), True), (40, (2, 2, 1, 1), False)],
)  # fmt: skip
def test_products(tiles: None, rows: int, sizes: tuple[int, int, int, int], one: bool) -> None:
    """Sizes that tiles do not divide; experts with no pair, with some blocks of pairs, and with all pairs."""
    found, exact = products(rows, sizes, torch.float32, one=one)
    assert float((found - exact).norm() / exact.norm()) < 1e-6


def test_products_in_bfloat16_are_rounded_once(tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL:  # the interpreter would multiply the bits of bfloat16 as integers
        multiply = interpreter.InterpreterBuilder.create_dot

        def in_float32(builder: Any, a: Any, b: Any, *others: Any) -> Any:
            a, b = (builder.cast_impl(x, tl.block_type(tl.float32, list(x.data.shape))) for x in (a, b))
            return multiply(builder, a, b, *others)

        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", in_float32)
    found, exact = products(20, (5, 3, 70, 300), torch.bfloat16)
    assert found.dtype == torch.bfloat16
    rounded = exact.to(torch.bfloat16).double()
    limit = 1.01 if REAL else 2.02  # the interpreter rounds towards zero
    assert float((found - exact).norm()) < limit * float((rounded - exact).norm())


@torch.no_grad()
@pytest.mark.parametrize(
    ("count", "chosen", "normalised", "activation"),
    [(4, 2, True, Activation.GELU), (4, 1, False, Activation.SILU), (5, 5, False, Activation.SILU), (30, 4, True, Activation.SILU)],
)  # fmt: skip
def test_a_mixture(tiles: None, count: int, chosen: int, normalised: bool, activation: Activation) -> None:
    torch.manual_seed(1)
    router, weights = Router(torch.randn(count, WIDTH) * 0.3, chosen, normalised), matrices(count)
    gate, up, down = (torch.stack(each) for each in zip(*weights, strict=True))
    both = torch.cat([gate, up], dim=1)
    assert both.shape == (count, 2 * INNER, WIDTH)
    there = Router(router.weight.to(WHERE), chosen, normalised)
    mixture, x = GroupedExperts(there, both.to(WHERE), down.to(WHERE), activation), torch.randn(3, 7, WIDTH)
    act = F.silu if activation == Activation.SILU else lambda y: F.gelu(y, approximate="tanh")
    wanted = expected(x.flatten(0, 1), router, weights, act)
    torch.testing.assert_close(mixture(x.to(WHERE)).cpu().flatten(0, 1), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("normalised", [True, False])
def test_logits_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch, normalised: bool) -> None:
    """Of a prefill of hundreds of tokens, and of decode steps of three rows at positions of their own."""
    monkeypatch.setattr(layer_kernels, "compiles", lambda *_: True)
    torch.manual_seed(0)
    sizes = {"num_experts": 16, "num_experts_per_tok": 2, "norm_topk_prob": normalised, "num_hidden_layers": 2}
    model = tiny_families.model("qwen3_moe", **sizes).eval()
    tiny_families.randomise(model, 0.2)
    tokens = torch.randint(97, (3, 100), generator=torch.Generator().manual_seed(1))
    wanted = model(tokens).logits
    backbone = Backbone(model.to(WHERE))
    assert backbone.optimize() is None
    assert type(backbone._optimised.layers[0]).__name__ == "FusedLayer"
    x = backbone.embed(tokens.to(WHERE))
    assert tokens.numel() * 2 > experts_kernel.MANY * 16, "large tiles"
    found = backbone.logits(backbone.hidden(x, kv=backbone.new_kv(3, 100))).cpu()
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5
    assert float((found - wanted).norm(dim=-1).max() / wanted.norm(dim=-1).mean()) < 1e-4
    kv, starts = backbone.new_kv(3, 100), (20, 5, 31)
    for row, start in enumerate(starts):
        backbone.hidden(x[row : row + 1, :start], kv=kv[row : row + 1])
    for n in range(4):
        at = torch.tensor(starts) + n
        step = backbone.hidden(x[torch.arange(3), at][:, None], kv=kv, at=at.to(WHERE))
        found, exact = backbone.logits(step[:, 0]).cpu(), wanted[torch.arange(3), at]
        assert float((found - exact).norm() / exact.norm()) < 1e-5


def test_all_tiles_are_compiled_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no request waits for it."""
    asked = []

    def multiply(x, weights, pairs, ends):
        asked.append((tuple(weights.shape), len(pairs) >= experts_kernel.MANY * len(weights)))
        return x.new_zeros(len(pairs), weights.shape[1])

    monkeypatch.setattr(layer_kernels, "compiles", lambda _, run: run() or True)
    monkeypatch.setattr(experts_kernel, "multiply", multiply)
    monkeypatch.setattr(layer_kernels, "norm_gate", lambda both, *_: both[..., : both.shape[2] // 2])
    mixture = GroupedExperts(Router(torch.zeros(7, 8), 3, True), torch.zeros(7, 10, 8), torch.zeros(7, 8, 5), Activation.SILU)  # fmt: skip
    assert mixture.available()
    assert asked == [(shape, many) for many in (False, True) for shape in ((7, 10, 8), (7, 8, 5))]


def test_quantised_experts_are_left_to_their_package() -> None:
    model = tiny_families.model("qwen3_moe").eval()
    experts = model.base_model.layers[1].mlp.experts
    experts.down_proj = nn.Parameter(experts.down_proj.detach().to(torch.float8_e4m3fn), requires_grad=False)
    assert unsupported_reason(model) == "experts with quantised weights"


def test_the_kernel_compiles_for_gpus(tmp_path: Path) -> None:
    """In bfloat16 and float32, for an A100 and an H100, within the shared memory of an RTX 3090, with tensor cores and loads of 16 bytes."""
    assert compiled_by(COMPILE, tmp_path) == 8 * ["_multiply"]


COMPILE = """
import itertools
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from everlong_models.kernels.gpu import experts_kernel

kernel = experts_kernel._multiply
for gpu, (kind, size), (rows, columns) in itertools.product((80, 90), (("*bf16", 2), ("*fp32", 4)), experts_kernel._TILES):
    sizes = {"experts": 128, "shared": 8, "width": 1536, "depth": 2048, "experts_block": 128, "rows": rows, "columns": columns,
             "step": experts_kernel._STEP_BYTES // size}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in sizes else "*i64" if name in ("pairs", "ends") else kind for name in names}
    constants = {(place,): sizes[name] for place, name in enumerate(names) if name in sizes}
    whole = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name not in sizes}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=whole)
    compiled = triton.compile(source, target=GPUTarget("cuda", gpu, 32))
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared < 99 * 1024
    assert "cp.async.cg" in compiled.asm["ptx"]
    assert size == 4 or "mma" in compiled.asm["ptx"]
    print(kernel.__name__)
"""
