"""Reads Excel files of 1990 to 2003: a section for each sheet, with its rows, comments, text boxes, charts, pictures and headers.

The library xlrd reads the cells and comments. `excel_records` reads the rest, of files since Excel 97. Files that xlrd cannot read
are read through the library kreuzberg, which reads the cells alone.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import olefile
import xlrd

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers import legacy
from everlong_server.engine.documents.formats.readers.compound.embedded import embedded_blocks, embedded_files, storages
from everlong_server.engine.documents.formats.readers.compound.excel_records import Records
from everlong_server.engine.documents.formats.readers.openxml.cells import (
    FROM_1904,
    Format,
    Kind,
    built_in,
    kind_of,
    shown,
)
from everlong_server.engine.documents.formats.readers.openxml.sheets import in_one_line, row_blocks

_EXCEL_97 = 80
"""The version, as xlrd counts, from which on `excel_records` reads a file."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the sheets in their order, also hidden ones."""
    stream, objects = _parts(file, notes)
    try:
        book = _opened(stream) if stream else None
    except Exception as error:  # xlrd raises many kinds of errors for damaged files
        if "encrypted" in str(error):
            raise Unreadable("the file is encrypted; upload it without a password") from None
        book = None
    if book is None:
        yield from legacy.read(file, notes, "xls")
        return
    records = Records(stream)
    if book.biff_version < _EXCEL_97:
        notes.add(
            "text boxes, charts, pictures and headers of files before Excel 97 are not read; save it as .xlsx to keep them"
        )
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
        with notes.at(part=name):
            yield from map(Block, records.texts(name, notes))
    for name, data in objects:
        yield from embedded_blocks(data, name, notes)


def _opened(records: bytes) -> Any:
    """Return the workbook. Raises what xlrd raises for records that are damaged: errors of many kinds."""
    opened = partial(
        xlrd.open_workbook, file_contents=records, formatting_info=True, ragged_rows=True, logfile=io.StringIO()
    )
    try:
        return opened()
    except (LookupError, UnicodeDecodeError):  # of an unknown code page, or that is not the declared one
        return opened(encoding_override="cp1252")


def _parts(file: Path, notes: Notes) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the records of the file, and its embedded files. (xlrd never ends in some damaged containers.)"""
    if not olefile.isOleFile(file):  # before Excel 5
        return file.read_bytes(), []
    stream = b""
    try:
        with olefile.OleFileIO(file) as ole:
            name = next((name for name in ("Workbook", "Book") if ole.exists(name)), None)
            stream = ole.openstream(name).read() if name else b""
            objects = (path for path in storages(ole) if path[0].startswith("MBD"))
            return stream, list(embedded_files(ole, objects, notes))
    except (OSError, ValueError, IndexError, struct.error):
        return stream, []


def _kind(book: Any, style: Any) -> Format:
    """Return how a cell style shows numbers."""
    found = book.format_map.get(style.format_key)
    code = None if found is None else found.format_str  # xlrd does not know the code of every built-in format
    kind = built_in(str(style.format_key)) if code is None else kind_of(code)
    return FROM_1904.get(kind, kind) if book.datemode else kind


def _rows(sheet: Any, kinds: list[Format]) -> Iterator[str]:
    """Yield the rows, without empty cells at the ends."""
    for number in range(sheet.nrows):
        yield "\t".join(_cell(cell, kinds) for cell in sheet.row(number)).rstrip()


def _cell(cell: Any, kinds: list[Format]) -> str:
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
