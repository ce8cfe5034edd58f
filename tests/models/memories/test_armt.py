"""ARMT passes the memory contract, equals its equations written out in loops, and refuses what cannot work."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import BackboneError, ConfigError
from everlong_models.memories.armt import ARMT, ARMTConfig, Projections, dpfp, memorise, recall
from everlong_models.memories.state import MemoryState
from tests.models.memory_contract import CLOSE, MemoryContract, assert_same_state, tokens
from tests.models.tiny import FAMILIES, gpt2, llama

# On the CPU, vmap has no batched attention and says so; the results are what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def armt(backbone: Backbone, trained: bool = True, **changes: object) -> ARMT:
    """A small ARMT; `trained`: with random values and gates instead of their zeros."""
    model = ARMT(ARMTConfig(**({"segment_length": 12, "memory_tokens": 3, "memory_width": 4} | changes)), backbone)
    if trained:
        torch.manual_seed(1)
        torch.nn.init.normal_(model.value, std=0.3)
        torch.nn.init.normal_(model.gate, std=0.3)
        if model.output is not None:
            torch.nn.init.normal_(model.output, std=0.3)
    return model


class TestARMT(MemoryContract):
    @pytest.fixture(
        params=[*((family, way) for family in FAMILIES for way in ("in-order", "diagonals")), ("llama", "thin")],
        ids="-".join,
    )
    def model(self, request):
        family, way = request.param
        return armt(FAMILIES[family](), diagonals=way != "in-order", value_width=5 if way == "thin" else None)


# ---- the equations, entry by entry


def naive_dpfp(x: list[float]) -> list[float]:
    r = [max(value, 0.0) for value in x] + [max(-value, 0.0) for value in x]
    features = [r[i] * r[i - shift] for shift in (1, 2, 3) for i in range(len(r))]
    length = sum(value**2 for value in features) ** 0.5
    return [value / length for value in features]


def naive_recall(h: Tensor, W: Tensor, z: Tensor, by: Projections, epsilon: float) -> Tensor:
    out = torch.zeros_like(h)
    for row in range(h.shape[0]):
        for t in range(h.shape[1]):
            phi = torch.tensor(naive_dpfp((by.query @ h[row, t]).tolist()), dtype=torch.float64)
            out[row, t] = W[row] @ phi / (z[row] @ phi + epsilon)
    return out


def naive_memorise(h: Tensor, W: Tensor, z: Tensor, by: Projections, epsilon: float) -> tuple[Tensor, Tensor]:
    new_W, new_z = W.clone(), z.clone()
    for row in range(h.shape[0]):
        for token in h[row]:
            phi = torch.tensor(naive_dpfp((by.key @ token).tolist()), dtype=torch.float64)
            beta = 1 / (1 + torch.exp(-(by.gate @ token)))
            gamma = min(max(1 - float(z[row] @ phi) / float(phi @ phi), 0.0), 1.0)
            error = by.value @ token - W[row] @ phi / (z[row] @ phi + epsilon)
            new_W[row] += beta * torch.outer(error, phi)
            new_z[row] += gamma * phi
    return new_W, new_z


def parts(rows: int = 2, count: int = 3, D: int = 6, d: int = 4) -> tuple[Tensor, Tensor, Tensor, Projections]:
    """Random hidden states, W, z of a row with a past and of one without, and projections."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    has_past = torch.tensor([1.0, 0.0], dtype=torch.float64)[:rows]
    W, z = draw(rows, D, 6 * d) * has_past[:, None, None], draw(rows, 6 * d).abs() * 0.3 * has_past[:, None]
    return draw(rows, count, D), W, z, Projections(draw(d, D), draw(d, D), draw(D, D), draw(D), torch.empty(0, 0))


def test_dpfp_is_its_equation():
    x = torch.randn(5, 4, dtype=torch.float64)
    for row in x:
        torch.testing.assert_close(dpfp(row), torch.tensor(naive_dpfp(row.tolist()), dtype=torch.float64))
    assert dpfp(x).shape == (5, 24)
    torch.testing.assert_close(dpfp(1e4 * x), dpfp(x))


def test_recall_is_its_equation():
    h, W, z, by = parts()
    found = recall(h, W, z, by, 1e-3)
    torch.testing.assert_close(found, naive_recall(h, W, z, by, 1e-3))
    assert float(found[0].abs().min()) > 0
    assert float(found[1].abs().max()) == 0  # no past: skipped


def test_memorise_is_its_equation():
    h, W, z, by = parts()
    z[0, :12] *= 20  # some keys are known already: γ clips at 0
    for mine, expected in zip(memorise(h, W, z, by, 1e-3), naive_memorise(h, W, z, by, 1e-3), strict=True):
        torch.testing.assert_close(mine, expected)


def test_gamma_has_no_gradient():
    h, W, z, by = parts()
    z.requires_grad_()
    _, after = memorise(h, W, z, by, 1e-3)
    assert not torch.allclose(after[0], z[0])  # γ is not clipped to 0, and
    grad = torch.autograd.grad(after.sum(), z)[0]
    assert torch.equal(grad, torch.ones_like(grad))  # z is reached through itself only


def test_a_known_key_is_not_counted_again():
    h, W, z, by = parts()
    _, after = memorise(h, W, 1000 * z, by, 1e-3)
    assert torch.equal(after[0], 1000 * z[0])  # γ is clipped to 0, never below


def test_what_was_written_is_found_again_and_overwritten():
    h, W, z, by = parts(rows=1, count=1)
    W, z = torch.zeros_like(W), torch.zeros_like(z)
    by = by._replace(query=by.key, gate=torch.zeros_like(by.gate))  # β = ½
    for target in (0.5, 0.75, 0.875):  # each write halves the distance to v
        W, z = memorise(h, W, z, by, 1e-12)
        torch.testing.assert_close(recall(h, W, z, by, 1e-12), target * h @ by.value.T)


@pytest.mark.parametrize("diagonals", [False, True])
def test_values_of_low_rank_are_those_of_the_full_matrix_of_that_rank(diagonals):
    """In a state that is so many times smaller."""
    backbone = llama()
    thin = armt(backbone, value_width=5, diagonals=diagonals)
    assert thin.output is not None
    full = armt(backbone, diagonals=diagonals)
    full.load_state_dict(
        {name: value for name, value in thin.state_dict().items() if name not in ("value", "output")}, strict=False
    )
    full.value.data = thin.output @ thin.value
    text, last = tokens(full, 2, 36), tokens(full, 2, 7, seed=1)
    mine, theirs = thin.read(text, thin.initial_state(2)), full.read(text, full.initial_state(2))
    torch.testing.assert_close(thin.output @ mine["W"], theirs["W"], **CLOSE)
    torch.testing.assert_close(mine["z"], theirs["z"], **CLOSE)
    assert mine["W"].shape[2] == 5
    torch.testing.assert_close(thin.forward(last, mine), full.forward(last, theirs), **CLOSE)
    assert torch.equal(armt(backbone, trained=False, value_width=5).output, torch.zeros_like(thin.output))


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_is_the_papers_recurrence(family):
    """Transformers' own forward, with hooks that read before each layer and write after it by the loops above."""
    backbone = FAMILIES[family]()
    model = armt(backbone, segment_length=8)
    modules = backbone.model.base_model.h if family == "gpt2" else backbone.model.base_model.layers
    W, z = (model.initial_state(2)[name].clone() for name in ("W", "z"))
    owns = [Projections(*(p[layer].detach() for p in model._projections())) for layer in range(len(modules))]

    def before(layer):
        def hook(_, args):
            read = naive_recall(args[0], W[:, layer], z[:, layer], owns[layer], model.config.epsilon)
            return (args[0] + read, *args[1:])

        return hook

    def after(layer):
        def hook(_, args, out):
            written = naive_memorise(out[:, -3:], W[:, layer], z[:, layer], owns[layer], model.config.epsilon)
            W[:, layer], z[:, layer] = written

        return hook

    for layer, module in enumerate(modules):
        module.register_forward_pre_hook(before(layer))
        module.register_forward_hook(after(layer))
    text = tokens(model, 2, 24)
    with torch.no_grad():
        logits = []
        for segment in text.split(8, dim=1):
            x = torch.cat([backbone.model.get_input_embeddings()(segment), model.memory.expand(2, -1, -1)], dim=1)
            logits.append(backbone.model(inputs_embeds=x, use_cache=False).logits[:, :8])
        for module in modules:
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
        assert_same_state(model.read(text, model.initial_state(2)), MemoryState({"W": W, "z": z}))
        past = model.read(text[:, :16], model.initial_state(2))
        torch.testing.assert_close(model.forward(text[:, 16:], past), logits[2], **CLOSE)


# ---- diagonals


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_reading_along_diagonals_is_reading_in_order(family, segments):
    backbone = FAMILIES[family](**{"num_hidden_layers": 3} if family == "llama" else {"n_layer": 3})
    ordered, diagonal = armt(backbone), armt(backbone, diagonals=True)
    text = tokens(ordered, 2, segments * 12)
    with torch.no_grad():
        past = ordered.read(tokens(ordered, 2, 12, 7), ordered.initial_state(2))
    states, grads = [], []
    for model in (ordered, diagonal):
        state = model.read(text, past)
        named = dict(model.named_parameters())
        grad = torch.autograd.grad(state["W"].square().sum(), list(named.values()), allow_unused=True)
        states.append(state)
        grads.append(dict(zip(named, grad, strict=True)))
    assert_same_state(states[1], states[0])
    for name, expected in grads[0].items():
        if expected is None:
            assert grads[1][name] is None or not grads[1][name].any(), name
        else:
            torch.testing.assert_close(grads[1][name], expected, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


# ---- what a user relies on


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_memory_leaves_the_backbone_as_it_was(family):
    model = armt(FAMILIES[family](), trained=False)
    text = tokens(model, 2, 36)
    with torch.no_grad():
        state = model.read(text[:, :24], model.initial_state(2))
        assert float(state["z"].max()) > 0
        torch.testing.assert_close(model.forward(text[:, 24:], state), model.backbone.model(text[:, 24:]).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_different_pasts_share_a_batch(family):
    model = armt(FAMILIES[family]())
    text = tokens(model, 1, 12, 4)
    with torch.no_grad():
        pasts = [model.read(tokens(model, 1, n * 12, n), model.initial_state()) for n in (0, 1, 3)]
        together = model.forward(text.expand(3, -1), MemoryState.stack(pasts))
        alone = torch.cat([model.forward(text, past) for past in pasts])
    torch.testing.assert_close(together, alone, **CLOSE)
    torch.testing.assert_close(alone[:1], model.backbone.model(text).logits)  # nothing to read in a first segment
    assert float((alone[0] - alone[1]).abs().max()) > 1e-3


def test_every_parameter_of_the_memory_learns_from_a_later_segment():
    model = armt(llama())
    text = tokens(model, 1, 36)
    state = model.read(text[:, :24], model.initial_state())
    model.forward(text[:, 24:], state)[0, -1].logsumexp(-1).backward()
    own = {name: p for name, p in model.named_parameters() if not name.startswith("backbone.")}
    assert set(own) == {"memory", "query", "key", "value", "gate"}
    for name, parameter in own.items():
        assert parameter.grad is not None, name
        assert bool((parameter.grad.flatten(1).abs().amax(1) > 0).all()), name  # in every layer


def test_the_memory_stays_in_float32_under_a_bfloat16_backbone():
    model = armt(llama(dtype=torch.bfloat16))
    text = tokens(model, 1, 36)
    with torch.no_grad():
        state = model.read(text[:, :24], model.initial_state())
        assert {state[name].dtype for name in state} == {torch.float32}
        cache, logits = model.open(state, text[:, 24:30])
        assert logits.dtype == torch.bfloat16
        model.step(cache, text[:, 30])
        assert model.close(cache)["W"].dtype == torch.float32


def test_closing_writes_nothing_into_the_cache():
    model = armt(llama())
    with torch.no_grad():
        cache, _ = model.open(model.initial_state(2), tokens(model, 2, 5))
        before = {name: tensor.clone() for name, tensor in cache.tensors.items()}
        model.close(cache)
    assert set(before) == {"kv", "W", "z"}
    assert all(torch.equal(cache[name], before[name]) for name in before)


def test_a_state_has_the_promised_size():
    state = armt(gpt2(dtype=torch.float32), memory_width=8).initial_state(2)
    assert state.nbytes == 2 * 2 * (48 * 48 + 48) * 4  # rows · layers · (D·K + K) · bytes


def test_invalid_settings_are_refused_at_construction():
    with pytest.raises(ConfigError, match=r"memory_tokens=12: must be smaller than segment_length=12"):
        armt(llama(), memory_tokens=12)
    with pytest.raises(ConfigError, match=r"segment_length \+ memory_tokens = 129 exceeds .* 128 positions"):
        armt(llama(), segment_length=126)
    armt(llama(), segment_length=125)
    with pytest.raises(ConfigError, match="diagonals=True: must be false"):
        armt(gpt2(scale_attn_by_inverse_layer_idx=True), diagonals=True)
    armt(gpt2(scale_attn_by_inverse_layer_idx=True))
    for bad in ({"memory_tokens": 0}, {"memory_width": 1}, {"epsilon": 0.0}, {"memory": 3}):
        with pytest.raises(ValidationError, match=next(iter(bad))):
            ARMTConfig(**bad)
    backbone = llama()
    backbone.model.config._attn_implementation = "flex_attention"
    with pytest.raises(BackboneError, match="flex_attention"):
        armt(backbone)
