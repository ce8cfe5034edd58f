"""Reads OpenDocument files (ISO/IEC 26300): texts, presentations and spreadsheets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.compound.embedded import embedded_blocks
from everlong_server.engine.documents.formats.readers.opendocument.controls import controls
from everlong_server.engine.documents.formats.readers.opendocument.lists import Lists, number
from everlong_server.engine.documents.formats.readers.opendocument.styles import Masters, raised_styles, struck_styles
from everlong_server.engine.documents.formats.readers.openxml.cells import Kind, column_letters, shown
from everlong_server.engine.documents.formats.readers.openxml.package import is_xml
from everlong_server.engine.documents.formats.readers.shared.addresses import external
from everlong_server.engine.documents.formats.readers.shared.equations import linear_mathml
from everlong_server.engine.documents.formats.readers.shared.marks import link, struck, superscript, written_out
from everlong_server.engine.documents.formats.readers.shared.tables import row_text
from everlong_server.engine.documents.formats.readers.shared.trees import parse
from everlong_server.engine.documents.formats.zips import open_zip

_NS = "urn:oasis:names:tc:opendocument:xmlns:"
_TEXT, _TABLE, _DRAW, _OFFICE = (f"{{{_NS}{name}:1.0}}" for name in ("text", "table", "drawing", "office"))
_SVG = f"{{{_NS}svg-compatible:1.0}}"
_PRESENTATION, _STYLE = f"{{{_NS}presentation:1.0}}", f"{{{_NS}style:1.0}}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_SPACE = re.compile(r"[ \t\r\n]+")
_MAX_REPEATED = 1000
_FURNITURE = ("page", "page-number", "date-time", "header", "footer")
"""Kinds of frames that a speaker's notes repeat from the slide."""
_DRAWINGS = (f"{_DRAW}page", f"{_PRESENTATION}notes", f"{_DRAW}frame", f"{_DRAW}control")
_SKIPPED = (
    f"{_TEXT}tracked-changes",
    f"{_OFFICE}forms",
    f"{_TABLE}shapes",
    f"{_TEXT}sequence-decls",
)


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs and tables of the file; a slide is a page, a sheet is a section."""
    parts = _Parts(file, notes)
    content, styles = parts.xml("content.xml"), parts.xml("styles.xml")
    if content is None:
        raise Unreadable("the OpenDocument file cannot be read: it has no content, so it is damaged")
    reader = _Reader(parts, notes, [tree for tree in (styles, content) if tree is not None])
    yield from reader.furniture(styles, "header")
    for body in content.iterfind(f"{_OFFICE}body/*"):
        yield from reader.blocks(body)
    yield from reader.furniture(styles, "footer")


class _Parts:
    """The parts of a file, which is a ZIP file or, if it is "flat", one XML file. Names are compared without regard to case."""

    def __init__(self, file: Path, notes: Notes) -> None:
        self._notes = notes
        self._flat = file.read_bytes() if is_xml(file) else None
        self._names: dict[str, str] = {}
        if self._flat is None:
            self._packed = open_zip(file, notes)
            self._names = {name.casefold(): name for name in self._packed.namelist()}
            manifest = self.read("META-INF/manifest.xml")
            if manifest is None:
                notes.add("it is missing; the file was read without it", part="META-INF/manifest.xml")
            elif b"encryption-data" in manifest:
                raise Unreadable("the OpenDocument file is encrypted; upload it without a password")

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a part; None if it is missing, or, with a note, damaged."""
        if self._flat is not None:
            return self._flat if name in ("content.xml", "styles.xml") else None
        try:
            return self._packed.read(self._names[name.casefold()])
        except KeyError:
            return None
        except DAMAGED_ENTRY as error:
            self._notes.add(f"it is damaged and was left out ({error})", part=name)
            return None

    def xml(self, name: str) -> Any:
        """Return the tree of a part, as far as it is not damaged; None if it is missing."""
        data = self.read(name)
        if data is None:
            return None
        tree, fault = parse(data)
        if fault is not None:
            self._notes.add(fault, part=name)
        return tree


class _Reader:
    def __init__(self, parts: _Parts, notes: Notes, trees: list[Any]) -> None:
        self._parts = parts
        self._notes = notes
        self._lists = Lists(trees)
        self._controls = controls(trees)
        self._raised = raised_styles(trees)
        self._struck = struck_styles(trees)
        self._masters = Masters(trees)
        self._page = 0
        self._section: str | None = None
        """The current heading or sheet."""
        self._pending: list[str] = []
        """Footnotes and comments of the current paragraph."""
        self._in_cell = False
        """Whether the current paragraph is in a table, which its notes follow."""
        self._cell = ""
        """The place of the current cell of a sheet, such as "B1"."""

    def furniture(self, styles: Any, kind: str) -> Iterator[Block]:
        """Yield the headers or footers of the page styles, each once."""
        found = (
            () if styles is None else styles.iter(f"{_STYLE}{kind}", f"{_STYLE}{kind}-left", f"{_STYLE}{kind}-first")
        )
        for text in dict.fromkeys("\n".join(block.text for block in self.blocks(part)).strip() for part in found):
            if text:
                yield Block(f"[{kind.capitalize()}] {text}")

    def blocks(self, parent: Iterable[Any]) -> Iterator[Block]:
        """Yield the blocks inside an element."""
        for element in parent:
            tag = element.tag
            if not isinstance(tag, str) or tag in _SKIPPED:
                if tag == f"{_TEXT}tracked-changes":
                    self._notes.left_out("deleted passages (tracked changes)", len(element))
            elif tag == f"{_TEXT}list":
                yield from self._list(element, element.get(f"{_TEXT}style-name", ""), 1)
            elif tag in (f"{_TEXT}p", f"{_TEXT}h"):
                yield from self._paragraph(element)
            elif tag == f"{_TABLE}table":
                yield from self._table(element)
            elif tag in _DRAWINGS:
                yield self._drawing(element)
            elif tag == f"{_OFFICE}annotation":
                self._annotation(element)
            elif tag in (f"{_SVG}title", f"{_SVG}desc"):
                # That of a frame is read with it.
                words = "" if element.getparent().tag == f"{_DRAW}frame" else " ".join((element.text or "").split())
                yield Block(f"[{words}]" if words else "")
            else:
                yield from self.blocks(element)

    def _background(self, slide: Any) -> Iterator[str]:
        """Yield what a slide shows besides its own shapes."""
        yield from (f"[Footer] {text}" for text in self._masters.footers(slide))
        for block in self.blocks(self._masters.shapes(slide)):
            if block.text.strip():
                yield f"[On each slide] {block.text.strip()}"

    def _drawing(self, element: Any) -> Block:
        """Return a slide, its notes, a frame or a control of a form."""
        match element.tag:
            case tag if tag == f"{_DRAW}page":
                self._page += 1
                texts = [*(block.text for block in self.blocks(element)), *self._background(element)]
                return Block("\n\n".join(filter(None, texts)), page=self._page)
            case tag if tag == f"{_PRESENTATION}notes":
                text = "\n".join(filter(None, (block.text for block in self.blocks(element)))).strip()
                return Block(f"[Speaker notes] {text}" if text else "")
            case tag if tag == f"{_DRAW}control":
                return Block(self._controls.get(element.get(f"{_DRAW}control", ""), ""))
        is_furniture = element.get(f"{_PRESENTATION}class") in _FURNITURE
        return Block("" if is_furniture else self._frame(element).strip("\n"))

    def _paragraph(self, element: Any) -> Iterator[Block]:
        """Yield a paragraph or a heading, and the notes on it."""
        text = written_out(self._inline(element)).strip()
        is_heading = bool(text) and element.tag == f"{_TEXT}h"
        if is_heading and element.get(f"{_TEXT}is-list-header") != "true":
            text = f"{self._lists.count_heading(element.get(f'{_TEXT}outline-level', '1'))} {text}".strip()
        section = " ".join(text.split()) if is_heading else None
        self._section = section or self._section
        yield Block(text, section=section)
        yield from (Block(note) for note in self._take_notes())

    def _table(self, element: Any) -> Iterator[Block]:
        """Yield a table or a sheet, the notes on it, and what is drawn on it."""
        is_sheet, is_inner = element.getparent().tag == f"{_OFFICE}spreadsheet", self._in_cell
        if is_sheet:
            name = element.get(f"{_TABLE}name", "")
            self._section = name or None
            yield Block(name, section=name or None)
        self._in_cell = True
        yield Block("\n".join(self._rows(element, is_sheet=is_sheet)))
        self._in_cell, self._cell = is_inner, self._cell if is_inner else ""
        yield from (Block(note) for note in self._take_notes())
        for drawings in element.iterchildren(f"{_TABLE}shapes"):
            yield from self.blocks(drawings)

    def _list(self, element: Any, style: str, level: int) -> Iterator[Block]:
        """Yield the items of a list, with their numbers."""
        resumes = any(element.get(f"{_TEXT}continue-{what}") for what in ("numbering", "list"))
        self._lists.begin(style, level, resumes=resumes and element.get(f"{_TEXT}continue-numbering") != "false")
        for item in element.iterchildren(f"{_TEXT}list-item", f"{_TEXT}list-header"):
            label = ""
            # An item that begins with a list has no text of its own.
            if item.tag == f"{_TEXT}list-item" and len(item) and item[0].tag != f"{_TEXT}list":
                label = self._lists.count(style, level, item.get(f"{_TEXT}start-value"))
            for child in item:
                if child.tag == f"{_TEXT}list":
                    yield from self._list(child, child.get(f"{_TEXT}style-name", style), level + 1)
                    continue
                for block in self.blocks([child]):
                    if label and block.text:
                        yield replace(block, text=f"{label} {block.text}")
                        label = ""
                    else:
                        yield block

    def _take_notes(self) -> list[str]:
        """Return the notes of what has ended; none inside a table, whose row they would break."""
        if self._in_cell:
            return []
        notes, self._pending = self._pending, []
        return notes

    def _rows(self, table: Any, *, is_sheet: bool) -> Iterator[str]:
        number = 0
        for row in table.iter(f"{_TABLE}table-row"):
            if next(row.iterancestors(f"{_TABLE}table")) is not table:
                continue  # of a table in a cell
            number += 1
            line = self._row(row, number if is_sheet else None)
            count = _repeated(row, "rows")
            number += count - 1
            yield from [line] * (min(count, _MAX_REPEATED) if line else 0)

    def _row(self, row: Any, number: int | None) -> str:
        """Return a row in one line. The positions that a cell covers are empty cells. `number`: of a row of a sheet."""
        cells: list[str] = []
        empty, shown, column = 0, 0, 0
        for cell in row.iterchildren(f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
            self._cell = self._cell if number is None else f"{column_letters(column)}{number}"
            text = "\n".join(filter(None, (block.text for block in self.blocks(cell)))) or _value(cell)
            column += _repeated(cell, "columns")
            count = min(_repeated(cell, "columns"), _MAX_REPEATED)
            shown += count if cell.tag == f"{_TABLE}table-cell" else 0
            if text:
                cells += [""] * empty + [text] * count
                empty = 0
            else:  # most rows of sheets end with thousands of empty cells
                empty = min(empty + count, _MAX_REPEATED)
        return row_text(cells, is_alone=shown == 1 and len(cells) == 1)

    def _inline(self, element: Any) -> str:
        """Return the text of a paragraph or a part of one."""
        parts = [_collapsed(element.text)]
        for child in element:
            if isinstance(child.tag, str):
                parts.append(self._part(child))
            parts.append(_collapsed(child.tail))
        is_struck = element.get(f"{_TEXT}style-name") in self._struck
        return struck("".join(parts)) if is_struck else "".join(parts)

    def _part(self, child: Any) -> str:
        match child.tag:
            case tag if tag == f"{_TEXT}s":
                return " " * min(number(child.get(f"{_TEXT}c")), _MAX_REPEATED)
            case tag if tag == f"{_TEXT}tab":
                return "\t"
            case tag if tag == f"{_TEXT}line-break":
                return "\n"
            case tag if tag == f"{_TEXT}note":
                return self._note(child)
            case tag if tag == f"{_OFFICE}annotation":
                self._annotation(child)
                return ""
            case tag if tag in _SKIPPED:
                return ""
            case tag if tag == f"{_TEXT}ruby-text":  # the pronunciation of the word before it
                guide = self._inline(child).strip()
                return f"({guide})" if guide else ""
            case tag if tag == f"{_DRAW}frame":
                words = self._frame(child)
                return f"\n{words}\n" if words and child.find(f"{_DRAW}text-box") is not None else words
            case tag if tag == f"{_TEXT}a":
                return link(self._inline(child), external(child.get(f"{_XLINK}href", "")))
            case tag if tag == f"{_TEXT}span" and child.get(f"{_TEXT}style-name") in self._raised:
                return superscript(self._inline(child))
            case tag if tag == f"{_DRAW}control":
                return self._controls.get(child.get(f"{_DRAW}control", ""), "")
            case tag if tag.startswith(_DRAW) and tag != f"{_DRAW}a":
                words = "\n".join(filter(None, (block.text for block in self.blocks([child]))))
                return f"\n{words}\n" if words else ""
        return self._inline(child)

    def _note(self, note: Any) -> str:
        citation = note.find(f"{_TEXT}note-citation")
        number = "" if citation is None else "".join(citation.itertext())
        text = self._note_text(note.find(f"{_TEXT}note-body"))
        kind = note.get(f"{_TEXT}note-class", "footnote").capitalize()
        if text:
            self._notes.add(f"{kind.lower()}s follow the paragraphs that refer to them")
            self._pending.append(f"[{kind} {number}] {text}")
        return f"[{number}]"

    def _note_text(self, body: Any) -> str:
        """Return the paragraphs of a note, and the notes on it. The note's paragraph has notes of its own."""
        outer, self._pending = self._pending, []
        try:
            texts = [block.text for block in (() if body is None else self.blocks(body)) if block.text]
            return "\n".join([*texts, *self._pending])
        finally:
            self._pending = outer

    def _annotation(self, annotation: Any) -> None:
        author = annotation.findtext("{http://purl.org/dc/elements/1.1/}creator", "")
        text = "\n".join(written_out(self._inline(p)) for p in annotation.iter(f"{_TEXT}p")).strip()
        if text:
            label = f"Comment{f' by {author}' if author else ''}{f' on {self._cell}' if self._cell else ''}"
            self._pending.append(f"[{label}] {text}")

    def _frame(self, frame: Any) -> str:
        """Return the words in a frame: a text box, a table, the description of a picture, an equation."""
        described = [frame.findtext(f"{_SVG}{name}", "").strip() for name in ("title", "desc")]
        words = [f"[{text}]" for text in dict.fromkeys(described) if text]
        for child in frame:
            if child.tag == f"{_DRAW}image" and not words:
                with self._notes.at(page=self._page or None, part=self._section):
                    self._notes.left_out("pictures without a description")
            elif child.tag in (f"{_DRAW}object", f"{_DRAW}object-ole"):
                return "\n".join([*words, *filter(None, self._object(child))])
        words += [block.text for block in self.blocks(frame)] if frame.tag == f"{_DRAW}frame" else []
        return "\n".join(filter(None, words))

    def _object(self, object: Any) -> Iterator[str]:
        """Yield the text of an embedded object: an equation, a document, a chart, a file of another program."""
        name = object.get(f"{_XLINK}href", "").removeprefix("./").rstrip("/")
        if (equation := object.find("{*}math")) is not None:
            yield linear_mathml(equation)
        elif len(object):  # in a flat file
            yield from (block.text for block in self.blocks(object))
        elif (data := self._parts.read(name)) is not None:
            yield from (block.text for block in embedded_blocks(data, name, self._notes))
        elif (tree := self._parts.xml(f"{name}/content.xml")) is None:
            self._notes.left_out("embedded objects that are not in the file")
        elif str(tree.tag).endswith("}math"):
            yield linear_mathml(tree)
        else:
            for body in tree.iterfind(f"{_OFFICE}body/*"):
                yield from (block.text for block in self.blocks(body))


def _repeated(element: Any, what: str) -> int:
    return number(element.get(f"{_TABLE}number-{what}-repeated"))


def _value(cell: Any) -> str:
    """Return the value of a cell that has no text."""
    match cell.get(f"{_OFFICE}value-type"):
        case "float" | "currency":
            return str(cell.get(f"{_OFFICE}value", ""))
        case "percentage":
            return shown(cell.get(f"{_OFFICE}value", ""), Kind.PERCENT)
        case "boolean":
            return str(cell.get(f"{_OFFICE}boolean-value", "")).upper()
        case "date" | "time" | "string" as kind:
            return str(cell.get(f"{_OFFICE}{kind}-value", ""))
    return ""


def _collapsed(text: str | None) -> str:
    """Return text with a space for each run of white space, as the format defines."""
    return _SPACE.sub(" ", text or "")
