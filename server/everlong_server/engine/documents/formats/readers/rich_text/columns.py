"""Collects the cells of an RTF table and finds their columns. RTF has the right edge of a cell, not the number of its columns."""

from __future__ import annotations

from everlong_server.engine.documents.formats.readers.shared.tables import table_text

_LEFT = -(1 << 31)
"""Where the first cell of each row begins, in twips: rows differ by the space inside their cells."""
_SAME_EDGE = 60
"""Twips by which the edges of one column may differ: a millimetre."""


class Table:
    """A table that has begun. `cells`: the texts of those of the current row."""

    def __init__(self) -> None:
        self.cells: list[str] = []
        self._edges: list[int] = []
        """The right edges of the cells of the current row."""
        self._rows: list[tuple[list[str], list[int]]] = []

    def define_row(self) -> None:
        """Begin the definition of a row. Rows without one have that of the row before."""
        self._edges = []

    def define_cell(self, edge: int) -> None:
        """Define the next cell of the row by its right edge."""
        self._edges.append(edge)

    def end_row(self) -> None:
        """End the current row."""
        self._rows.append((self.cells, self._edges))
        self.cells = []

    def take_text(self) -> str:
        """Return the rows, and begin the next table. Cells are in their order if a row has other cells than it defines."""
        rows, self._rows = self._rows, []
        if not all(len(edges) >= len(cells) and edges == sorted(edges) for cells, edges in rows):
            return table_text([list(enumerate(cells)) for cells, _ in rows])
        return table_text([list(zip([_LEFT, *edges], cells, strict=False)) for cells, edges in rows], _SAME_EDGE)
