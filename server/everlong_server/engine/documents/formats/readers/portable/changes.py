"""Changes of a page's text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A part of a page's text, from `start` to `end`, and what replaces it."""

    start: int
    end: int
    written: str


def with_changes(
    text: str,
    first: Sequence[Change],
    others: Iterable[Change] = (),
    around: tuple[Sequence[Change], Sequence[Change]] = ((), ()),
) -> str:
    """Return the text with these changes, apart from those of the `others` that overlap the first ones.

    `around`: the marks before and after parts of the text, such as struck ones. They are put around the other changes.
    """
    taken = {place for change in first for place in range(change.start, change.end)}
    kept = (change for change in others if taken.isdisjoint(range(change.start, max(change.end, change.start + 1))))
    parts, place = list[str](), 0
    changes = sorted([*first, *kept], key=lambda each: (each.start, each.end))
    starts = [change.start for change in changes]
    opening, closing = ([_outside(mark, changes, starts)[side] for mark in around[side]] for side in (0, 1))
    for change in sorted([*closing, *changes, *opening], key=lambda each: (each.start, each.end)):
        parts += text[place : change.start], change.written
        place = change.end
    return "".join([*parts, text[place:]])


def _outside(mark: Change, changes: Sequence[Change], starts: Sequence[int]) -> tuple[Change, Change]:
    """Return a mark before and after the change that it is inside, else the mark itself twice. `starts`: those of the changes."""
    last = bisect_left(starts, mark.start) - 1
    if last >= 0 and changes[last].end > mark.start:
        start, end = changes[last].start, changes[last].end
        return Change(start, start, mark.written), Change(end, end, mark.written)
    return mark, mark
