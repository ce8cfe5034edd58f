"""`Piece`: one of the pieces that a text is cut into for the search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text: offsets in characters and in bytes of its UTF-8, and the text."""

    start: int
    end: int
    start_byte: int
    end_byte: int
    text: str
