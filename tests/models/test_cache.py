"""Slots: rows come and go without the others being moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong_models.cache import Cache, Slots


def row(number: int) -> Cache:
    return Cache({"kv": torch.full((1, 2, 3), float(number)), "seen": torch.tensor([number])}, torch.tensor([number]))


@given(st.lists(st.integers(-4, 1), max_size=60))
def test_rows_are_those_that_came_and_did_not_leave(moves: list[int]) -> None:
    """Below 0: that row leaves, from the end; otherwise one comes."""
    slots, expected = Slots(), []
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


def test_what_is_written_stays_and_who_comes_is_a_copy() -> None:
    slots, came = Slots(), row(7)
    slots.add(came)
    slots.rows["kv"].fill_(8)
    slots.rows.lengths.add_(1)
    assert (float(came["kv"][0, 0, 0]), came.lengths.tolist()) == (7, [7])
    slots.add(row(9))
    assert slots.rows["kv"][:, 0, 0].tolist() == [8, 9]
    assert slots.rows.lengths.tolist() == [8, 9]


def test_others_stay_where_they_are() -> None:
    slots = Slots()
    for number in range(4):
        slots.add(row(number))
    place = slots.rows["kv"].data_ptr()
    slots.remove(1)
    slots.add(row(5))
    assert slots.rows["kv"].data_ptr() == place
    assert slots.rows.lengths.tolist() == [0, 3, 2, 5]
    with pytest.raises(IndexError, match="row 4 of 4"):
        slots.remove(4)


def test_without_memory_for_more_all_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots()
    slots.add(row(1))

    def full(*args: object, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", full)
        with pytest.raises(torch.OutOfMemoryError):
            slots.add(row(2))
    assert slots.rows.lengths.tolist() == [1]
    slots.add(row(2))
    assert slots.rows.lengths.tolist() == [1, 2]


def test_places_that_are_kept_stay_without_rows() -> None:
    slots = Slots(kept=True)
    with pytest.raises(IndexError, match="ever taken"):
        slots.places  # noqa: B018
    slots.add(row(1))
    slots.add(row(2))
    places = slots.places
    slots.remove(0)
    slots.remove(0)
    with pytest.raises(IndexError, match="no slot is taken"):
        slots.rows  # noqa: B018
    slots.add(row(3))
    assert slots.places is places
    slots.add(row(4))
    slots.add(row(5))
    assert (slots.places.rows, slots.rows.lengths.tolist()) == (4, [3, 4, 5])
    assert slots.places.lengths.tolist() == [3, 4, 5, 0]
