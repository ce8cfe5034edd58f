"""Tests that every memory must pass. A memory's test module derives `class TestX(MemoryContract)` and builds its model.

Everything runs on tiny random models in float64, so that results can be compared to 1e-9 where the order of additions
may differ, and bit for bit where it may not.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everlong_lab.tasks.greedy import answer
from everlong_models.backbone.cache import Cache, CacheSlots
from everlong_models.errors import StateNotFinite, StateShape, TokenError
from everlong_models.kernels.yield_point import at_yield_points
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState, decode_state, encode_state

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def tokens(model: SegmentReader, rows: int, length: int, seed: int = 0) -> Tensor:
    """Random token ids (rows, length)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.vocab_size, (rows, length), generator=generator)


def assert_same_state(a: MemoryState, b: MemoryState, exactly: bool = False, close: dict[str, float] = CLOSE) -> None:
    """Equal names and tensors: within the tolerance `close`, or bit for bit."""
    assert set(a) == set(b)
    for name in a:
        if exactly or not a[name].is_floating_point():
            assert torch.equal(a[name], b[name]), name
        else:
            torch.testing.assert_close(a[name], b[name], **close, msg=lambda text, name=name: f"{name}: {text}")


class RequireDevice(TorchDispatchMode):
    """Fails on any operation with a tensor of another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        elsewhere = {
            str(tensor.device)
            for tensor in tree_leaves((args, kwargs, result))
            if isinstance(tensor, Tensor) and tensor.device.type != self.device
        }
        assert not elsewhere, f"{operation} on {elsewhere}"
        return result


class MemoryContract:
    """Override the fixture `model`: float64, in eval mode, a segment length of at least 8, a vocabulary of at least 32."""

    pauses: ClassVar[int] = 2
    """How often a pass at least pauses for other work on the device."""
    close: ClassVar[dict[str, float]] = CLOSE
    """How near two results must be where the order of additions may differ."""
    autocast: ClassVar[bool] = True
    """Whether the memory can be trained under autocast on a CPU."""

    @pytest.fixture
    def model(self) -> SegmentReader:
        raise AssertionError("a test class of a memory builds its model")

    def moved(self, model: SegmentReader, device: str) -> SegmentReader:
        """Return the model on another device."""
        return model.to(device)

    @pytest.fixture(autouse=True)
    def _no_grad(self):
        with torch.no_grad():
            yield

    def test_is_a_memory_model(self, model: SegmentReader) -> None:
        assert isinstance(model, SegmentReader)

    @pytest.mark.parametrize("chunks", [[1, 1, 1, 1, 1], [2, 3], [4, 1], [1, 0, 4]])
    def test_reading_in_any_chunking_gives_the_same_state(self, model: SegmentReader, chunks: list[int]) -> None:
        text = tokens(model, 2, 5 * model.segment_length)
        whole = model.read(text, model.initial_state(2))
        state = model.initial_state(2)
        for part in text.split([n * model.segment_length for n in chunks], dim=1):
            state = model.read(part, state)
        assert_same_state(state, whole, close=self.close)

    def test_under_autocast_a_state_keeps_its_types(self, model: SegmentReader) -> None:
        """As in training on a GPU: a segment's state is the next segment's input."""
        if not self.autocast:
            pytest.skip("not trained, or its operations are not autocast on a CPU")
        model = model.float()
        text, state = tokens(model, 2, 3 * model.segment_length), model.initial_state(2)
        types = {name: tensor.dtype for name, tensor in state.tensors.items()}
        with torch.autocast("cpu", torch.bfloat16):
            for segment in text.split(model.segment_length, dim=1):
                _, state, _ = model.training_segment(segment, state)
                assert {name: tensor.dtype for name, tensor in state.tensors.items()} == types
            state = model.read(text, state)
            # Evaluation generates answers, which continue into the next segment.
            (generated,) = answer(model, model.initial_state(1), text[:1, :3], most=model.segment_length, ends=())
        assert len(generated) == model.segment_length
        assert {name: tensor.dtype for name, tensor in state.tensors.items()} == types

    def test_decode_steps_between_the_layers_of_a_pass_change_nothing(self, model: SegmentReader) -> None:
        """Bit for bit, for both."""
        S = model.segment_length
        text, other = tokens(model, 2, 2 * S, 1), tokens(model, 1, S, 2)

        def begin() -> Cache:
            return model.open(model.initial_state(1), other[:, :1])[0]

        cache = begin()
        undisturbed = model.read(text, model.initial_state(2)), [model.step(cache, other[:, t]) for t in range(1, S)]
        cache, steps = begin(), []

        def step() -> None:
            if len(steps) < S - 1:
                steps.append(model.step(cache, other[:, len(steps) + 1]))

        with at_yield_points(step):
            state = model.read(text, model.initial_state(2))
        assert_same_state(state, undisturbed[0], exactly=True)
        assert len(steps) >= self.pauses
        assert all(map(torch.equal, steps, undisturbed[1]))

    def test_reading_depends_on_the_text(self, model: SegmentReader) -> None:
        a = model.read(tokens(model, 1, 2 * model.segment_length, 1), model.initial_state())
        b = model.read(tokens(model, 1, 2 * model.segment_length, 2), model.initial_state())
        assert a.digest() != b.digest()

    @pytest.mark.parametrize("segments", [0, 1, 3])
    def test_decoding_token_by_token_equals_the_full_forward(self, model: SegmentReader, segments: int) -> None:
        S = model.segment_length
        state = model.read(tokens(model, 2, segments * S, 1), model.initial_state(2))
        segment = tokens(model, 2, S, 2)
        full = model.forward(segment, state)
        assert full.shape == (2, S, model.vocab_size)
        for prompt in (1, S // 2, S):
            cache, logits = model.open(state, segment[:, :prompt])
            torch.testing.assert_close(logits, full[:, prompt - 1], **self.close)
            for t in range(prompt, S):
                torch.testing.assert_close(model.step(cache, segment[:, t]), full[:, t], **self.close)
            assert cache.lengths.tolist() == [S, S]
            assert_same_state(model.close(cache), model.read(segment, state), close=self.close)

    @pytest.mark.parametrize("segments", [0, 2])
    def test_a_segment_is_forward_and_read_at_once(self, model: SegmentReader, segments: int) -> None:
        S = model.segment_length
        state = model.read(tokens(model, 2, segments * S, 1), model.initial_state(2))
        text = tokens(model, 2, S, 2)
        logits, after = model.segment(text, state)
        torch.testing.assert_close(logits, model.forward(text, state), **self.close)
        assert_same_state(after, model.read(text, state), close=self.close)
        with pytest.raises(TokenError, match=str(S)):
            model.segment(tokens(model, 2, S + 1), state)

    def test_the_past_matters_to_the_answer_only_through_the_state(self, model: SegmentReader) -> None:
        S = model.segment_length
        state = model.read(tokens(model, 1, 2 * S, 1), model.initial_state())
        segment = tokens(model, 1, S, 2)
        copy = MemoryState({name: state[name].clone() for name in state})
        assert torch.equal(model.forward(segment, state), model.forward(segment, copy))

    def test_a_row_does_not_depend_on_other_rows(self, model: SegmentReader) -> None:
        S = model.segment_length
        text = tokens(model, 3, 2 * S)
        together = model.read(text, model.initial_state(3))
        for row, alone in enumerate(together.split()):
            assert_same_state(alone, model.read(text[row : row + 1], model.initial_state()), close=self.close)
        # Rows of different pasts and lengths decode side by side, join and leave.
        pasts = [model.read(text[:1, : n * S], model.initial_state()) for n in (0, 1, 2)]
        segment = tokens(model, 1, S, 5)
        starts = (1, S // 2, S - 2)
        opened = [model.open(past, segment[:, :n]) for past, n in zip(pasts, starts, strict=True)]
        slots = CacheSlots()
        for cache, _ in opened:
            slots.add(cache)
        logits = model.step(slots.rows, segment[0, list(starts)])
        for row, (past, n) in enumerate(zip(pasts, starts, strict=True)):
            torch.testing.assert_close(logits[row], model.forward(segment[:, : n + 1], past)[0, -1], **self.close)
        slots.remove(1)
        slots.add(model.open(pasts[1], segment[:, :3])[0])
        slots.remove(0)
        assert slots.rows.lengths.tolist() == [3, S - 1]
        logits = model.step(slots.rows, segment[0, [3, S - 1]])
        torch.testing.assert_close(logits[0], model.forward(segment[:, :4], pasts[1])[0, -1], **self.close)
        torch.testing.assert_close(logits[1], model.forward(segment, pasts[2])[0, -1], **self.close)
        assert_same_state(model.close(slots.rows.slots(1, 2)), model.read(segment, pasts[2]), close=self.close)

    def test_a_step_does_not_wait_for_the_device(self, model: SegmentReader) -> None:
        """So that it can be captured as a CUDA graph. The device "meta" has shapes without values: reading one raises."""
        S = model.segment_length
        state = model.read(tokens(model, 2, 2 * S, 1), model.initial_state(2))
        cache, logits = model.open(state, tokens(model, 2, S // 2, 2))
        model = self.moved(model, "meta")
        moved = Cache({name: tensor.to("meta") for name, tensor in cache.tensors.items()}, cache.lengths.to("meta"))
        with RequireDevice("meta"):
            stepped = model.step(moved, torch.empty(2, dtype=torch.int64, device="meta"))
        assert (stepped.shape, stepped.device.type) == (logits.shape, "meta")

    @pytest.mark.parametrize(("wrong", "count"), [(0, 3), (1, 2), (2, 4), (3, 3)])
    def test_steps_that_are_taken_back_leave_nothing_behind(self, model: SegmentReader, wrong: int, count: int) -> None:
        """Rows of different pasts and lengths verify `count` tokens, of which the last `wrong` are taken back: then all is as after
        single steps with the others."""
        if not model.can_rewind:
            pytest.skip("its cache has a state that each token changes")
        S, kept = model.segment_length, count - wrong
        pasts = [model.read(tokens(model, 1, n * S, 1), model.initial_state()) for n in (0, 2)]
        segment, starts = tokens(model, 2, S, 2), (1, S - 6)
        slots, twins = CacheSlots(), CacheSlots()
        for row, (past, start) in enumerate(zip(pasts, starts, strict=True)):
            for each in (slots, twins):
                each.add(model.open(past, segment[row : row + 1, :start])[0])

        def columns(first: int, n: int) -> Tensor:
            return torch.stack([segment[row, start + first : start + first + n] for row, start in enumerate(starts)])

        guessed = columns(0, count)
        guessed[:, kept:] = (guessed[:, kept:] + 1) % model.vocab_size
        verified = model.steps(slots.rows, guessed)
        assert verified.shape == (2, count, model.vocab_size)
        slots.rows.lengths.sub_(wrong)
        for at in range(kept):
            single = model.step(twins.rows, columns(at, 1)[:, 0])
            torch.testing.assert_close(verified[:, at], single, **self.close)
        for at in range(kept, 5):
            single = model.step(twins.rows, columns(at, 1)[:, 0])
            torch.testing.assert_close(model.step(slots.rows, columns(at, 1)[:, 0]), single, **self.close)
        assert torch.equal(slots.rows.lengths, twins.rows.lengths)
        assert_same_state(model.close(slots.rows), model.close(twins.rows), close=self.close)

    def test_several_steps_at_once_do_not_wait_for_the_device(self, model: SegmentReader) -> None:
        """As one step: they are captured as a CUDA graph, too."""
        state = model.initial_state(2)
        cache, _ = model.open(state, tokens(model, 2, 2, 2))
        model = self.moved(model, "meta")
        moved = Cache({name: tensor.to("meta") for name, tensor in cache.tensors.items()}, cache.lengths.to("meta"))
        with RequireDevice("meta"):
            stepped = model.steps(moved, torch.empty(2, 3, dtype=torch.int64, device="meta"))
        assert stepped.shape == (2, 3, model.vocab_size)

    def test_save_load_continue_equals_never_having_stopped(self, model: SegmentReader) -> None:
        S = model.segment_length
        text = tokens(model, 1, 4 * S)
        middle = model.read(text[:, : 2 * S], model.initial_state())
        restored = decode_state(encode_state(middle, "m"), "m")
        assert restored.digest() == middle.digest()
        assert_same_state(model.read(text[:, 2 * S :], restored), model.read(text[:, 2 * S :], middle), exactly=True)

    def test_size_does_not_depend_on_length(self, model: SegmentReader) -> None:
        S = model.segment_length
        start = model.initial_state()
        end = model.read(tokens(model, 1, 9 * S), start)
        assert end.nbytes == start.nbytes
        assert {name: end[name].shape for name in end} == {name: start[name].shape for name in start}
        assert len(encode_state(end, "m")) == len(encode_state(start, "m"))

    @pytest.mark.parametrize("segments", [0, 1, 7])
    def test_a_view_reports_what_was_read_and_the_capacity(self, model: SegmentReader, segments: int) -> None:
        S = model.segment_length
        read = segments * S
        state = model.read(tokens(model, 1, read, 1), model.initial_state())
        before = state.digest()
        for T in (0, 1, S):
            view = model.view(state, tokens(model, 1, T, 2), read)
            assert (view.tokens, view.segments, view.open, view.bytes) == (read, segments, T, state.nbytes)
            for part in view.parts:
                assert 0 <= part.start <= part.end <= read
                assert 0 <= part.used <= part.slots + 1e-9
                assert (part.used > 0) == (part.end > part.start)
                assert part.age >= T
                assert part.change is None or 0 <= part.change < float("inf")
            for layer in view.layers:
                assert layer.edges[0] == 0
                assert list(layer.edges) == sorted(layer.edges)
                assert (layer.attention is None) == (T == 0)
                assert layer.attention is None or abs(sum(layer.attention) - 1) < 1e-9
                assert all(0 <= phrase.start < phrase.end <= read for phrase in layer.phrases)
                assert sum(phrase.space for phrase in layer.phrases) <= 1 + 1e-9
        assert state.digest() == before

    def test_a_view_refuses_a_bad_state_or_segment(self, model: SegmentReader) -> None:
        state, S = model.initial_state(2), model.segment_length
        with pytest.raises(StateShape, match="one row"):
            model.view(state, tokens(model, 2, 3), 0)
        with pytest.raises(TokenError, match=str(S)):
            model.view(model.initial_state(), tokens(model, 1, S + 1), 0)
        with pytest.raises(TokenError, match="token ids"):
            model.view(model.initial_state(), torch.full((1, 1), model.vocab_size), 0)

    def test_inputs_are_not_changed(self, model: SegmentReader) -> None:
        S = model.segment_length
        state = model.read(tokens(model, 2, S, 1), model.initial_state(2))
        before, text = state.digest(), tokens(model, 2, S, 2)
        copy = text.clone()
        model.read(text, state)
        model.forward(text, state)
        cache, _ = model.open(state, text[:, :2])
        model.step(cache, text[:, 2])
        lengths = cache.lengths.clone()
        first = model.close(cache)
        assert torch.equal(cache.lengths, lengths)
        assert_same_state(model.close(cache), first, exactly=True)
        assert state.digest() == before
        assert torch.equal(text, copy)

    def test_a_state_with_nan_or_of_another_shape_is_refused(self, model: SegmentReader) -> None:
        S = model.segment_length
        good = model.initial_state()
        text = tokens(model, 1, S)
        for name in good:
            if good[name].is_floating_point() and good[name].numel():
                for poison in (float("nan"), float("inf")):
                    bad = good[name].clone()
                    bad.view(-1)[-1] = poison
                    with pytest.raises(StateNotFinite, match=name):
                        model.read(text, MemoryState({**good.tensors, name: bad}))
                    with pytest.raises(StateNotFinite, match=name):
                        model.open(MemoryState({**good.tensors, name: bad}), text)
        with pytest.raises(StateShape):
            model.read(text, MemoryState({"other": torch.zeros(1, 3)}))

    def test_bad_tokens_are_refused(self, model: SegmentReader) -> None:
        S, state = model.segment_length, model.initial_state()
        with pytest.raises(TokenError, match=str(S)):
            model.read(tokens(model, 1, S + 1), state)
        with pytest.raises(TokenError, match="token ids"):
            model.read(torch.full((1, S), model.vocab_size), state)
        with pytest.raises(TokenError, match="rows"):
            model.read(tokens(model, 2, S), state)
        with pytest.raises(TokenError, match=str(S)):
            model.open(state, tokens(model, 1, S + 1))
        with pytest.raises(TokenError):
            model.open(state, tokens(model, 1, 0))
