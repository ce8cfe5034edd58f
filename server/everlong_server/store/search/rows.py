"""Rows of tables in a text: lines with tabs, lines of CSV, and rows of Markdown. They are searched and shown whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CELLS = r"[^\n]*\S *\t[^\n]*\S|(?:[^\n]*?[,;](?=[^\s,;]|[,;]{2})){3}|[ ]*\|[^\n]*\|"
"""A row: a tab between words, three commas or semicolons that no space follows, or bars around cells."""
_ROW = re.compile(rf"(?m)^(?:{_CELLS})[^\n]*\n?")
_ROW_BYTES = re.compile(rf"(?:{_CELLS})".encode())


def rows(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each row in characters. The line break belongs to its row."""
    return (row.span() for row in _ROW.finditer(text))


def is_row(line: bytes) -> bool:
    """Return whether a line of UTF-8, or its beginning, is a row."""
    return _ROW_BYTES.match(line) is not None
