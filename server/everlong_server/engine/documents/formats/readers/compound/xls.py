"""Reads Excel files of 1990 to 2003: a section for each sheet, with its rows, comments, text boxes, titles of charts and headers.

The library xlrd reads the cells and comments. The rest is read here, from the records of MS-XLS. Files that xlrd cannot read are
read through the library kreuzberg, which reads the cells alone.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import olefile
import xlrd

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers import legacy
from everlong_server.engine.documents.formats.readers.compound.embedded import embedded_blocks, embedded_files
from everlong_server.engine.documents.formats.readers.openxml.cells import FROM_1904, Kind, kind_of, shown
from everlong_server.engine.documents.formats.readers.openxml.sheets import in_one_line, row_blocks, without_layout

_BOF, _EOF, _SHEET, _HEADER, _FOOTER, _OBJECT, _TEXT, _MORE, _CHART_TEXT = (
    0x0809, 0x000A, 0x0085, 0x0014, 0x0015, 0x005D, 0x01B6, 0x003C, 0x100D,
)  # fmt: skip
"""Types of records."""
_COMMENT = 0x19
"""The kind of an object that is a comment's box."""
_CHART = 2
"""The kind of a sheet that is a chart."""
_EXCEL_97 = 0x0600


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the sheets in their order, also hidden ones."""
    try:
        book = _opened(file)
    except Exception as error:  # xlrd raises many kinds of errors for damaged files
        if "encrypted" in str(error):
            raise Unreadable("the file cannot be read: it is encrypted; upload it without a password") from None
        book = None
    if book is None:
        yield from legacy.read(file, notes, "xls")
        return
    stream, objects = _parts(file, notes)
    records = _Records(stream)
    sheets = {sheet.name: sheet for sheet in book.sheets()}
    kinds = [_kind(book, style) for style in book.xf_list]
    for name in dict.fromkeys(
        [*(name for name in records.sheets if name in sheets or records.is_chart(name)), *sheets]
    ):
        yield Block(name, section=name or None)
        if (sheet := sheets.get(name)) is not None:
            if sheet.visibility:
                notes.add("the sheet is hidden", part=name)
            yield from row_blocks(_rows(sheet, kinds))
            yield from _comments(sheet)
        yield from map(Block, records.texts(name))
    for name, data in objects:
        yield from embedded_blocks(data, name, notes)


def _opened(file: Path) -> Any:
    """Return the workbook. Raises what xlrd raises for files that are damaged: errors of many kinds."""
    log = io.StringIO()
    try:
        return xlrd.open_workbook(file, formatting_info=True, ragged_rows=True, logfile=log)
    except (LookupError, UnicodeDecodeError):  # of an unknown code page, or that is not the declared one
        return xlrd.open_workbook(file, formatting_info=True, ragged_rows=True, logfile=log, encoding_override="cp1252")


def _parts(file: Path, notes: Notes) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the records of the file, and its embedded files."""
    if not olefile.isOleFile(file):  # before Excel 5
        return b"", []
    try:
        with olefile.OleFileIO(file) as ole:
            name = next((name for name in ("Workbook", "Book") if ole.exists(name)), None)
            stream = ole.openstream(name).read() if name else b""
            storages = {(path[0],) for path in ole.listdir() if len(path) > 1 and path[0].startswith("MBD")}
            return stream, list(embedded_files(ole, storages, notes))
    except (OSError, ValueError, IndexError, struct.error):
        return b"", []


def _kind(book: Any, style: Any) -> Kind:
    """Return how a cell style shows numbers."""
    found = book.format_map.get(style.format_key)
    kind = kind_of(found.format_str) if found is not None else Kind.NUMBER
    return FROM_1904.get(kind, kind) if book.datemode else kind


def _rows(sheet: Any, kinds: list[Kind]) -> Iterator[str]:
    """Yield the rows, without empty cells at the ends."""
    for number in range(sheet.nrows):
        yield "\t".join(_cell(cell, kinds) for cell in sheet.row(number)).rstrip()


def _cell(cell: Any, kinds: list[Kind]) -> str:
    match cell.ctype:
        case xlrd.XL_CELL_TEXT:
            return in_one_line(cell.value)
        case xlrd.XL_CELL_NUMBER | xlrd.XL_CELL_DATE:
            kind = kinds[cell.xf_index] if 0 <= cell.xf_index < len(kinds) else Kind.NUMBER
            return shown(repr(cell.value), kind)
        case xlrd.XL_CELL_BOOLEAN:
            return "TRUE" if cell.value else "FALSE"
        case xlrd.XL_CELL_ERROR:
            return str(xlrd.error_text_from_code.get(cell.value, "#ERROR"))
    return ""


def _comments(sheet: Any) -> Iterator[Block]:
    for (row, column), note in sorted(sheet.cell_note_map.items()):
        if text := note.text.strip():
            author = f" by {note.author.strip()}" if note.author.strip() else ""
            yield Block(f"[Comment{author} on {xlrd.cellname(row, column)}] {text}")


@dataclass(slots=True)
class _Records:
    """The records of a file. `sheets`: the places and kinds of the sheets, by their names, in the file's order."""

    stream: bytes
    sheets: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, data in _until_end(self.stream, 0):
            if kind == _BOF and int.from_bytes(data[:2], "little") != _EXCEL_97:
                return  # an older one, with other texts
            if kind == _SHEET and len(data) > 8:
                name = _characters(data[7:], data[6])
                self.sheets.setdefault(name, (int.from_bytes(data[:4], "little"), data[5]))

    def is_chart(self, name: str) -> bool:
        """Whether the sheet is a chart, which has no cells."""
        return self.sheets[name][1] == _CHART

    def texts(self, name: str) -> Iterator[str]:
        """Yield the text boxes, the titles in charts, and the headers and footers of printed pages of a sheet, each once."""
        at = self.sheets.get(name, (len(self.stream), 0))[0]
        found: list[str] = []
        is_comment, box, left = False, "", 0  # the number of characters that the next records have
        for kind, data in _until_end(self.stream, at):
            if kind == _OBJECT:
                is_comment = data[4:5] == bytes([_COMMENT])
            elif kind == _TEXT:
                box, left = "", 0 if is_comment else int.from_bytes(data[10:12], "little")
            elif kind == _MORE and left and data:
                box += _characters(data, left)
                left = max(0, left - (len(data) - 1) // (2 if data[0] & 1 else 1))
                found += [] if left else [box.strip()]
            elif kind in (_HEADER, _FOOTER) and len(data) > 3:
                words = without_layout(_characters(data[2:], int.from_bytes(data[:2], "little")))
                found += [f"[{'Header' if kind == _HEADER else 'Footer'}] {words}"] if words else []
            elif kind == _CHART_TEXT and len(data) > 4:
                found.append(_characters(data[3:], data[2]).strip())
        yield from dict.fromkeys(found)


def _until_end(stream: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the type and content of each record of a sheet, also of the charts in it."""
    depth = 0
    while at + 4 <= len(stream):
        kind, size = struct.unpack_from("<HH", stream, at)
        yield kind, stream[at + 4 : at + 4 + size]
        at += 4 + size
        depth += (kind == _BOF) - (kind == _EOF)
        if depth <= 0:
            return


def _characters(data: bytes, count: int) -> str:
    """Return at most so many characters, which are in one or two bytes each. The first byte says in which."""
    if data[0] & 1:
        return data[1 : 1 + 2 * count].decode("utf-16-le", "replace")
    return data[1 : 1 + count].decode("latin-1")
