"""Finds pages of two columns whose text the file draws line by line across both, and reads one column after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_MIN_ROWS = 3
_ALIGNED = 3.0
"""Points that the left edges of the lines of a column may differ by."""
_GAP = 1.5
"""Width of a gap, in heights of a line, from which on it parts pieces."""
_MAX_RECTS = 5000


@dataclass(slots=True)
class _Piece:
    """A piece of a line, in points."""

    left: float
    bottom: float
    right: float
    top: float
    text: str = ""

    def same_line(self, other: _Piece) -> bool:
        return abs(self.bottom - other.bottom) < 0.5 * max(self.top - self.bottom, other.top - other.bottom)


def column_text(textpage: Any) -> str | None:
    """Return a page's text column by column; None if the order of the file is right.

    Tables are drawn like such columns. Here, the lines of a column continue sentences: they begin with a small letter
    after a line that ends none.
    """
    count = textpage.count_rects()
    if not 2 * _MIN_ROWS <= count <= _MAX_RECTS:
        return None
    pieces = _pieces([textpage.get_rect(index) for index in range(count)])
    right = _right_column(pieces)
    if right is None:
        return None
    for piece in pieces:
        bounds = piece.left - 1, piece.bottom - 1, piece.right + 1, piece.top + 1
        piece.text = textpage.get_text_bounded(*bounds).replace("\r\n", " ").strip()
    rows = list(_rows(pieces, right))
    if len(rows) < _MIN_ROWS or not _is_prose(rows):
        return None
    return "\n".join(piece.text for piece in _column_order(pieces, right))


def _pieces(rects: Sequence[tuple[float, float, float, float]]) -> list[_Piece]:
    """Join rectangles of adjacent text on the same line, in the order of the file."""
    pieces: list[_Piece] = []
    for rect in rects:
        new = _Piece(*rect)
        last = pieces[-1] if pieces else None
        if last and last.same_line(new) and -1 <= new.left - last.right < _GAP * (new.top - new.bottom):
            last.right, last.top, last.bottom = new.right, max(last.top, new.top), min(last.bottom, new.bottom)
        else:
            pieces.append(new)
    return pieces


def _right_column(pieces: Sequence[_Piece]) -> float | None:
    """Return the left edge of a second column; None if there is none."""
    starts = Counter(
        round(after.left / _ALIGNED)
        for before, after in pairwise(pieces)
        if before.same_line(after) and before.right < after.left
    )
    if not starts:
        return None
    edge, rows = starts.most_common(1)[0]
    rows += starts[edge - 1] + starts[edge + 1]
    return (edge - 1.5) * _ALIGNED if rows >= _MIN_ROWS else None


def _rows(pieces: Sequence[_Piece], right: float) -> Iterator[tuple[str, str]]:
    """Yield the texts of the lines that are in both columns."""
    for before, after in pairwise(pieces):
        if before.same_line(after) and before.right < right <= after.left:
            yield before.text, after.text


def _is_prose(rows: Sequence[tuple[str, str]]) -> bool:
    """Whether sentences continue down the columns, and not across them."""
    lefts, rights = zip(*rows, strict=True)
    down = [_continues(a, b) for column in (lefts, rights) for a, b in pairwise(column)]
    across = [_continues(a, b) for a, b in rows]
    share_down, share_across = sum(down) / len(down), sum(across) / len(across)
    return share_down >= 0.5 and share_down > share_across + 0.25


def _continues(line: str, following: str) -> bool:
    return following[:1].islower() and not line.endswith((".", "!", "?", ":", ";"))


def _column_order(pieces: Sequence[_Piece], right: float) -> Iterator[_Piece]:
    """Yield the pieces: the left column, then the right one, between lines that cross both."""
    second: list[_Piece] = []
    for piece in pieces:
        if piece.left >= right:
            second.append(piece)
        else:
            if piece.right > right:  # crosses both columns
                yield from second
                second = []
            yield piece
    yield from second
