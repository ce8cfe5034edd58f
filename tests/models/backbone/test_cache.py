"""CacheSlots: adding and removing rows does not move the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from everlong_models.backbone.cache import Cache, CacheSlots, zeros


def row(number: int) -> Cache:
    return Cache({"kv": torch.full((1, 2, 3), float(number)), "seen": torch.tensor([number])}, torch.tensor([number]))


@given(st.lists(st.integers(-4, 1), max_size=60))
def test_rows_are_those_that_were_added_and_not_removed(moves: list[int]) -> None:
    """A move below 0 removes that row, counted from the end; others add one."""
    slots, expected = CacheSlots(), []
    for number, move in enumerate(moves):
        if move >= 0:
            slots.add(row(number))
            expected.append(number)
        elif expected:
            at = max(0, len(expected) + move)
            slots.remove(at)
            expected[at] = expected[-1]
            expected.pop()
        assert len(slots) == len(expected)
        if not expected:
            with pytest.raises(IndexError):
                slots.rows  # noqa: B018
            continue
        rows = slots.rows
        assert rows.lengths.tolist() == rows["seen"].tolist() == expected
        assert rows["kv"].amin((1, 2)).tolist() == rows["kv"].amax((1, 2)).tolist() == expected
        rows.lengths += 0  # in place, as `step` does


def test_writes_persist_and_added_rows_are_copies() -> None:
    slots, came = CacheSlots(), row(7)
    slots.add(came)
    slots.rows["kv"].fill_(8)
    slots.rows.lengths.add_(1)
    assert (float(came["kv"][0, 0, 0]), came.lengths.tolist()) == (7, [7])
    slots.add(row(9))
    assert slots.rows["kv"][:, 0, 0].tolist() == [8, 9]
    assert slots.rows.lengths.tolist() == [8, 9]


def test_adding_and_removing_moves_no_other_row() -> None:
    slots = CacheSlots()
    for number in range(4):
        slots.add(row(number))
    place = slots.rows["kv"].data_ptr()
    slots.remove(1)
    slots.add(row(5))
    assert slots.rows["kv"].data_ptr() == place
    assert slots.rows.lengths.tolist() == [0, 3, 2, 5]
    with pytest.raises(IndexError, match="row 4 of 4"):
        slots.remove(4)


def test_a_failed_allocation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = CacheSlots()
    slots.add(row(1))

    def full(*args: object, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("everlong_models.backbone.cache.zeros", full)
        with pytest.raises(torch.OutOfMemoryError):
            slots.add(row(2))
    assert slots.rows.lengths.tolist() == [1]
    slots.add(row(2))
    assert slots.rows.lengths.tolist() == [1, 2]


def test_slots_stay_allocated_without_rows() -> None:
    slots = CacheSlots(keep_allocated=True)
    with pytest.raises(IndexError, match="ever taken"):
        slots.allocated  # noqa: B018
    slots.add(row(1))
    slots.add(row(2))
    places = slots.allocated
    slots.remove(0)
    slots.remove(0)
    with pytest.raises(IndexError, match="no slot is taken"):
        slots.rows  # noqa: B018
    slots.add(row(3))
    assert slots.allocated is places
    slots.add(row(4))
    slots.add(row(5))
    assert (slots.allocated.rows, slots.rows.lengths.tolist()) == (4, [3, 4, 5])
    assert slots.allocated.lengths.tolist() == [3, 4, 5, 0]


def test_only_a_rows_filled_positions_are_copied() -> None:
    def opened(before: int, length: int) -> Cache:
        """Positions that nothing was written to hold what no row may get."""
        kv = torch.full((1, 1, 2, 1, 8, 2), torch.nan)
        kv[..., : before + length, :] = torch.randn(1, 1, 2, 1, before + length, 2)
        return Cache({"kv": kv, "before": torch.tensor([before])}, torch.tensor([length]))

    slots, came = CacheSlots(), [opened(2, 3), opened(0, 4), opened(5, 3), opened(1, 1)]
    for cache in came:
        slots.add(cache)
    slots.remove(0)
    came[0] = came.pop()
    assert not slots.allocated["kv"].isnan().any()
    slots.rows["kv"][2].fill_(torch.nan)  # a row goes wrong, up to where it is
    slots.rows["kv"][2, ..., 8:, :] = 0
    slots.remove(2)
    came[2] = opened(1, 2)
    slots.add(came[2])
    assert not slots.rows["kv"].isnan().any()
    for row, cache in enumerate(came):
        reached = int(cache["before"] + cache.lengths)
        assert torch.equal(slots.rows["kv"][row, ..., :reached, :], cache["kv"][0, ..., :reached, :])


class Copies(TorchDispatchMode):
    """Counts copies of at least `least` numbers."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least, self.count = least, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.copy_.default and args[0].numel() >= self._least
        return func(*args, **(kwargs or {}))


def test_a_row_can_be_made_in_its_slot() -> None:
    def filled(kv: torch.Tensor, before: int, length: int) -> Cache:
        kv[..., : before + length, :] = float(length)
        return Cache({"kv": kv, "before": torch.tensor([before])}, torch.tensor([length]))

    slots = CacheSlots()
    assert slots.free_kv() is None
    for length in (3, 7):
        slots.add(filled(torch.zeros(1, 1, 2, 1, 8, 2), 1, length))
    assert slots.free_kv() is None
    slots.remove(1)
    free = slots.free_kv()
    assert free is not None
    made = filled(free, 0, 2)
    with Copies(free.numel() // 4) as copies:  # of two positions or more
        slots.add(made)
    assert copies.count == 0
    rows = slots.rows
    assert rows["kv"].data_ptr() + rows["kv"][0].nbytes == free.data_ptr()
    assert rows["kv"][:, 0, 0, 0, :, 0].tolist() == [[3, 3, 3, 3, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0, 0, 0]]
    assert (rows["before"].tolist(), rows.lengths.tolist()) == ([1, 0], [3, 2])


def test_caches_without_context_have_no_slots_to_make_rows_in() -> None:
    slots = CacheSlots()
    for number in range(2):
        slots.add(row(number))
    slots.remove(1)
    assert slots.free_kv() is None  # `add` copies all positions of such rows, so old data would remain


def large() -> Cache:
    kv = zeros((1, 1, 2, 1, 1 << 12, 64), torch.empty(0))
    return Cache({"kv": kv, "before": torch.tensor([0])}, torch.tensor([1]))


def test_large_rows_are_not_moved_as_others_join(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, places = CacheSlots(), set()
    for _ in range(16):
        slots.add(large())
        places.add(slots.rows["kv"].data_ptr())
    assert (len(places), slots.allocated.rows) == (1, 16)
    slots.add(large())
    assert slots.allocated.rows == 32
    monkeypatch.setattr("everlong_models.backbone.cache._ROOM", 5 << 21 | 1 << 20)
    few = CacheSlots()
    few.add(large())
    assert few.allocated.rows == 5


def test_a_batch_without_room_for_rows_in_advance_takes_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        if shape[0] > 2:
            raise MemoryError("no room")
        return zeros(shape, like)

    monkeypatch.setattr("everlong_models.backbone.cache.zeros", limited)
    slots = CacheSlots()
    for count in (1, 2):
        slots.add(large())
        assert slots.allocated.rows == count
    with pytest.raises(MemoryError, match="no room"):
        slots.add(large())
    assert slots.rows.lengths.tolist() == [1, 1]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells how much memory a process has")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_zeros_take_memory_where_they_are_written(dtype: torch.dtype) -> None:
    before = _resident()
    large = zeros((1 << 10, 1 << 18), torch.empty(0, dtype=dtype))
    large[:, :8] = 1
    assert _resident() - before < 100 << 20
    assert (large.shape, large.dtype) == ((1 << 10, 1 << 18), dtype)
    assert float(large[7, 7]) == 1
    assert not large[-1, 8:].any()


def test_zeros_larger_than_the_memory_raise() -> None:
    with pytest.raises((MemoryError, RuntimeError)):
        zeros((1 << 62,), torch.empty(0, dtype=torch.uint8))
