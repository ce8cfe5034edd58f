"""∞-former passes the memory contract, is the paper's equations inside transformers' own forward, refuses what cannot work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from everlong_models.backbone.cache import CacheSlots
from everlong_models.errors import ConfigError
from everlong_models.memories.infinite.long_term import LayerMemory
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from everlong_models.memories.state import MemoryState
from tests.models import naive_infinite as naive
from tests.models.memory_contract import MemoryContract, assert_same_state, tokens
from tests.models.tiny import FAMILIES, gpt2, llama

SMALL = {"segment_length": 12, "basis": 10, "widths": (0.05, 0.1), "samples": 9, "bins": 7, "output": "random"}


def build(family="llama", **changes) -> InfiniteFormer:
    return InfiniteFormer(InfiniteConfig(**(SMALL | changes)), FAMILIES[family]()).eval()


class TestInfinite(MemoryContract):
    @pytest.fixture(
        params=[
            ("llama", {}),
            ("gpt2", {"tau": "k/(k+1)", "parallel_tokens": 24}),
            ("llama", {"sticky": "independent", "source": "normed"}),
            ("gpt2", {"sticky": "stratified", "gate": "depthwise", "rank": 3}),
        ],
        ids=str,
    )
    def model(self, request):
        family, changes = request.param
        return build(family, **changes)


def naive_segment(model: InfiniteFormer, tokens_T: Tensor, state: dict) -> tuple[Tensor, dict, Tensor]:
    """One row's logits, next state and KL: the equations as loops, put into transformers' forward by hooks."""
    config, base, layers = model.config, model.backbone.model.base_model, model.backbone.layers
    is_gpt2 = hasattr(base, "h")
    blocks = base.h if is_gpt2 else base.layers
    projected, inputs, densities, handles = {}, {}, {}, []
    for layer, block in enumerate(blocks):
        attention = block.attn if is_gpt2 else block.self_attn
        projection = attention.c_attn if is_gpt2 else attention.q_proj
        norm = block.ln_1 if is_gpt2 else block.input_layernorm

        def keep_queries(_, __, out, layer=layer):
            projected[layer] = out[0, :, : model.backbone.width]

        def keep_inputs(_, args, out, layer=layer):
            inputs[layer] = (args[0] if config.source == "raw" else out)[0]

        def add_memory(_, __, out, layer=layer):
            queries = projected[layer].unflatten(-1, (model.backbone.heads, -1)).transpose(0, 1)
            context, densities[layer] = naive.attend(state["B"][layer], queries, model.memory[layer])
            return (out[0] + context, *out[1:])

        handles += [
            projection.register_forward_hook(keep_queries),
            norm.register_forward_hook(keep_inputs),
            attention.register_forward_hook(add_memory),
        ]
    logits = model.backbone.model(tokens_T[None]).logits[0]
    for handle in handles:
        handle.remove()
    coefficients, mass, divergence = [], [], 0.0
    for layer in range(layers):
        memory, count, sampled = model.memory[layer], state["count"], None
        mass.append(naive.histogram(densities[layer], config.bins) * (count > 0))
        if config.sticky != "off":
            uniform = naive.uniforms(config.seed, count, layer, config.samples)
            if config.sticky == "stratified":
                uniform = [(m + u) / config.samples for m, u in enumerate(uniform)]
            sampled = naive.draw(mass[-1], uniform) if count else None
        X = naive.gate(inputs[layer], memory.convolution.weight, memory.convolution.bias)
        coefficients.append(naive.update(state["B"][layer], X, count, config, sampled))
        for head in densities[layer]:
            for _, variance in head:
                ratio = torch.tensor(variance / config.prior**2)
                divergence += float(ratio - ratio.log() - 1) / 2 * (count > 0)
    return logits, {"B": coefficients, "count": state["count"] + 1, "mass": mass}, torch.tensor(divergence)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("gpt2", {"tau": "k/(k+1)"}),
        ("gpt2", {"sticky": "independent", "gate": "depthwise"}),
        ("llama", {"sticky": "stratified", "source": "normed"}),
    ],
    ids=str,
)
@torch.no_grad()
def test_the_model_is_the_papers_equations(family, changes):
    model = build(family, segment_length=6, seed=5, **changes)
    text = tokens(model, 1, 18)
    state = model.initial_state()
    expected = {"B": [torch.zeros(10, model.backbone.width).double()] * model.backbone.layers, "count": 0}
    for segment in text.split(6, dim=1):
        found = model.training_segment(segment, state)
        logits, expected, divergence = naive_segment(model, segment[0], expected)
        torch.testing.assert_close(found.logits[0], logits, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.state["coefficients"][0], torch.stack(expected["B"]), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.auxiliary[0].double(), divergence.double(), rtol=1e-6, atol=1e-6)
        if "sticky" in changes:
            torch.testing.assert_close(found.state["histogram"][0], torch.stack(expected["mass"]))
        torch.testing.assert_close(model.forward(segment, state), found.logits)
        assert_same_state(model.read(segment, state), found.state)
        state = found.state
    without = model.backbone.model(text[:, -6:]).logits[0]
    assert float((logits - without).abs().max()) > 1e-3  # the memory had its say


@pytest.mark.parametrize("tau", [0.7, "k/(k+1)"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_reading_in_parallel_is_reading_one_by_one(family, tau):
    one, many = (build(family, tau=tau, segment_length=8, parallel_tokens=n) for n in (1, 40))
    text = tokens(one, 3, 14 * 8)
    # Rows that have read different numbers of segments.
    start = MemoryState.stack([one.read(text[:1, : n * 8], one.initial_state()) for n in (1, 0, 3)])
    found = many.read(text, start)
    assert_same_state(found, one.read(text, start))
    for row, state in enumerate(found.split()):
        assert_same_state(state, one.read(text[row : row + 1], start.split()[row]))


@torch.no_grad()
def test_reading_in_parallel_passes_each_layer_once(monkeypatch):
    """And the last layer not at all: nothing uses its output."""
    model = build(segment_length=8, parallel_tokens=80)
    attend, passes = model.layers.attend, []
    monkeypatch.setattr(model.layers, "attend", lambda layer, *rest: passes.append(layer) or attend(layer, *rest))
    model.read(tokens(model, 1, 160), model.initial_state())
    assert passes == [0, 0]  # 20 segments, 10 at a time, 2 layers


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_an_untrained_memory_leaves_the_backbones_answers_as_they_were(family):
    model = build(family, output="zero")
    state = model.read(tokens(model, 1, 36), model.initial_state())
    segment = tokens(model, 1, 12, 3)
    torch.testing.assert_close(model.forward(segment, state), model.backbone.model(segment).logits)
    assert float(state["coefficients"].abs().min()) > 0


def test_gradients_reach_gate_and_projections_but_not_the_past():
    model = build("llama")
    before, after = torch.arange(0, 24)[None], torch.arange(40, 52)[None]
    model.forward(after, model.read(before, model.initial_state())).logsumexp(-1).sum().backward()
    for name, parameter in model.memory.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name
    rows = model.backbone.model.get_input_embeddings().weight.grad.abs().sum(dim=1)
    assert float(rows[:24].max()) == 0
    assert float(rows[40:52].min()) > 0


def test_training_segments_train_what_reading_trains():
    """The state of a training step carries the same gradients as that of reading."""
    model = build("gpt2", sticky="stratified")
    text, grads = tokens(model, 2, 36), []
    for read in (model.read, lambda part, s: model.training_segment(part, s).state):
        model.zero_grad()
        state = model.initial_state(2)
        for part in text.split(12, dim=1)[:2]:
            state = read(part, state)
        out = model.training_segment(text[:, 24:], state)
        (out.logits.logsumexp(-1).mean() + 1e-3 * out.auxiliary.mean()).backward()
        grads.append({name: p.grad.clone() for name, p in model.memory.named_parameters()})
    for name in grads[0]:
        torch.testing.assert_close(grads[0][name], grads[1][name])


@torch.no_grad()
def test_an_empty_memory_has_no_divergence_and_gives_no_attention():
    model = build(sticky="independent")
    both = MemoryState.stack([model.initial_state(), model.read(tokens(model, 1, 12), model.initial_state())])
    step = model.training_segment(tokens(model, 2, 12, 1), both)
    assert float(step.auxiliary[0]) == 0 < float(step.auxiliary[1])
    assert float(step.state["histogram"][0].abs().max()) == 0 < float(step.state["histogram"][1].min())


@torch.no_grad()
def test_densities_are_never_narrower_than_the_least_variance():
    memory = build(min_variance=1e-4).memory[0]
    memory.bias[:, 1] = -1e4
    signal = torch.zeros(1, 10, 48).double()
    assert memory.density(memory.project(signal), torch.zeros(1, 6, 3, 8).double()).variance.unique().tolist() == [1e-4]


@torch.no_grad()
def test_sticky_draws_are_the_rows_own():
    """Another seed in the state draws other samples; the same seed draws the same again."""
    model = build(sticky="independent")
    text = tokens(model, 1, 36)
    start = model.initial_state()
    assert model.read(text, start).digest() == model.read(text, start).digest()
    other = model.read(text, MemoryState({**start.tensors, "seed": torch.tensor([1])}))
    assert not torch.allclose(other["coefficients"], model.read(text, start)["coefficients"])
    assert other["seed"].tolist() == [1]


@torch.no_grad()
def test_segments_of_any_length_close_side_by_side():
    model = build("gpt2", sticky="stratified")
    text = tokens(model, 2, 36)
    state = MemoryState.stack([model.initial_state(), model.read(text[1:, :24], model.initial_state())])
    rows, lengths = state.split(), (3, 7)
    slots = CacheSlots()
    for row, n in enumerate(lengths):
        slots.add(model.open(rows[row], text[row : row + 1, 24 : 24 + n])[0])
    cache = slots.rows
    model.step(cache, torch.stack([text[row, 24 + n] for row, n in enumerate(lengths)]))
    for row, closed in enumerate(model.close(cache).split()):
        tokens_read = text[row : row + 1, 24 : 24 + lengths[row] + 1]
        assert_same_state(closed, model.training_segment(tokens_read, rows[row]).state)


def shares(tau) -> Tensor:
    """Return how well each of 8 segments (ones in a dimension of their own) is read in the middle of its equal share."""
    changes = {"tau": tau, "basis": 128, "widths": (0.005, 0.01), "samples": 128, "ridge": 0.01}
    config = InfiniteConfig(**(SMALL | changes))
    memory = LayerMemory(config, 8, 1, 8).double()
    signal = torch.zeros(1, 128, 8).double()
    for k in range(8):
        signal = memory.extend(signal, torch.eye(8).double()[k].expand(1, 64, 8), [k])
    middle = (torch.arange(8) + 0.5) / 8
    return (memory.regression.basis.at(middle.double()) @ signal[0]).diagonal()


@torch.no_grad()
def test_equal_shares_keep_every_segment_where_a_constant_share_forgets():
    assert float(shares("k/(k+1)").min()) > 0.8
    assert float(shares(0.5)[:4].max()) < 0.1


def test_replicas_make_the_same_memory_and_leave_the_callers_numbers_alone():
    backbone = llama()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first = InfiniteFormer(InfiniteConfig(**SMALL), backbone)
    assert torch.equal(torch.rand(3), expected)
    second, other = InfiniteFormer(InfiniteConfig(**SMALL), backbone), build(seed=1)
    for (name, mine), (_, theirs) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name
    assert not torch.equal(first.memory[0].key.weight, other.memory[0].key.weight)
    assert not torch.equal(first.memory[0].key.weight, first.memory[1].key.weight)


def test_what_is_trained_lives_outside_the_backbone():
    names = {name for name in build().state_dict() if not name.startswith("backbone.")}
    parts = ("affine", "bias", "key.weight", "value.weight", "output.weight", "convolution.weight", "convolution.bias")
    assert names == {f"memory.layers.{layer}.{part}" for layer in range(2) for part in parts}
    sizes = {gate: build(gate=gate).memory[0].convolution.weight.numel() for gate in ("full", "depthwise")}
    assert sizes == {"full": 48 * 48 * 3, "depthwise": 48 * 3}


@torch.no_grad()
def test_maps_of_low_rank_are_the_full_matrices_of_that_rank():
    thin, full = build(rank=3), build()
    own = {name: value for name, value in thin.state_dict().items() if name in full.state_dict()}
    full.load_state_dict(own, strict=False)
    for layer in range(2):
        for name in ("key", "value", "output"):
            weight = getattr(thin.memory[layer], name).weight
            assert int(torch.linalg.matrix_rank(weight)) == 3
            getattr(full.memory[layer], name).weight.copy_(weight)
    text, last = tokens(full, 2, 24), tokens(full, 2, 5, seed=1)
    states = [model.read(text, model.initial_state(2)) for model in (thin, full)]
    assert_same_state(*states)
    expected = full.forward(last, states[1])
    torch.testing.assert_close(thin.forward(last, states[0]), expected, rtol=1e-4, atol=1e-5)
    assert not build(rank=3, output="zero").memory[0].output.weight.any()


@torch.no_grad()
def test_a_memory_of_a_half_precision_backbone_is_kept_in_float32():
    model = InfiniteFormer(InfiniteConfig(**SMALL), llama(torch.bfloat16)).eval()
    state = model.read(tokens(model, 1, 24), model.initial_state())
    assert state["coefficients"].dtype == torch.float32
    cache, logits = model.open(state, tokens(model, 1, 3))
    assert logits.dtype == model.step(cache, tokens(model, 1, 1)[:, 0]).dtype == torch.bfloat16
    assert model.close(cache)["coefficients"].dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"basis": 9}, r"basis=9: must be a positive multiple of the number of widths, 2"),
        ({"basis": 0}, r"basis=0: must be a positive multiple"),
        ({"widths": ()}, r"widths=\(\): needs at least one width"),
        ({"widths": (0.1, 0.0)}, r"widths=\(0.1, 0.0\): every width must be positive"),
        ({"widths": (0.1, float("nan"))}, r"widths=.*: every width must be positive and finite"),
        ({"samples": 0}, r"samples=0: must be at least 1"),
        ({"bins": 0}, r"bins=0: must be at least 1"),
        ({"rank": 0}, r"rank=0: must be at least 1, or null"),
        ({"ridge": 0.0}, r"ridge=0.0: must be positive"),
        ({"ridge": float("inf")}, r"ridge=inf: must be positive and finite"),
        ({"prior": -1.0}, r"prior=-1.0: must be positive"),
        ({"min_variance": 0.0}, r"min_variance=0.0: must be positive"),
        ({"tau": 1.0}, r"tau=1.0: must be in \]0, 1\[, or 'k/\(k\+1\)'"),
        ({"tau": 0.0}, r"tau=0.0: must be in"),
        ({"tau": float("nan")}, r"tau=nan: must be in"),
        ({"segment_length": 129}, r"segment_length=129: exceeds the backbone's 128 positions"),
        ({"parallel_tokens": 0}, r"parallel_tokens=0: must be at least 1"),
    ],
)
def test_invalid_settings_are_refused_at_construction(changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        InfiniteFormer(InfiniteConfig(**(SMALL | changes)), gpt2())
