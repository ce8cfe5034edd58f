"""Reads the records of Excel files in binary form (MS-XLSB): names of sheets, comments, headers and footers of printed pages."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from everlong_server.engine.documents.formats.readers.openxml.cells import column_letters

_SHEET, _FURNITURE, _AUTHOR, _COMMENT, _COMMENT_TEXT = 156, 479, 632, 635, 637
"""Types of records."""
_NULL = 0xFFFFFFFF
"""The length of a string that is missing."""


@dataclass(frozen=True, slots=True)
class BinarySheet:
    """A sheet. `reference`: the id of the relationship to its part."""

    name: str
    reference: str
    is_hidden: bool


def sheets(workbook: bytes) -> Iterator[BinarySheet]:
    """Yield the sheets in their order."""
    for kind, data in _records(workbook):
        if kind == _SHEET:
            reference, name = _strings(data[8:], 2)
            yield BinarySheet(name, reference, is_hidden=data[:4] != bytes(4))


def comments(part: bytes) -> Iterator[tuple[str, str, str]]:
    """Yield the author, the cell and the text of each comment."""
    authors: list[str] = []
    author, place = -1, (0, 0)
    for kind, data in _records(part):
        if kind == _AUTHOR:
            authors += _strings(data, 1)
        elif kind == _COMMENT and len(data) >= 20:
            author, row, _, column = struct.unpack_from("<4I", data)
            place = row, column
        elif kind == _COMMENT_TEXT:
            name = authors[author] if 0 <= author < len(authors) else ""
            yield name, f"{column_letters(place[1])}{place[0] + 1}", _strings(data[1:], 1)[0].strip()


def furniture(sheet: bytes) -> Iterator[tuple[str, str]]:
    """Yield "Header" or "Footer", and its line with the codes of its layout."""
    for kind, data in _records(sheet):
        if kind == _FURNITURE:
            yield from zip(("Header", "Footer") * 3, _strings(data[2:], 6), strict=True)


def _records(part: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and content of each record; of the last one, what is there. Type and size are numbers of 7 bits in each byte."""
    at = 0
    while at < len(part):
        numbers = [0, 0]
        for index, most in enumerate((2, 4)):
            for shift in range(most):
                byte = part[at] if at < len(part) else 0
                numbers[index] |= (byte & 0x7F) << 7 * shift
                at += 1
                if not byte & 0x80:
                    break
        kind, size = numbers
        yield kind, part[at : at + size]
        at += size


def _strings(data: bytes, count: int) -> list[str]:
    """Return the strings that `data` begins with; "" for those that are missing."""
    found, at = [], 0
    for _ in range(count):
        length = int.from_bytes(data[at : at + 4], "little")
        length = 0 if length == _NULL else length
        found.append(data[at + 4 : at + 4 + 2 * length].decode("utf-16-le", "replace"))
        at += 4 + 2 * length
    return found
