"""Rows of tables in a text: lines with tabs, lines of CSV, and rows of Markdown. They are searched and shown whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from everlong_server.store.texts.piece import Piece

_FEWEST = 3
"""Rows of a table. Fewer need no row that names the columns."""
_MAX_HEADER = 600
"""Characters of a row that names the columns."""
_CELLS = (
    r"[^\n]*\S *\t[^\n]*\S|[ ]*\|[^\n]*\|"
    r"|(?:[^\n]*?(?:[,;](?!\d)|(?<!\d)[,;])(?=[^\s,;]|[,;]{2})){3}"
    r"|(?=[\d.+\-:/]*(?:[,;][\d.+\-:/]*){3})[\d.,;+\-:/]+(?=\s|$)"
)
"""A row: a tab between words, bars around cells, or three commas or semicolons that no space follows, and that are not between digits. In a row of
figures alone, they may be."""
_ROW = re.compile(rf"(?m)^(?:{_CELLS})[^\n]*\n?")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ROW_BYTES = re.compile(rf"(?:{_CELLS})".encode())


def rows(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each row in characters. The line break belongs to its row."""
    return (row.span() for row in _ROW.finditer(text))


def is_row(line: bytes) -> bool:
    """Return whether a line of UTF-8, or its beginning, is a row."""
    return _ROW_BYTES.match(line) is not None


class Table(NamedTuple):
    """A table in a text: where its first row begins and ends, in characters and bytes, and where its last row ends, in characters."""

    start: int
    header_end: int
    start_byte: int
    header_end_byte: int
    end: int


class Tables:
    """Follows the tables of a text from piece to piece."""

    def __init__(self) -> None:
        self._open: Table | None = None
        self._count = 0
        self._in_line = False
        """Whether the last piece ended within a line."""

    def of(self, piece: Piece) -> Iterator[Table]:
        """Yield the tables after which a piece goes on. Call in text order."""
        for line in _LINE.finditer(piece.text):
            end = piece.start + line.end()
            if not self._in_line and _ROW.match(line[0]) is None:
                yield from self.finish()
            elif self._open is not None:
                table, self._count = self._open._replace(end=end), self._count + (not self._in_line)
                if self._count == 1:  # the first row goes on
                    table = table._replace(
                        header_end=end, header_end_byte=table.header_end_byte + len(line[0].encode())
                    )
                self._open = table
            elif not self._in_line:
                at = piece.start_byte + len(piece.text[: line.start()].encode())
                self._open = Table(piece.start + line.start(), end, at, at + len(line[0].encode()), end)
                self._count = 1
            self._in_line = not line[0].endswith("\n")

    def finish(self) -> Iterator[Table]:
        """Yield the table that ends here, if it has several rows."""
        table, self._open = self._open, None
        if table is not None and self._count >= _FEWEST and table.header_end - table.start <= _MAX_HEADER:
            yield table
