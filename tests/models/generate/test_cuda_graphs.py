"""A recorded step is the step, whoever comes and goes, a recorded segment is read; and what cannot be recorded is done without.

A tape that plays operations again at the same addresses stands for a CUDA graph. That a step asks the device
nothing, without which it could not be one, is among the laws of the memories.
"""

from __future__ import annotations

import gc
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong_models.backbone.cache import Cache, CacheSlots
from everlong_models.errors import StateNotFinite, TokenError
from everlong_models.generate import cuda_graphs as graphs
from everlong_models.generate.cuda_graphs import ReadGraphs, StepGraphs
from everlong_models.kernels.yield_point import at_yield_points
from everlong_models.memories.armt import ARMT, ARMTConfig
from everlong_models.memories.infinite.pretrained import InfiniteConfig, InfiniteFormer
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.state import MemoryState
from everlong_models.memories.window import Window, WindowConfig
from tests.models.fake_cuda_graph import record
from tests.models.memory_contract import assert_same_state, tokens
from tests.models.tiny import llama

S = 12
MEMORIES = {
    "rmt": lambda: RMT(RMTConfig(segment_length=S, memory_tokens=3), llama()),
    "window": lambda: Window(WindowConfig(segment_length=S, sinks=2, window=7), llama()),
    "sticky": lambda: InfiniteFormer(
        InfiniteConfig(
            segment_length=S, basis=10, widths=(0.05, 0.1), samples=9, bins=7, output="random", sticky="independent"
        ),
        llama(),
    ),
    "transformer_xl": lambda: TransformerXL(
        TransformerXLConfig(segment_length=S, width=32, layers=2, heads=2, memory_length=8, vocab_size=97)
    ).double(),
}


@pytest.fixture(scope="module", params=MEMORIES)
def memory(request):
    torch.manual_seed(0)
    return MEMORIES[request.param]().eval()


def written(cache: Cache, name: str) -> list[torch.Tensor]:
    """What each row has: where its context's length is told, keys and values behind the segment are anything."""
    if name != "kv" or "before" not in cache.tensors:
        return list(cache[name])
    reached = (cache["before"] + cache.lengths).tolist()
    return [kv[..., :length, :] for kv, length in zip(cache["kv"], reached, strict=True)]


@settings(max_examples=10, deadline=None)
@given(moves=st.lists(st.one_of(st.integers(1, S - 1), st.integers(-5, -1), st.just(0)), min_size=1, max_size=16))
def test_a_captured_step_equals_a_step(memory, moves: list[int]) -> None:
    """Above 0: a row with so many tokens comes; below: that one leaves, from the end; 0, and whenever one is full: a step."""
    with torch.no_grad():
        recorded, plain = CacheSlots(keep_allocated=True), CacheSlots()
        step, texts = StepGraphs(memory.step, record), iter(range(10**6))
        for move in [*moves, 0, 0]:
            if move > 0:
                past = memory.read(tokens(memory, 1, S, next(texts)), memory.initial_state())
                cache, _ = memory.open(past, tokens(memory, 1, move, next(texts)))
                recorded.add(cache)
                plain.add(cache)
            elif move < 0 and len(plain):
                at = max(0, len(plain) + move)
                recorded.remove(at)
                plain.remove(at)
            elif move == 0 and len(plain):
                chosen = tokens(memory, len(plain), 1, next(texts))[:, 0]
                expected = memory.step(plain.rows, chosen)
                torch.testing.assert_close(step(recorded, chosen), expected, rtol=1e-9, atol=1e-9)
                for name in plain.rows.tensors:
                    for one, other in zip(written(recorded.rows, name), written(plain.rows, name), strict=True):
                        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
                assert torch.equal(recorded.rows.lengths, plain.rows.lengths)
                for row in reversed([row for row, n in enumerate(plain.rows.lengths.tolist()) if n == S]):
                    recorded.remove(row)
                    plain.remove(row)


def add(memory, slots: CacheSlots, length: int = 2) -> None:
    slots.add(memory.open(memory.initial_state(), tokens(memory, 1, length, length))[0])


def test_a_step_is_captured_once_for_each_size_and_again_after_rows_have_moved(memory) -> None:
    slots, sizes = CacheSlots(keep_allocated=True), []

    def counted(run):
        replay, logits = record(run)
        sizes.append(len(logits))
        return replay, logits

    step = StepGraphs(memory.step, counted)
    with torch.no_grad():
        for rows in (1, 2, 3, 4, 4):
            while len(slots) < rows:
                add(memory, slots)
            for _ in range(2):
                step(slots, torch.zeros(rows, dtype=torch.int64))
        assert sizes == [1, 2, 4]  # three rows use the graph of four
        while len(slots) > 1:
            slots.remove(0)
        step(slots, torch.zeros(1, dtype=torch.int64))
        assert sizes == [1, 2, 4, 1]  # the first graph of one row used other addresses
        slots.remove(0)
        add(memory, slots)
        step(slots, torch.zeros(1, dtype=torch.int64))
        assert sizes == [1, 2, 4, 1]  # the places did not move


def test_a_step_that_cannot_be_captured_runs_without_a_graph_and_is_logged_once(
    memory, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(run):
        raise torch.OutOfMemoryError("no room for a graph")

    slots, plain = CacheSlots(keep_allocated=True), CacheSlots()
    step = StepGraphs(memory.step, refuses)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for each in (slots, plain):
            add(memory, each, 3)
        for token in (5, 6):
            chosen = torch.tensor([token])
            assert torch.equal(step(slots, chosen), memory.step(plain.rows, chosen))
    assert [record.getMessage() for record in caplog.records] == [
        "cannot capture a decode step of 1 rows as a CUDA graph, running it without: no room for a graph"
    ]


def test_a_former_row_does_not_write_beyond_its_segment(memory) -> None:
    """A place that was left with a full segment is stepped again, beside others, many times."""
    slots = CacheSlots(keep_allocated=True)
    step = StepGraphs(memory.step, record)
    with torch.no_grad():
        for length in (2, 2, 2, S):
            add(memory, slots, length)
        slots.remove(3)
        for _ in range(S - 2):
            step(slots, torch.zeros(3, dtype=torch.int64))
        places: Cache = slots.allocated
        assert places.lengths.tolist() == [S, S, S, 1]


READERS = {
    "rmt": lambda: optimized(RMT(RMTConfig(segment_length=S, memory_tokens=3), llama())),
    "armt": lambda: ARMT(ARMTConfig(segment_length=S, memory_tokens=3), llama()),
    "transformer_xl": MEMORIES["transformer_xl"],
}


def optimized(memory: RMT) -> RMT:
    assert memory.backbone.optimize() is None
    return memory


class TestReadGraphs:
    @pytest.fixture(params=READERS)
    def reader(self, request):
        torch.manual_seed(0)
        memory = READERS[request.param]().eval()
        assert memory.graph_capturable
        return memory

    def test_a_captured_segment_equals_a_read(self, reader) -> None:
        made = []

        def counted(run):
            replay, after = record(run)
            made.append(len(after[0]))
            return replay, after

        read = ReadGraphs(reader, counted)
        with torch.no_grad():
            for rows in (1, 3, 4, 1, 3):
                state = expected = reader.initial_state(rows)
                states = []
                for segment in range(3):
                    text = tokens(reader, rows, S, 10 * rows + segment)
                    state, expected = read(text, state), reader.read(text, expected)
                    states.append((state, state.digest()))
                    assert_same_state(state, expected)
                # What came before is a value, which no later reading changes.
                assert [digest for _, digest in states] == [kept.digest() for kept, _ in states]
        assert made == [1, 4]  # three rows use the graph of four

    def test_only_full_segments_of_few_rows_are_captured(self, reader, monkeypatch) -> None:
        """A segment of three rows would use the graph of four."""
        weights = sum(weight.numel() for weight in reader.parameters())
        monkeypatch.setattr(graphs, "MAX_CAPTURED_WORK", 3 * weights * S)

        def refuses(run):
            raise AssertionError("recorded")

        read = ReadGraphs(reader, refuses)
        with torch.no_grad():
            for rows, length in ((3, S), (1, 2 * S), (1, 0)):
                text, state = tokens(reader, rows, length), reader.initial_state(rows)
                assert_same_state(read(text, state), reader.read(text, state), exactly=True)

    def test_bad_input_raises_as_without_graphs(self, reader) -> None:
        read, state = ReadGraphs(reader, record), reader.initial_state()
        with torch.no_grad():
            for _ in range(2):  # before a graph is captured, and after
                with pytest.raises(TokenError, match=r"must be in \[0, 97\), got 97…97"):
                    read(torch.full((1, S), 97), state)
                name, tensor = next(
                    (name, tensor) for name, tensor in state.tensors.items() if tensor.is_floating_point()
                )
                with pytest.raises(StateNotFinite, match=name):
                    read(
                        tokens(reader, 1, S),
                        MemoryState({**state.tensors, name: torch.full_like(tensor, float("nan"))}),
                    )
                read(tokens(reader, 1, S), state)

    def test_a_segment_that_cannot_be_captured_is_read_without_a_graph_and_logged_once(self, reader, caplog) -> None:
        def refuses(run):
            raise torch.OutOfMemoryError("no room for a graph")

        read, text, state = ReadGraphs(reader, refuses), tokens(reader, 2, S), reader.initial_state(2)
        with torch.no_grad(), caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert_same_state(read(text, state), reader.read(text, state), exactly=True)
        assert [record.getMessage() for record in caplog.records] == [
            "cannot capture a segment of 2 rows as a CUDA graph, running it without: no room for a graph"
        ]

    def test_yield_points_are_off_during_a_capture(self, reader) -> None:
        """Otherwise a due decode step would run between the layers and be captured, too."""
        read, due = ReadGraphs(reader, record), []
        with torch.no_grad(), at_yield_points(lambda: due.append(1)):
            read(tokens(reader, 1, S), reader.initial_state())
        assert not due


def test_memories_that_wait_for_the_device_are_not_recordable() -> None:
    assert not RMT(RMTConfig(segment_length=S, memory_tokens=3), llama()).graph_capturable, (
        "transformers' forward looks at positions"
    )
    assert not MEMORIES["sticky"]().graph_capturable, "how many segments a row has read decides what is computed"


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_collection_is_off_during_a_capture(collecting: bool) -> None:
    """Freeing an old graph during a capture damages the new one, as observed on a GPU."""
    memory, seen = RMT(RMTConfig(segment_length=12, memory_tokens=3), llama()), []

    def fails(run: object) -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("as a GPU without room does")

    was = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        slots = CacheSlots(keep_allocated=True)
        with torch.inference_mode():
            slots.add(memory.open(memory.initial_state(1), tokens(memory, 1, 3))[0])
            StepGraphs(memory.step, fails)(slots, torch.tensor([1]))
        assert seen == [False]
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if was else gc.disable)()
