"""`MemoryState` is a value, and its codec believes no byte that it did not write."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from everlong_models.errors import (
    EverlongModelError,
    StateAltered,
    StateError,
    StateNotFinite,
    StateOfOtherModel,
    StateShape,
    StateTruncated,
    StateVersion,
)
from everlong_models.memories.state import FORMAT_VERSION, MAGIC, MemoryState, decode_state, encode_state

HEADER = struct.calcsize("<8sIQ32s")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [*FLOATS, torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def state(rows: int = 2) -> MemoryState:
    generator = torch.Generator().manual_seed(rows)
    return MemoryState(
        {
            "memory": torch.randn(rows, 3, 4, generator=generator).to(torch.bfloat16),
            "seen": torch.arange(rows),
            "nothing": torch.zeros(rows, 0, 5),
        }
    )


def frame(payload: bytes, version: int = FORMAT_VERSION, magic: bytes = MAGIC) -> bytes:
    """A well-formed frame around any payload: what someone could write who knows the format."""
    return struct.pack("<8sIQ32s", magic, version, len(payload), hashlib.sha256(payload).digest()) + payload


def same(a: MemoryState, b: MemoryState) -> bool:
    return a.digest() == b.digest() and all(torch.equal(a[name], b[name]) for name in a) and set(a) == set(b)


class TestMemoryState:
    def test_rows_bytes_and_names(self):
        s = state(2)
        assert s.rows == 2
        assert list(s) == ["memory", "seen", "nothing"]
        assert s.nbytes == 2 * 3 * 4 * 2 + 2 * 8

    def test_stack_and_split_are_inverse(self):
        rows = [state(1), state(1).to("cpu"), MemoryState({k: v[:1] for k, v in state(2).tensors.items()})]
        together = MemoryState.stack(rows)
        assert together.rows == 3
        assert all(same(a, b) for a, b in zip(together.split(), rows, strict=True))
        assert same(MemoryState.stack(together.split()), together)
        assert same(MemoryState.stack([state(2), state(1)]).split()[2], state(1))

    def test_stack_leaves_its_parts_alone(self):
        part = state(1)
        before = part.digest()
        MemoryState.stack([part, part])["memory"].zero_()
        assert part.digest() == before

    @pytest.mark.parametrize(
        "other",
        [
            {"other": torch.zeros(1, 2)},
            {"a": torch.zeros(1, 3)},
            {"a": torch.zeros(1, 2, dtype=torch.float16)},
            {"a": torch.zeros(1, 2), "b": torch.zeros(1)},
        ],
        ids=["name", "shape", "dtype", "more"],
    )
    def test_stacking_different_states_is_refused(self, other):
        with pytest.raises(StateShape, match="the model needs"):
            MemoryState.stack([MemoryState({"a": torch.zeros(1, 2)}), MemoryState(other)])

    def test_stacking_no_states_is_refused(self):
        with pytest.raises(StateShape, match="at least one state"):
            MemoryState.stack([])

    @pytest.mark.parametrize(
        "tensors",
        [{}, {"a": torch.tensor(1.0)}, {"a": torch.zeros(2), "b": torch.zeros(3)}],
        ids=["none", "scalar", "rows differ"],
    )
    def test_tensors_without_a_batch_dimension_are_refused(self, tensors):
        with pytest.raises(StateShape):
            MemoryState(tensors)

    def test_it_cannot_be_changed(self):
        given_tensors = {"a": torch.zeros(1)}
        s = MemoryState(given_tensors)
        given_tensors["b"] = torch.zeros(1)
        assert list(s) == ["a"]
        with pytest.raises(TypeError):
            s.tensors["a"] = torch.ones(1)
        with pytest.raises(AttributeError):
            s.tensors = {}

    def test_the_digest_is_of_names_types_shapes_and_values(self):
        a = torch.arange(6.0).reshape(1, 6)
        digests = [
            MemoryState(tensors).digest()
            for tensors in (
                {"a": a},
                {"b": a},
                {"a": a.reshape(1, 2, 3)},
                {"a": a.view(torch.int32)},
                {"a": a + torch.tensor([0, 0, 0, 0, 0, 1e-6])},
                {"a": a, "b": a},
            )
        ]
        assert len(set(digests)) == len(digests)
        strided = torch.stack([a, a], dim=2)[:, :, 0]
        assert not strided.is_contiguous()
        assert MemoryState({"a": strided}).digest() == digests[0]
        assert MemoryState({"b": a, "a": a}).digest() == digests[-1]

    @pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
    def test_nan_is_found_in_every_type(self, dtype):
        good = MemoryState({"fine": torch.ones(1, 2), "a": torch.ones(1, 3).to(dtype)})
        assert good.require_finite() is good
        bad = torch.tensor([[1.0, float("nan"), 1.0]]).to(dtype)
        with pytest.raises(StateNotFinite, match="'a'"):
            MemoryState({"fine": torch.ones(1, 2), "a": bad}).require_finite()


class TestCodec:
    def test_round_trip(self):
        blob = encode_state(state(), "m")
        assert same(decode_state(blob, "m"), state())
        assert encode_state(decode_state(blob, "m"), "m") == blob

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_round_trip_of_every_type(self, dtype):
        s = MemoryState({"a": torch.arange(6).reshape(2, 3).to(dtype), "none": torch.zeros(2, 0).to(dtype)})
        back = decode_state(encode_state(s, "m"), "m")
        assert back["a"].dtype == dtype
        assert back.digest() == s.digest()

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_round_trip_of_anything(self, data):
        rows = data.draw(st.integers(0, 3))
        tensors = {}
        for name in data.draw(st.sets(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=3)):
            if name == "__metadata__":
                continue
            shape = (rows, *data.draw(st.lists(st.integers(0, 3), max_size=2)))
            count = int(torch.tensor(shape).prod())
            values = data.draw(st.lists(st.integers(-120, 120), min_size=count, max_size=count))
            tensors[name] = torch.tensor(values).reshape(shape).to(data.draw(st.sampled_from(DTYPES)))
        fingerprint = data.draw(st.text(st.characters(codec="utf-8"), max_size=9))
        s = MemoryState(tensors)
        assert decode_state(encode_state(s, fingerprint), fingerprint).digest() == s.digest()

    def test_tensors_that_share_memory_or_are_not_contiguous(self):
        a = torch.randn(2, 4, 3)
        s = MemoryState({"a": a, "b": a, "row": a[:, 1:], "turned": a.transpose(1, 2)})
        assert same(decode_state(encode_state(s, "m"), "m"), s)

    def test_a_row_costs_only_itself(self):
        rows = state(50).split()
        assert len(encode_state(rows[7], "m")) == len(encode_state(state(1), "m"))

    def test_the_decoded_state_does_not_live_in_the_blob(self):
        blob = encode_state(state(), "m")
        decoded = decode_state(blob, "m")
        decoded["memory"].zero_()
        assert same(decode_state(blob, "m"), state())

    def test_truncated_anywhere(self):
        blob = encode_state(state(), "m")
        for length in range(len(blob)):
            with pytest.raises(StateTruncated, match=str(length) if length < HEADER else str(length - HEADER)):
                decode_state(blob[:length], "m")

    @pytest.mark.parametrize("extra", [1, 8, 1000])
    def test_extended(self, extra):
        blob = encode_state(state(), "m")
        with pytest.raises(StateTruncated, match=f"announces {len(blob) - HEADER} bytes of payload, found"):
            decode_state(blob + bytes(extra), "m")

    def test_every_flipped_bit_is_found(self):
        blob = encode_state(MemoryState({"a": torch.ones(1, 2)}), "m")
        expected = [StateAltered] * 8 + [StateVersion] * 4 + [StateTruncated] * 8
        expected += [StateAltered] * (len(blob) - len(expected))
        for at, error in enumerate(expected):
            for bit in range(8):
                altered = bytearray(blob)
                altered[at] ^= 1 << bit
                with pytest.raises(error):
                    decode_state(bytes(altered), "m")

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_swapped_and_overwritten_stretches_are_found(self, data):
        blob = encode_state(state(), "m")
        at = data.draw(st.integers(0, len(blob) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=40))
        altered = (blob[:at] + patch + blob[at + len(patch) :])[: len(blob)]
        if altered != blob:
            with pytest.raises(StateError):
                decode_state(altered, "m")

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=200))
    def test_garbage(self, garbage):
        with pytest.raises(StateTruncated if len(garbage) < HEADER else StateAltered):
            decode_state(garbage, "m")
        with pytest.raises(StateError):  # garbage with a frame that is all right
            decode_state(frame(garbage), "m")

    def test_other_model(self):
        with pytest.raises(StateOfOtherModel, match="the state belongs to model mine, this model is yours"):
            decode_state(encode_state(state(), "mine"), "yours")
        with pytest.raises(StateOfOtherModel, match="None"):
            decode_state(frame(save({"a": torch.ones(1)})), "m")

    def test_other_version(self):
        payload = encode_state(state(), "m")[HEADER:]
        assert same(decode_state(frame(payload), "m"), state())
        with pytest.raises(StateVersion, match="version 2; this library reads version 1 only"):
            decode_state(frame(payload, version=2), "m")

    def test_no_state_at_all(self):
        with pytest.raises(StateAltered, match="not an everlong state"):
            decode_state(frame(b"", magic=b"NOTSTATE"), "m")

    @pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
    def test_not_finite(self, poison):
        s = state()
        bad = MemoryState({**s.tensors, "memory": s["memory"].index_fill(2, torch.tensor([3]), poison)})
        with pytest.raises(StateNotFinite, match="'memory' holds NaN or infinity"):
            decode_state(encode_state(bad, "m"), "m")

    @pytest.mark.parametrize("metadata", [["m"], "m", None, {"model": 1}])
    def test_odd_metadata(self, metadata):
        header = json.dumps({"__metadata__": metadata, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
        with pytest.raises(StateError):
            decode_state(frame(struct.pack("<Q", len(header)) + header.encode() + bytes(4)), "m")

    @pytest.mark.parametrize("tensors", [{}, {"a": torch.tensor(1.0)}, {"a": torch.ones(1), "b": torch.ones(2)}])
    def test_a_payload_without_a_batch_dimension(self, tensors):
        with pytest.raises(StateShape):
            decode_state(frame(save(tensors, metadata={"model": "m"})), "m")

    def test_all_errors_are_of_the_tree(self):
        for error in (StateTruncated, StateAltered, StateVersion, StateOfOtherModel, StateShape, StateNotFinite):
            assert issubclass(error, StateError)
            assert issubclass(error, EverlongModelError)
