"""Writes the rows of tables in texts and on slides: one line each, with tabs between the cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPACE = re.compile(r"[ \t\r\n]+")
_MAX_CELL = 400
"""Characters from which on a cell with several lines is a passage of a page that the table arranges."""
_MAX_COLUMNS = 63
"""Columns that a table has in Word, unless a row has more cells."""
Placed = tuple[int, str]
"""Where a cell begins, and its text."""


def row_text(cells: Sequence[str], *, is_alone: bool | None = None) -> str:
    """Return a row in one line, without the empty cells at its end.

    Cells keep their lines, one cell below the other, if one of them is a passage, or if the row has only one (`is_alone`).
    """
    cells = [cell.strip() for cell in cells]
    is_alone = len(cells) == 1 if is_alone is None else is_alone
    if is_alone or any("\n" in cell and len(cell) > _MAX_CELL for cell in cells):
        return "\n".join(filter(None, cells))
    return "\t".join(_SPACE.sub(" ", cell) for cell in cells).rstrip("\t")


def table_text(rows: Sequence[Sequence[Placed]], tolerance: int = 0) -> str:
    """Return a table. A cell is in the column that it begins in; columns are where the cells of any row begin.

    Places that differ by `tolerance` are the same one.
    """
    columns = _columns({place for row in rows for place, _ in row}, tolerance)
    widest = max(map(len, rows), default=0)
    if max(columns.values(), default=0) >= max(_MAX_COLUMNS, widest):  # the places mean nothing
        return "\n".join(filter(None, (row_text([text for _, text in row]) for row in rows)))
    lines = []
    for row in rows:
        cells: list[str] = []
        for place, text in row:
            cells += [""] * (columns[place] - len(cells)) + [text]
        lines.append(row_text(cells))
    return "\n".join(filter(None, lines))


def _columns(places: Iterable[int], tolerance: int) -> dict[int, int]:
    """Return the number of the column for each place."""
    columns: dict[int, int] = {}
    number, first = -1, 0
    for place in sorted(places):
        if number < 0 or place - first > tolerance:
            number, first = number + 1, place
        columns[place] = number
    return columns
