"""Finds pages of two columns whose lines come in rows across both, and reads one column after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median
from typing import Any

from everlong_server.engine.documents.formats.hyphens import join_hyphens, joined_lines
from everlong_server.engine.documents.formats.readers.portable.raised import Superscript, with_superscripts_of_line

_MIN_ROWS = 3
_ALIGNED = 3.0
"""Points that the left edges of the lines of a column may differ by."""
_GAP = 1.5
"""Width of a gap, in heights of a line, from which on it parts pieces."""
_SUPERSCRIPT = 0.45
"""Height of a superscript from which on it belongs to a line, as a share of the line's. A large first letter is higher than two lines."""
_MAX_RECTS = 5000
_LINE = 20
"""Characters of a line of prose."""
_Rows = Sequence[tuple[str, str]]
"""Last piece of the left column and first of the right one, for each row."""


@dataclass(slots=True)
class Piece:
    """A piece of a line, in points from the bottom left."""

    left: float
    bottom: float
    right: float
    top: float
    text: str = ""

    def same_line(self, other: Piece) -> bool:
        """Whether both are on the same line. Superscripts are smaller and higher than the rest of their line."""
        smaller, larger = sorted((self.top - self.bottom, other.top - other.bottom))
        if abs(self.bottom - other.bottom) < 0.5 * larger:
            return True
        overlap = min(self.top, other.top) - max(self.bottom, other.bottom)
        return smaller > _SUPERSCRIPT * larger and overlap > 0.5 * smaller


def column_text(textpage: Any, raised: Sequence[Superscript] = ()) -> str | None:
    """Return a page's text column by column, with U+FFFE for hyphens at line ends; None if the order of the file is right.

    `raised`: the page's superscript numbers.

    Tables are drawn like such columns. Here, the lines of a column continue sentences: they begin with a small letter
    after a line that ends none.
    """
    count = textpage.count_rects()
    if not 2 * _MIN_ROWS <= count <= _MAX_RECTS:
        return None

    places = [textpage.get_charbox(found.index) for found in raised]

    def fill(piece: Piece) -> None:
        bounds = piece.left - 1, piece.bottom - 1, piece.right + 1, piece.top + 1
        inside = [found for found, place in zip(raised, places, strict=True) if _holds(bounds, place)]
        text = with_superscripts_of_line(textpage.get_text_bounded(*bounds), inside).replace("\r\n", " ")
        piece.text = text.replace("\x02", "-").strip()  # a hyphen at the end of a line

    lines = _column_lines(_pieces([textpage.get_rect(index) for index in range(count)]), fill, _continues_down)
    return None if lines is None else joined_lines(lines)


def _holds(bounds: tuple[float, float, float, float], box: tuple[float, float, float, float]) -> bool:
    """Whether the middle of a box is inside the bounds. Both: left, bottom, right, top."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return bounds[0] <= x <= bounds[2] and bounds[1] <= y <= bounds[3]


def ordered_text(pieces: Sequence[Piece]) -> str:
    """Return the text of pieces that have their text and come row by row: column by column, else with tabs in a row."""
    lines = (
        _column_lines(pieces, lambda piece: None, _fills_columns)
        if 2 * _MIN_ROWS <= len(pieces) <= _MAX_RECTS
        else None
    )
    if lines is None:
        lines = ["\t".join(piece.text for piece in row) for row in _rows(pieces)]
    return join_hyphens(joined_lines(lines))


def _column_lines(
    pieces: Sequence[Piece], fill: Callable[[Piece], None], is_prose: Callable[[_Rows], bool]
) -> list[str] | None:
    """Return the lines column by column; None if no columns are mixed.

    `fill`: sets the text of a piece. `is_prose`: whether rows of two columns are prose and not a table.
    """
    right = _right_column(pieces)
    if right is None:
        return None
    lines: list[str] = []
    mixed = False
    for rows in _zones(_rows(pieces), right):
        for piece in (piece for row in rows for piece in row):
            fill(piece)
        columns = _columns(rows, right, is_prose)
        if columns is None:
            lines += (" ".join(piece.text for piece in row) for row in rows)
        else:
            mixed = True
            lines += (piece.text for column in columns for piece in column)
    return lines if mixed else None


def _pieces(rects: Sequence[tuple[float, float, float, float]]) -> list[Piece]:
    """Join rectangles of adjacent text on the same line, in the order of the file."""
    pieces: list[Piece] = []
    for rect in rects:
        new = Piece(*rect)
        last = pieces[-1] if pieces else None
        if last and last.same_line(new) and -1 <= new.left - last.right < _GAP * (new.top - new.bottom):
            last.right, last.top, last.bottom = new.right, max(last.top, new.top), min(last.bottom, new.bottom)
        else:
            pieces.append(new)
    return pieces


def _right_column(pieces: Sequence[Piece]) -> float | None:
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


def _rows(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Return the pieces of each line, in the order of the file."""
    rows: list[list[Piece]] = []
    for piece in pieces:
        if rows and rows[-1][-1].same_line(piece) and rows[-1][-1].right < piece.left:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _zones(rows: Sequence[list[Piece]], right: float) -> list[list[list[Piece]]]:
    """Return the rows in groups: those that are side by side without a piece that crosses both columns, and the others."""
    zones: list[list[list[Piece]]] = []
    aside = False
    for row in rows:
        was_aside, aside = aside, not any(piece.left < right < piece.right for piece in row)
        if zones and was_aside == aside:
            zones[-1].append(row)
        else:
            zones.append([row])
    return zones


def _columns(
    rows: Sequence[list[Piece]], right: float, is_prose: Callable[[_Rows], bool]
) -> tuple[list[Piece], list[Piece]] | None:
    """Return the pieces of the left and the right column, if these rows mix two columns of prose."""
    left = [[piece for piece in row if piece.left < right] for row in rows]
    rest = [[piece for piece in row if piece.left >= right] for row in rows]
    pairs = [(a[-1].text, b[0].text) for a, b in zip(left, rest, strict=True) if a and b]
    if len(pairs) < max(_MIN_ROWS, 2 / 3 * len(rows)) or any(piece.right > right for row in left for piece in row):
        return None
    return (list(chain.from_iterable(left)), list(chain.from_iterable(rest))) if is_prose(pairs) else None


def _fills_columns(rows: _Rows) -> bool:
    """Whether most lines of both columns have the length of a line, and not of a cell."""
    return all(median(map(len, column)) >= _LINE for column in zip(*rows, strict=True))


def _continues_down(rows: _Rows) -> bool:
    """Whether sentences continue down the columns, and not across them."""
    lefts, rights = zip(*rows, strict=True)
    down = [_continues(a, b) for column in (lefts, rights) for a, b in pairwise(column)]
    across = [_continues(a, b) for a, b in rows]
    share_down, share_across = sum(down) / len(down), sum(across) / len(across)
    return share_down >= 0.5 and share_down > share_across + 0.25


def _continues(line: str, following: str) -> bool:
    return following[:1].islower() and not line.endswith((".", "!", "?", ":", ";"))
