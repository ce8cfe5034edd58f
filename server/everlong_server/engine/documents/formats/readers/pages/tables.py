"""Writes each row of a table in one line, with a tab between its cells."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

INLINE = (
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins", "kbd", "mark", "nobr",
    "q", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "tspan", "u", "var", "wbr",
)  # fmt: skip
"""Elements that part no words."""
TAB = "\ue0f1"
"""Stands for a tab, which would be rendered as a space. A private character, which texts do not have."""
_ARRANGED = ".//section | .//h1 | .//h2 | .//h3 | .//h4 | .//h5 | .//h6"
"""What a cell contains if its table arranges a page. Inner tables are sections."""
_MAX_CELL = 400
"""Characters from which on a cell is no value of a table."""
_SPAN = re.compile(r"\s*\+?([0-9]{1,9})")
_MAX_SPAN, _MAX_ROWS = 1000, 65534
"""Columns and rows that a cell spans at most, by the standard of HTML."""
_MAX_COLUMNS = 100
"""Columns that a table has, unless a row has more cells. If there are more, the cells do not form columns."""
_Span = tuple[int, int, int]
"""Positions that a cell takes: the first one, the one after the last, and the row after its last row."""


def write_out_tables(tree: Any) -> None:
    """Write each row of a table in one line. Cells of tables that arrange a page become paragraphs.

    inscriptis sets the lines of neighbouring cells side by side, which mixes their sentences, and fills columns with spaces.
    """
    for table in reversed(tree.xpath("//table")):  # inner ones first
        groups = [[group, *group.xpath("./tr")] for group in (table, *table.xpath("./thead | ./tbody | ./tfoot"))]
        # A group may have cells without a row.
        cells = {row: row.xpath("./td | ./th") for group in groups for row in group}
        if _arranges(table, [cell for row in cells.values() for cell in row]):
            for cell in (cell for row in cells.values() for cell in row):
                cell.tag = "div"
        else:
            _write_rows([[cells[row] for row in group if cells[row] or row.tag == "tr"] for group in groups])
        for row in cells:
            row.tag = "div"
        table.tag = "section"


def _arranges(table: Any, cells: Sequence[Any]) -> bool:
    """Whether a table only arranges a page: it has no headings of columns or rows, and cells that are parts of a page."""
    # Some mail arranges its text with headings alone.
    if table.xpath("./thead | ./caption") or {cell.tag for cell in cells} == {"td", "th"}:
        return False
    return any(cell.xpath(_ARRANGED) or len(" ".join(cell.text_content().split())) > _MAX_CELL for cell in cells)


def _write_rows(groups: Sequence[Sequence[Sequence[Any]]]) -> None:
    """Write the cells of a table, by groups of rows. Columns are where cells of any row begin.

    A cell that spans several columns leaves those after its first one empty.
    """
    placed = [row for group in groups for row in _placed(group)]
    begins = sorted({column for _, columns, _ in placed for column in columns})
    numbers = {column: number for number, column in enumerate(begins)}
    has_columns = len(begins) <= max([_MAX_COLUMNS, *(len(cells) for cells, _, _ in placed)])
    for cells, columns, end in placed:
        if len(cells) == 1 and columns == [0]:
            cells[0].tag = "div"
            continue
        places = [numbers[column] for column in columns] if has_columns else list(range(len(cells)))
        last = bisect_left(begins, end) - 1 if has_columns else places[-1]
        for cell, place, following in zip(cells, places, [*places[1:], last], strict=True):
            _write_in_one_line(cell, following - place)
        cells[0].text = TAB * places[0] + cells[0].text


def _placed(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Sequence[Any], list[int], int]]:
    """Yield the cells of each row of a group that has some, the position of each, and the one after the last that is taken."""
    above: list[_Span] = []
    for number, cells in enumerate(rows):
        if not cells:
            continue
        above = sorted(span for span in above if span[2] > number)
        taken, columns, column = deque(above), list[int](), 0
        for cell in cells:
            column = _free(column, taken)
            columns.append(column)
            column += max(1, _span(cell, "colspan", _MAX_SPAN))
            height = _span(cell, "rowspan", _MAX_ROWS) or _MAX_ROWS  # 0: to the end of the group
            above.append((columns[-1], column, number + height))
        yield cells, columns, _free(column, taken)


def _free(column: int, taken: deque[_Span]) -> int:
    """Return the first position from `column` on that no cell of a row above takes. Drops the spans before it from `taken`."""
    while taken and taken[0][0] <= column:
        column = max(column, taken.popleft()[1])
    return column


def _span(cell: Any, name: str, most: int) -> int:
    """Return how many columns or rows a cell spans."""
    given = _SPAN.match(cell.get(name, ""))
    return min(int(given[1]), most) if given else 1


def _write_in_one_line(cell: Any, tabs: int) -> None:
    """Write a cell without line breaks, with this many tabs after it."""
    numbers = {item: f"{n}. " for list in cell.xpath(".//ol") for n, item in enumerate(list.xpath("./li"), 1)}
    for part in cell.xpath(".//*"):
        if not isinstance(part.tag, str):
            continue
        if part.tag == "section":
            _drop_tabs(part)
        if part.tag in INLINE:
            continue
        part.tail = f" {part.tail or ''}"
        if part.tag == "br":
            part.tag = "span"
        else:
            part.text = f" {numbers.get(part, '* ') if part.tag == 'li' else ''}{part.text or ''}"
            part.tag = "span"
    cell.tag = "span"
    cell.text = (cell.text or "").lstrip()
    if len(cell):
        cell[-1].tail = (cell[-1].tail or "").rstrip()
    else:
        cell.text = cell.text.rstrip()
    between = (cell.tail or "").strip()
    cell.tail = f"{TAB * tabs}{between}{' ' if between else ''}"


def _drop_tabs(table: Any) -> None:
    """Write blanks for the tabs of a table inside a cell, which would look like those of the row."""
    for part in table.iter():
        part.text = part.text and part.text.replace(TAB, " ")
        part.tail = part.tail and part.tail.replace(TAB, " ")
