"""Finds pages of two columns whose text the file draws line by line across both, and reads one column after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
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
    lines: list[str] = []
    mixed = False
    for rows in _zones(_rows(pieces), right):
        for piece in (piece for row in rows for piece in row):
            bounds = piece.left - 1, piece.bottom - 1, piece.right + 1, piece.top + 1
            text = textpage.get_text_bounded(*bounds).replace("\r\n", " ")
            piece.text = text.replace("\x02", "-").strip()  # a hyphen at the end of a line
        columns = _columns(rows, right)
        if columns is None:
            lines += (" ".join(piece.text for piece in row) for row in rows)
        else:
            mixed = True
            lines += (piece.text for column in columns for piece in column)
    return _joined(lines) if mixed else None


def _joined(lines: Sequence[str]) -> str:
    """Return the lines as text, with U+FFFE for a hyphen in a word that goes on in the next line, as PDFium writes it."""
    text = ""
    for line in lines:
        divided = text.endswith("-") and text[-2:-1].isalpha() and line[:1].islower()
        text = f"{text[:-1]}\ufffe{line}" if divided else f"{text}\n{line}"
    return text.removeprefix("\n")


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


def _rows(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Return the pieces of each line, in the order of the file."""
    rows: list[list[_Piece]] = []
    for piece in pieces:
        if rows and rows[-1][-1].same_line(piece) and rows[-1][-1].right < piece.left:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _zones(rows: Sequence[list[_Piece]], right: float) -> list[list[list[_Piece]]]:
    """Return the rows in groups: those that are side by side without a piece that crosses both columns, and the others."""
    zones: list[list[list[_Piece]]] = []
    aside = False
    for row in rows:
        was_aside, aside = aside, not any(piece.left < right < piece.right for piece in row)
        if zones and was_aside == aside:
            zones[-1].append(row)
        else:
            zones.append([row])
    return zones


def _columns(rows: Sequence[list[_Piece]], right: float) -> tuple[list[_Piece], list[_Piece]] | None:
    """Return the pieces of the left and the right column, if these rows mix two columns of prose."""
    left = [[piece for piece in row if piece.left < right] for row in rows]
    rest = [[piece for piece in row if piece.left >= right] for row in rows]
    pairs = [(a[-1].text, b[0].text) for a, b in zip(left, rest, strict=True) if a and b]
    if len(pairs) < max(_MIN_ROWS, 2 / 3 * len(rows)) or any(piece.right > right for row in left for piece in row):
        return None
    return (list(chain.from_iterable(left)), list(chain.from_iterable(rest))) if _is_prose(pairs) else None


def _is_prose(rows: Sequence[tuple[str, str]]) -> bool:
    """Whether sentences continue down the columns, and not across them."""
    lefts, rights = zip(*rows, strict=True)
    down = [_continues(a, b) for column in (lefts, rights) for a, b in pairwise(column)]
    across = [_continues(a, b) for a, b in rows]
    share_down, share_across = sum(down) / len(down), sum(across) / len(across)
    return share_down >= 0.5 and share_down > share_across + 0.25


def _continues(line: str, following: str) -> bool:
    return following[:1].islower() and not line.endswith((".", "!", "?", ":", ";"))
