"""Changes of a page's text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A part of a page's text, from `start` to `end`, and what replaces it."""

    start: int
    end: int
    written: str


def with_changes(text: str, first: Sequence[Change], others: Iterable[Change] = ()) -> str:
    """Return the text with these changes, apart from those of the `others` that overlap the first ones."""
    taken = {place for change in first for place in range(change.start, change.end)}
    kept = (change for change in others if taken.isdisjoint(range(change.start, max(change.end, change.start + 1))))
    parts, place = list[str](), 0
    for change in sorted([*first, *kept], key=lambda each: (each.start, each.end)):
        parts += text[place : change.start], change.written
        place = change.end
    return "".join([*parts, text[place:]])
