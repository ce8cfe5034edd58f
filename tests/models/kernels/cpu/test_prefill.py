"""The prefill kernels compute their formulas for all sizes, and a row's result does not depend on other rows, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from everlong_models.kernels.cpu import thread_pool
from everlong_models.kernels.cpu.prefill import COLUMNS, QUERIES, ROWS, Epilogue
from everlong_models.kernels.cpu.simd import PANEL

SIZES = [(1, 1, PANEL), (2, 7, PANEL), (5, 64, COLUMNS + PANEL), (ROWS, 33, COLUMNS), (3 * ROWS + 11, 40, 2 * COLUMNS)]


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "K", "N"), SIZES)
def test_products(threads, rows, K, N):
    torch.manual_seed(0)
    x, weight, bias, other = (torch.randn(shape) for shape in ((rows, K), (N, K), (N,), (rows, N)))
    y, packed = F.linear(x.double(), weight.double()), thread_pool.pack_panels(weight)
    for then, given, expected in (
        (Epilogue.NONE, None, y),
        (Epilogue.SILU, None, F.silu(y)),
        (Epilogue.GELU, None, F.gelu(y, approximate="tanh")),
        (Epilogue.EXACT_GELU, None, F.gelu(y)),
        (Epilogue.TIMES, other, y * other),
        (Epilogue.PLUS, other, y + other),
    ):
        found = thread_pool.linear(x, packed, None, then, given)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    found = thread_pool.linear(x, packed, bias, Epilogue.SILU, None)
    torch.testing.assert_close(found.double(), F.silu(y + bias), rtol=1e-5, atol=1e-5)
    found = thread_pool.linear(x, packed, bias, Epilogue.EXACT_GELU, None)
    torch.testing.assert_close(found.double(), F.gelu(y + bias), rtol=1e-5, atol=1e-5)


def test_silu_everywhere():
    x = torch.cat([torch.linspace(-200, 200, 4000), torch.tensor([-1e30, -87.0, -88.0, 0.0, 1e-30, 1e30])])
    x = F.pad(x, (0, -len(x) % PANEL))
    found = thread_pool.linear(torch.ones(1, 1), thread_pool.pack_panels(x[:, None]), None, Epilogue.SILU, None)[0]
    torch.testing.assert_close(found.double(), F.silu(x.double()), rtol=1e-6, atol=1e-30)
    wrong = torch.full((PANEL, 1), torch.nan)
    assert thread_pool.linear(torch.ones(1, 1), thread_pool.pack_panels(wrong), None, Epilogue.SILU, None).isnan().all()


@pytest.mark.parametrize("kind", [Epilogue.GELU, Epilogue.EXACT_GELU])
def test_gelu_everywhere(kind):
    x = torch.cat([torch.linspace(-20, 20, 4000), torch.tensor([-1e30, -200.0, 0.0, 1e-30, 200.0, 1e30])])
    x = F.pad(x, (0, -len(x) % PANEL))
    found = thread_pool.linear(torch.ones(1, 1), thread_pool.pack_panels(x[:, None]), None, kind, None)[0]
    form = "tanh" if kind == Epilogue.GELU else "none"
    torch.testing.assert_close(found.double(), F.gelu(x.double(), approximate=form), rtol=1e-5, atol=1e-6)
    wrong = torch.full((PANEL, 1), torch.nan)
    assert thread_pool.linear(torch.ones(1, 1), thread_pool.pack_panels(wrong), None, kind, None).isnan().all()


def test_a_row_does_not_depend_on_the_others(threads):
    torch.manual_seed(1)
    x, weight = torch.randn(2 * ROWS + 5, 96), torch.randn(COLUMNS + 2 * PANEL, 96)
    packed = thread_pool.pack_panels(weight)
    whole = thread_pool.linear(x, packed, None, Epilogue.SILU, None)
    for start, end in ((0, 1), (3, 10), (ROWS, 2 * ROWS + 5), (7, ROWS + 9)):
        assert torch.equal(thread_pool.linear(x[start:end], packed, None, Epilogue.SILU, None), whole[start:end])


def test_no_rows():
    assert thread_pool.linear(
        torch.empty(2, 0, 8), thread_pool.pack_panels(torch.randn(PANEL, 8)), None, Epilogue.SILU, None
    ).shape == (
        2,
        0,
        PANEL,
    )
    assert thread_pool.norm(torch.empty(0, 8), 1e-5).shape == (0, 8)
    assert thread_pool.attend(*parts(0, 3, 3, 1, 2, 16)).shape == (0, 3, 32)


def test_wrong_types_and_shapes_of_a_product_are_refused():
    x, packed, other = torch.randn(3, 8), thread_pool.pack_panels(torch.randn(PANEL, 8)), torch.randn(3, PANEL)
    for wrong, beside in ((x[:, :7], None), (x.double(), None), (x, other[:2]), (x, other.double())):
        with pytest.raises(ValueError, match="must be float32"):
            thread_pool.linear(wrong, packed, None, Epilogue.PLUS, beside)


def attention(queries, keys, values, window=None, cap=None):
    """As the formula has it, in float64."""
    n, T, R = queries.shape[1], keys.shape[2], queries.shape[3]
    q, k, v = (
        queries.double().flatten(2, 3).transpose(1, 2),
        *(e.double().repeat_interleave(R, 1) for e in (keys, values)),
    )
    hidden = torch.ones(n, T, dtype=torch.bool).triu(T - n + 1)
    if window is not None:
        hidden |= torch.ones(n, T, dtype=torch.bool).tril(T - n - window)
    scores = q @ k.mT if cap is None else torch.tanh(q @ k.mT / cap) * cap
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def parts(B, n, T, G, R, d, room=0):
    """Queries, keys and values as `Llama.hidden` has them: parts of larger tensors."""
    heads, kv = torch.randn(B, n, G * R + 2 * G, d), torch.full((B, 2, 2, G, T + room, d), torch.nan)
    kv[..., :T, :] = torch.randn(B, 2, 2, G, T, d)
    return heads[:, :, : G * R].unflatten(2, (G, -1)), *kv[:, 1, :, :, :T].unbind(1)


@pytest.mark.parametrize(
    ("B", "n", "T", "G", "R", "d", "room"),
    [
        (1, 1, 1, 1, 1, 16, 0),
        (1, 1, 50, 2, 3, 16, 3),
        (2, 5, 5, 1, 4, 32, 9),
        (3, QUERIES, QUERIES + 1, 3, 1, 64, 0),
        (1, 2 * QUERIES + 7, 200, 2, 2, 48, 1),
        (2, 150, 150, 3, 3, 64, 100),
    ],
)
def test_attention(threads, B, n, T, G, R, d, room):
    torch.manual_seed(2)
    queries, keys, values = parts(B, n, T, G, R, d, room)
    found = thread_pool.attend(queries, keys, values)
    torch.testing.assert_close(found.double(), attention(queries, keys, values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "cap"), [(1, None), (7, None), (16, 3.0), (61, 3.0), (None, 3.0)])
@pytest.mark.parametrize(("n", "T"), [(70, 70), (50, 131), (1, 90)])
def test_attention_with_a_window_and_capped_scores(threads, n, T, window, cap):
    torch.manual_seed(4)
    queries, keys, values = parts(2, n, T, 2, 3, 32)
    found = thread_pool.attend(queries, keys, values, window, cap)
    torch.testing.assert_close(found.double(), attention(queries, keys, values, window, cap), rtol=1e-5, atol=1e-5)


def test_attention_with_large_scores_and_nan():
    queries, keys, values = parts(1, 40, 40, 1, 2, 16)
    queries *= 40
    keys *= 40
    torch.testing.assert_close(
        thread_pool.attend(queries, keys, values).double(), attention(queries, keys, values), rtol=1e-4, atol=1e-4
    )
    keys[0, 0, 17, 3] = torch.nan
    found = thread_pool.attend(queries, keys, values)[0]
    assert found[17:].isnan().all()
    assert not found[:17].isnan().any()


def test_attention_is_causal(threads):
    torch.manual_seed(3)
    queries, keys, values = parts(1, 100, 100, 3, 3, 64)
    whole = thread_pool.attend(queries, keys, values)
    for T in (1, 30, QUERIES, 77):
        assert torch.equal(thread_pool.attend(queries[:, :T], keys[:, :, :T], values[:, :, :T]), whole[:, :T])
        assert torch.equal(thread_pool.attend(queries[:, T:], keys, values), whole[:, T:])


def test_wrong_types_shapes_and_layouts_of_attention_are_refused():
    queries, keys, values = parts(1, 8, 8, 1, 2, 16)
    for wrong in (
        (queries.double(), keys, values),
        (queries, keys[..., :8], values),
        (queries, keys.mT.contiguous().mT, values),
        (queries[..., :8], keys[..., :8], values[..., :8]),
        (queries, keys[:, :, :5], values[:, :, :5]),
        (queries.transpose(2, 3), keys, values),
    ):
        with pytest.raises(ValueError, match=r"queries .* must be float32"):
            thread_pool.attend(*wrong)


@pytest.mark.parametrize("shape", [(1, 1, 5), (2, QUERIES, 64), (3, 41, 576)])
def test_norms(threads, shape):
    x = torch.randn(shape)
    torch.testing.assert_close(thread_pool.norm(x, 1e-5), F.rms_norm(x, shape[-1:], None, 1e-5), rtol=1e-6, atol=1e-6)
    assert torch.equal(thread_pool.norm(x[:, -1:], 1e-5), thread_pool.norm(x, 1e-5)[:, -1:])


def test_a_norm_with_weight_and_addend(threads):
    x, weight, plus = torch.randn(3, 41, 64), torch.randn(64), torch.randn(3, 41, 64)
    expected = plus + F.rms_norm(x, (64,), weight, 1e-5)
    torch.testing.assert_close(thread_pool.norm(x, 1e-5, weight, plus), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("together", [0, 3])
@pytest.mark.parametrize("r", [0, 12, 32])
def test_rotary_positions_of_a_part_of_normed_heads(threads, together, r):
    """Four heads are normed: each by itself, or the first three together and the fourth."""
    heads, weight, angles = torch.randn(2, 30, 6, 32), torch.randn(4, 32), torch.randn(1, 30, 1, r // 2)
    cos, sin = angles.cos().repeat(1, 1, 1, 2), torch.cat([-angles.sin(), angles.sin()], dim=-1)
    expected = heads.clone()
    for few in [slice(0, 3), slice(3, 4)] if together else [slice(n, n + 1) for n in range(4)]:
        x = heads[:, :, few]
        expected[:, :, few] = x * x.square().mean((2, 3), keepdim=True).add(1e-5).rsqrt() * weight[few]
    x = expected[:, :, :4, :r].clone()
    expected[:, :, :4, :r] = x * cos + (x.roll(r // 2, dims=-1) if r else x) * sin
    thread_pool.rotate(heads, 4, cos, sin, weight, together, 1e-5)
    torch.testing.assert_close(heads, expected, rtol=1e-5, atol=1e-6)


def test_wrong_types_shapes_and_layouts_of_norms_and_rotations_are_refused():
    heads, table = torch.randn(2, 5, 3, 16), torch.randn(1, 5, 1, 16)
    with pytest.raises(ValueError, match="must be float32"):
        thread_pool.norm(heads.double(), 1e-5)
    for wrong in (
        (heads.double(), 2, table, table),
        (heads, 4, table, table),
        (heads[:, :, :2], 2, table, table),
        (heads, 2, table[:, :4], table),
        (heads, 2, table.expand(3, -1, -1, -1), table.expand(3, -1, -1, -1)),
    ):
        with pytest.raises(ValueError, match="heads must be contiguous"):
            thread_pool.rotate(*wrong)


@pytest.mark.parametrize(("B", "tables"), [(1, 1), (3, 1), (3, 3)])
def test_rotary_positions(threads, B, tables):
    heads, angles = torch.randn(B, 30, 5, 32), torch.randn(tables, 30, 1, 16)
    cos, sin = angles.cos().repeat(1, 1, 1, 2), torch.cat([-angles.sin(), angles.sin()], dim=-1)
    expected = heads.clone()
    expected[:, :, :4] = heads[:, :, :4] * cos + heads[:, :, :4].roll(16, dims=-1) * sin
    thread_pool.rotate(heads, 4, cos, sin)
    torch.testing.assert_close(heads, expected, rtol=1e-6, atol=1e-6)
