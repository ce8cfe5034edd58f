"""RelativeTerms-position attention equals the papers' equations, term by term, and so do its gradients."""

from __future__ import annotations

import pytest
import torch

from everlong_models.errors import ConfigError
from everlong_models.memories.relative.attention import RelativePositions, product, shift
from everlong_models.memories.relative.decoder import newest
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from tests.models import naive_relative
from tests.models.memory_contract import tokens
from tests.models.naive_relative import SMALL


def build(form):
    """A model for its first layer's attention and its positions; d = 6."""
    torch.manual_seed(0)
    model = TransformerXL(TransformerXLConfig(**SMALL))
    model.positions = RelativePositions(width=12, heads=2, dim=6, form=form)
    return naive_relative.random_weights(model)


def equation(model, x, i, y, j):
    """A/√d (B, H, T, K) of queries `x` (B, T, D) at positions i… and keys `y` (B, K, D) at j…, −∞ on the other side."""
    return [
        [
            [
                [naive_relative.score(model, 0, head, xt, i + t, yj, j + n) for n, yj in enumerate(keys)]
                for t, xt in enumerate(row)
            ]
            for head in range(2)
        ]
        for row, keys in zip(x, y, strict=True)
    ]


SIDES = {
    "behind": (lambda positions, T, K: positions.keys_behind(T, K), lambda T, K: (K - T, 0), lambda i, j: j <= i),
    "ahead": (lambda positions, T, K: positions.keys_ahead(T, K), lambda T, K: (0, T + 1 - K), lambda i, j: j > i),
}


@pytest.mark.parametrize("form", ["signed", "disentangled"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("T", "K"), [(1, 1), (3, 3), (5, 5), (1, 6), (4, 9), (7, 7), (8, 12)])
def test_scores_and_contexts_are_the_equations_and_so_are_their_gradients(form, side, T, K):
    """On both sides, with few queries (one order of multiplying) and with d = 6 or more (the other)."""
    if side == "ahead" and K > T:
        T, K = K, T  # at most as many keys as queries can be ahead of one of them
    relative, origin, shown = SIDES[side]
    model, (i, j) = build(form), origin(T, K)
    attention = model.blocks[0].attention
    x, y = torch.randn(2, T, 12, dtype=torch.float64), torch.randn(2, K, 12, dtype=torch.float64)
    x.requires_grad_(), y.requires_grad_()
    visible = torch.tensor([[shown(i + t, j + n) for n in range(K)] for t in range(T)]).expand(2, T, K)
    scores = attention.scores(attention.queries(x), attention.keys(y), relative(model.positions, T, K), visible)
    assert torch.equal(scores.isfinite(), visible[:, None].expand_as(scores))
    contexts = attention.mix(scores, attention.values(y))

    naive = torch.stack([torch.stack(row) for b in equation(model, x, i, y, j) for head in b for row in head])
    naive = naive.view(2, 2, T, K)
    assert visible.any()
    torch.testing.assert_close(scores[visible[:, None].expand_as(scores)], naive[visible[:, None].expand_as(naive)])
    direct = torch.stack(
        [
            torch.stack(
                naive_relative.attend(
                    model, 0, x[b, t], i + t, [(j + n, y[b, n]) for n in range(K) if visible[b, t, n]]
                )[0]
            )
            for b in range(2)
            for t in range(T)
        ]
    )
    torch.testing.assert_close(contexts, direct.view_as(contexts))

    into = [
        x,
        y,
        *model.positions.parameters(),
        *(p.weight for p in (attention.query, attention.key, attention.position)),
    ]
    probe, other = torch.randn_like(scores) * visible[:, None], torch.randn_like(contexts)
    finite = scores.masked_fill(~visible[:, None], 0.0)
    fast = torch.autograd.grad((finite * probe).sum() + (contexts * other).sum(), into, allow_unused=True)
    slow = torch.autograd.grad(
        (naive * probe).sum() + (direct.view_as(contexts) * other).sum(), into, allow_unused=True
    )
    for a, b, weight in zip(fast, slow, into, strict=True):
        zero = torch.zeros_like(weight)
        torch.testing.assert_close(zero if a is None else a, zero if b is None else b)


@pytest.mark.parametrize("form", ["signed", "disentangled"])
def test_a_single_query_a_row_scores_as_it_would_in_the_parallel_pass(form):
    model = build(form)
    attention, at = model.blocks[0].attention, [0, 4, 8]
    x, y = torch.randn(3, 1, 12, dtype=torch.float64), torch.randn(3, 9, 12, dtype=torch.float64)
    visible = torch.arange(9) <= torch.tensor(at)[:, None, None]
    behind = model.positions.keys_behind_each_row(torch.tensor(at), 9)
    scores = attention.scores(attention.queries(x), attention.keys(y), behind, visible)
    for row, i in enumerate(at):
        for j in range(9):
            for head in range(2):
                expected = naive_relative.score(model, 0, head, x[row, 0], i, y[row, j], j) if j <= i else -torch.inf
                torch.testing.assert_close(scores[row, head, 0, j], torch.as_tensor(expected, dtype=torch.float64))


def test_the_forms_agree_behind_and_differ_ahead():
    """Only for i < j is R_|Δ| with v₋ something else than R_Δ with v."""
    signed, disentangled = build("signed"), build("disentangled")
    disentangled.load_state_dict(signed.state_dict(), strict=False)
    x, behind = torch.randn(1, 5, 12, dtype=torch.float64), torch.ones(1, 5, 5, dtype=torch.bool).tril()
    ahead = torch.ones(1, 5, 5, dtype=torch.bool).triu()  # the keys are at 1 … 5, the queries at 0 … 4
    scores = []
    for model in (signed, disentangled):
        attention, positions = model.blocks[0].attention, model.positions
        q, k = attention.queries(x), attention.keys(x)
        scores.append(
            (
                attention.scores(q, k, positions.keys_behind(5, 5), behind),
                attention.scores(q, k, positions.keys_ahead(5, 5), ahead),
            )
        )
    torch.testing.assert_close(scores[0][0], scores[1][0])
    assert float((scores[0][1] - scores[1][1])[:, :, ahead[0]].detach().abs().min()) > 1e-6


def test_shift_moves_no_data():
    scores = torch.arange(2 * 3 * 6.0).view(2, 3, 6)  # T = 3, N = K + 1 = 6
    shifted = shift(scores, 2, 5)
    assert shifted.data_ptr() == scores[0, 0, 2:].data_ptr()
    assert shifted[0, 0].tolist() == [2, 3, 4, 5, 6]  # the last one belongs to the next row; the mask hides it
    assert shifted[0, 2].tolist() == [12, 13, 14, 15, 16]


def test_scores_of_half_precision_weights_are_kept_in_float32():
    model = build("signed").bfloat16()
    attention, x = model.blocks[0].attention, torch.randn(1, 4, 12).bfloat16()
    q, k = attention.queries(x), attention.keys(x)
    scores = attention.scores(q, k, model.positions.keys_behind(4, 4), torch.ones(1, 4, 4, dtype=torch.bool).tril())
    assert scores.dtype == torch.float32
    assert attention.mix(scores, k).dtype == torch.bfloat16


def test_large_distances_differ_in_half_precision():
    """Angles in bfloat16 would make 1000 and 1001 the same distance."""
    near, far = build("signed").bfloat16().positions.encode(torch.tensor([1000, 1001])).float()
    exact, _ = build("signed").positions.encode(torch.tensor([1000, 1001])).float()
    torch.testing.assert_close(near, exact, atol=1e-2, rtol=0)
    assert float((near - far).abs().max()) > 0.1


def test_newest_is_cut_row_by_row():
    past, new = torch.arange(4).expand(3, 4), torch.arange(10, 13).expand(3, 3)
    assert newest(past, new, torch.tensor([0, 2, 3])).tolist() == [[0, 1, 2, 3], [2, 3, 10, 11], [3, 10, 11, 12]]


def test_dropout_is_active_in_training_only():
    model = TransformerXL(TransformerXLConfig(**SMALL, dropout=0.5))
    text, state = tokens(model, 1, 8), model.initial_state()
    assert not torch.equal(model.train()(text, state), model(text, state))
    assert torch.equal(model.eval()(text, state), model(text, state))


def test_the_output_layer_is_the_embedding():
    model = TransformerXL(TransformerXLConfig(**SMALL))
    assert [name for name, p in model.named_parameters() if 41 in p.shape] == ["embedding.weight"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width=0: must be at least 1"),
        ({"width": -4}, "width=-4: must be at least 1"),
        ({"width": 13, "heads": 1}, "width=13: must be even"),
        ({"heads": 5}, "heads=5: must divide width=12, or head_dim must be given"),
        ({"heads": 0}, "heads=0: must be at least 1"),
        ({"head_dim": 0}, "head_dim=0: must be at least 1"),
        ({"layers": 0}, "layers=0: must be at least 1"),
        ({"feed_forward": 0}, "feed_forward=0: must be at least 1"),
        ({"vocab_size": 0}, "vocab_size=0: must be at least 1"),
        ({"segment_length": 1}, "segment_length=1: must be at least 2"),
        ({"dropout": 1.0}, r"dropout=1.0: must be in \[0, 1\)"),
        ({"dropout": -0.1}, r"dropout=-0.1: must be in \[0, 1\)"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_at_construction(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        TransformerXL(TransformerXLConfig(**(SMALL | changes)))
    assert {caught.value.field: caught.value.value}.items() <= changes.items()


def test_heads_need_not_divide_the_width_when_their_dimension_is_given():
    """The papers' 10 heads of 41 make 410, but 5 heads of 7 on a width of 12 work as well."""
    model = naive_relative.random_weights(TransformerXL(TransformerXLConfig(**(SMALL | {"heads": 5, "head_dim": 7}))))
    text = tokens(model, 1, 8)
    reference = naive_relative.NaiveTransformerXL(model, [])
    torch.testing.assert_close(model(text, model.initial_state())[0], reference.segment(text[0].tolist()))


def test_unknown_fields_are_errors():
    with pytest.raises(ValueError, match="memory_size"):
        TransformerXLConfig(**SMALL, memory_size=3)


@pytest.mark.parametrize("queries", [1, 2])
def test_one_query_per_row_is_bit_identical_to_the_row_alone(queries):
    """On a CPU, with the keys and with the values of a cache; more of them are multiplied as PyTorch does it."""
    made = torch.Generator().manual_seed(0)
    q, weights, kv = (
        torch.randn(8, *shape, generator=made) for shape in ((4, queries, 64), (4, queries, 812), (2, 4, 812, 64))
    )
    for x, y in ((q, kv[:, 0].mT), (weights, kv[:, 1])):
        together, by_itself = product(x, y), torch.cat([x[row : row + 1] @ y[row : row + 1] for row in range(8)])
        assert torch.equal(together, by_itself if queries == 1 else x @ y)
        torch.testing.assert_close(together, by_itself, rtol=1e-4, atol=1e-4)
