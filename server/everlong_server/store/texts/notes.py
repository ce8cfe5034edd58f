"""`Note`: what a conversion left out of a document's text, or repaired in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for people. `page`: counted from 1. `part`: a chapter, an attachment or another part of the file."""

    text: str
    page: int | None = None
    part: str | None = None


def encode(notes: Sequence[Note]) -> str:
    """Return the notes as JSON; "" if there are none."""
    return json.dumps([astuple(note) for note in notes]) if notes else ""


def decode(stored: str) -> tuple[Note, ...]:
    """Return the notes that `encode` encoded."""
    return tuple(Note(*note) for note in json.loads(stored)) if stored else ()
