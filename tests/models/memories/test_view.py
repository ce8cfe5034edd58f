"""What each memory tells of itself: the tokens that it holds, how full it is, what would change it, what it attends to."""

from __future__ import annotations

import pytest
import torch

from everlong_models.memories.armt import ARMT, ARMTConfig
from everlong_models.memories.infinite import sticky
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from everlong_models.memories.infinite.scratch import InfiniteScratch, InfiniteScratchConfig
from everlong_models.memories.relative.compressive import Compressive, CompressiveConfig
from everlong_models.memories.relative.lamemo import LaMemo, LaMemoConfig
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart, effective_rank, relative_change
from everlong_models.memories.window import Window, WindowConfig
from tests.models.memory_contract import tokens
from tests.models.naive_relative import SMALL, random_weights
from tests.models.tiny import llama

INFINITE = {"segment_length": 12, "basis": 10, "widths": (0.05, 0.1), "samples": 9, "output": "random"}


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def viewed(model, read: int, open: int):
    """Return the view after `read` tokens, with `open` more in the open segment; the state; all tokens."""
    text = tokens(model, 1, read + open)
    state = model.read(text[:, :read], model.initial_state())
    return model.view(state, text[:, read:], read), state, text


def test_effective_rank_counts_equal_directions():
    random = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = torch.stack(
        [torch.eye(9, 6), torch.ones(9, 6), torch.zeros(9, 6), torch.diag(doubles(3, 4, 0)).new_zeros(9, 6)]
    )
    matrices[3, 0, 0], matrices[3, 1, 1] = 3, 4
    assert effective_rank(matrices).tolist() == pytest.approx([6, 1, 0, 25**2 / (9**2 + 16**2)])
    s = torch.linalg.svdvals(random)
    for matrix in (random, random.T, 1e-9 * random):
        assert float(effective_rank(matrix)) == pytest.approx(float(s.square().sum() ** 2 / s.pow(4).sum()))


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_relative_change():
    old = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert relative_change(old, old + torch.tensor([0.0, 1.0])) == [pytest.approx(0.2), None]


def test_window_tells_which_tokens_it_holds():
    model = Window(WindowConfig(segment_length=12, sinks=5, window=17), llama())
    view, state, text = viewed(model, 36, 7)
    assert view.parts == (MemoryPart("sinks", 0, 5, 5, 5, 31 + 7), MemoryPart("window", 19, 36, 17, 17, 7))
    assert torch.equal(state["window"][0], text[0, 19:36])
    assert torch.equal(state["sinks"][0], text[0, :5])
    assert viewed(model, 12, 0)[0].parts == (MemoryPart("sinks", 0, 5, 5, 5, 7), MemoryPart("window", 5, 12, 17, 7, 0))
    alone = Window(WindowConfig(segment_length=12, sinks=0, window=17), llama())
    assert viewed(alone, 12, 3)[0].parts == (MemoryPart("window", 0, 12, 17, 12, 3),)


@pytest.mark.parametrize("read", [8, 24])
def test_models_from_scratch_tell_which_positions_they_hold(read: int):
    held = min(read, 13)
    expected = (MemoryPart("memory", read - held, read, 13, held, 3),)
    lamemo = random_weights(LaMemo(LaMemoConfig(**SMALL, memory_length=13)))
    view, state, text = viewed(lamemo, read, 3)
    assert view.parts == expected
    assert torch.equal(state["tokens"][0, 13 - held :], text[0, read - held : read])
    xl = random_weights(TransformerXL(TransformerXLConfig(**SMALL, memory_length=13)))
    assert viewed(xl, read, 3)[0].parts == expected
    none = random_weights(TransformerXL(TransformerXLConfig(**SMALL, memory_length=0)))
    assert viewed(none, read, 3)[0].parts == ()


def test_compressive_reports_compressed_positions():
    config = CompressiveConfig(**SMALL, memory_length=6, compressed_length=4, compression_rate=3)
    model = random_weights(Compressive(config))
    # After 8 tokens one group of 3 has left; after 32 nine groups, of which the last four are kept.
    assert viewed(model, 8, 2)[0].parts == (
        MemoryPart("compressed", 0, 3, 4, 1, 2),
        MemoryPart("memory", 3, 8, 6, 5, 2),
    )
    assert viewed(model, 32, 0)[0].parts == (
        MemoryPart("compressed", 15, 27, 4, 4, 0),
        MemoryPart("memory", 27, 32, 6, 5, 0),
    )


def test_rmt_tells_what_the_open_segment_would_change():
    model = RMT(RMTConfig(segment_length=12, memory_tokens=4), llama())
    view, state, text = viewed(model, 24, 12)
    (part,) = view.parts
    after = model.read(text[:, 24:], state)["memory"]
    assert part.change == pytest.approx(float((after - state["memory"]).norm() / state["memory"].norm()), rel=1e-5)
    assert (part.start, part.end, part.slots, part.age, part.layer) == (0, 24, 4, 12, None)
    assert part.used == pytest.approx(float(effective_rank(state["memory"][0])))
    assert 1 <= part.used <= 4
    assert viewed(model, 24, 0)[0].parts[0].change is None
    assert viewed(model, 0, 5)[0].parts == (MemoryPart("memory", 0, 0, 4, 0.0, 5),)


def test_armt_tells_how_full_each_layers_matrix_is():
    model = ARMT(ARMTConfig(segment_length=12, memory_tokens=2, memory_width=4), llama())
    model.value.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    view, state, text = viewed(model, 12, 12)
    assert [part.layer for part in view.parts] == [0, 1]
    after = model.read(text[:, 12:], state)["W"]
    for layer, part in enumerate(view.parts):
        old, new = state["W"][0, layer], after[0, layer]
        assert part.slots == 24  # 6 times the memory's width; the backbone's is 48
        assert part.change == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-5)
        assert 1 < part.used <= 2 + 1e-9, "one segment writes two associations"
    five = torch.zeros_like(state["W"])
    five[0, 1, 3:8, 3:8] = torch.eye(5)
    full = model.view(MemoryState({**state.tensors, "W": five}), text[:, :3], 24)
    assert [part.used for part in full.parts] == pytest.approx([0, 5])
    assert full.parts[0].change is None
    assert {part.change for part in viewed(model, 0, 5)[0].parts} == {None}


@pytest.mark.parametrize("changes", [{}, {"tau": "k/(k+1)"}, {"sticky": "independent"}], ids=str)
def test_infinite_tells_what_the_open_segments_queries_attend_to(changes):
    model = InfiniteFormer(InfiniteConfig(**INFINITE, **changes), llama()).eval()
    view, state, text = viewed(model, 36, 5)
    assert view.parts == (MemoryPart("signal", 0, 36, 10, 10, 5),)
    densities = model._run_segment(text[:, 36:], state).densities
    spaces = model.memory.voronoi_cells(state.tensors, 36)
    for layer, density, space in zip(view.layers, densities, spaces, strict=True):
        mass = sticky.histogram(density.mean, density.variance, 128)[0]
        torch.testing.assert_close(doubles(*layer.attention), mass / mass.sum())
        torch.testing.assert_close(doubles(*layer.edges), space.before(torch.linspace(0, 1, 129).double()))
        assert layer.edges[-1] == 36
    other = model.view(state, tokens(model, 1, 5, 9), 36)
    assert other.layers[0].attention != view.layers[0].attention, "other queries attend elsewhere"
    assert [layer.edges for layer in other.layers] == [layer.edges for layer in view.layers]


def test_plain_infinite_gives_the_newest_segment_the_most_space_and_sticky_what_it_attended_to():
    plain = viewed(InfiniteFormer(InfiniteConfig(**INFINITE), llama()).eval(), 60, 0)[0]
    assert plain.layers[0].phrases[0].start >= 48
    assert plain.layers[0].edges[64] == 48  # τ = ½: the last of five segments has the upper half
    model = InfiniteFormer(InfiniteConfig(**INFINITE, sticky="stratified"), llama()).eval()
    for layer in range(2):  # every head looks at the first tenth of the signal
        model.memory[layer].bias[:, 0], model.memory[layer].bias[:, 1] = -2.9, -9.0
        model.memory[layer].affine.zero_()
    stuck = viewed(model, 60, 0)[0]
    past = [phrase for phrase in stuck.layers[1].phrases if phrase.end <= 48]
    assert past, "what is attended to at the beginning of the signal stays there"
    assert past[0].end <= 12


def test_infinite_from_scratch_counts_the_short_term_memory():
    config = {"segment_length": 12, "vocab_size": 40, "layers": 2, "heads": 2, "width": 16, "samples": 9, "basis": 10}
    for stick in ("off", "independent"):
        model = InfiniteScratch(InfiniteScratchConfig(**config, short_term=20, sticky=stick), torch.float64)
        assert viewed(model, 12, 3)[0].layers == ()
        view, state, _ = viewed(model, 48, 3)
        assert view.parts == (MemoryPart("signal", 0, 28, 10, 10, 3), MemoryPart("short_term", 28, 48, 20, 20, 3))
        assert int(state["segments"]) == 3  # of 4, 12 and 12 tokens
        for layer in view.layers:
            assert layer.edges[-1] == 28
            assert 16 in [round(edge, 6) for edge in layer.edges]
