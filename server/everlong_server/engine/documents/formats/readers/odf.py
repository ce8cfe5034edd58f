"""Reads OpenDocument files (ISO/IEC 26300): texts, presentations and spreadsheets."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lxml import etree

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.equations import linear_mathml

_NS = "urn:oasis:names:tc:opendocument:xmlns:"
_TEXT, _TABLE, _DRAW, _OFFICE = (f"{{{_NS}{name}:1.0}}" for name in ("text", "table", "drawing", "office"))
_SVG = f"{{{_NS}svg-compatible:1.0}}"
_PRESENTATION, _STYLE = f"{{{_NS}presentation:1.0}}", f"{{{_NS}style:1.0}}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_SPACE = re.compile(r"[ \t\r\n]+")
_MAX_REPEATED = 1000
_FURNITURE = ("page", "page-number", "date-time", "header", "footer")
"""Kinds of frames that a speaker's notes repeat from the slide."""
_SKIPPED = (
    f"{_TEXT}tracked-changes",
    f"{_TEXT}ruby-text",
    f"{_OFFICE}forms",
    f"{_TABLE}shapes",
    f"{_TEXT}sequence-decls",
)


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs and tables of the file; a slide is a page, a sheet is a section."""
    try:
        packed = zipfile.ZipFile(file)
        manifest = "META-INF/manifest.xml"
        if manifest not in packed.namelist():
            notes.add("it is missing; the file was read without it", part=manifest)
        elif b"encryption-data" in packed.read(manifest):
            raise Unreadable("the OpenDocument file cannot be read: it is encrypted; upload it without a password")
        content = _xml(packed.read("content.xml"))
        styles = _xml(packed.read("styles.xml")) if "styles.xml" in packed.namelist() else None
    except (KeyError, etree.XMLSyntaxError, *DAMAGED_ENTRY) as error:
        raise Unreadable(f"the OpenDocument file cannot be read: it is damaged ({error})") from None
    reader = _Reader(packed, notes)
    yield from reader.furniture(styles, "header")
    for body in content.iterfind(f"{_OFFICE}body/*"):
        yield from reader.blocks(body)
    yield from reader.furniture(styles, "footer")


def _xml(data: bytes) -> Any:
    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True))


class _Reader:
    def __init__(self, packed: zipfile.ZipFile, notes: Notes) -> None:
        self._packed = packed
        self._notes = notes
        self._page = 0
        self._pending: list[str] = []
        """Footnotes and comments of the current paragraph."""

    def furniture(self, styles: Any, kind: str) -> Iterator[Block]:
        """Yield the headers or footers of the page styles, each once."""
        found = (
            () if styles is None else styles.iter(f"{_STYLE}{kind}", f"{_STYLE}{kind}-left", f"{_STYLE}{kind}-first")
        )
        for text in dict.fromkeys("\n".join(block.text for block in self.blocks(part)).strip() for part in found):
            if text:
                yield Block(f"[{kind.capitalize()}] {text}")

    def blocks(self, parent: Any) -> Iterator[Block]:
        """Yield the blocks inside an element."""
        for element in parent:
            tag = element.tag
            if not isinstance(tag, str) or tag in _SKIPPED:
                if tag == f"{_TEXT}tracked-changes":
                    self._notes.left_out("deleted passages (tracked changes)", len(element))
            elif tag in (f"{_TEXT}p", f"{_TEXT}h"):
                text = self._inline(element).strip()
                yield Block(text, section=" ".join(text.split()) if tag == f"{_TEXT}h" and text else None)
                yield from (Block(note) for note in self._taken())
            elif tag == f"{_TABLE}table":
                if parent.tag == f"{_OFFICE}spreadsheet":
                    name = element.get(f"{_TABLE}name", "")
                    yield Block(name, section=name or None)
                yield Block("\n".join(self._rows(element)))
                yield from (Block(note) for note in self._taken())
            elif tag == f"{_DRAW}page":
                self._page += 1
                slide = "\n\n".join(filter(None, (block.text for block in self.blocks(element))))
                yield Block(slide, page=self._page)
            elif tag == f"{_PRESENTATION}notes":
                text = "\n".join(filter(None, (block.text for block in self.blocks(element)))).strip()
                yield Block(f"[Speaker notes] {text}" if text else "")
            elif tag == f"{_DRAW}frame":
                if element.get(f"{_PRESENTATION}class") not in _FURNITURE:
                    yield Block(self._frame(element).strip())
            elif tag == f"{_OFFICE}annotation":
                self._annotation(element)
            else:
                yield from self.blocks(element)

    def _taken(self) -> list[str]:
        taken, self._pending = self._pending, []
        return taken

    def _rows(self, table: Any) -> Iterator[str]:
        for row in table.iter(f"{_TABLE}table-row"):
            if next(row.iterancestors(f"{_TABLE}table")) is not table:
                continue  # of a table in a cell
            cells = []
            for cell in row.iterchildren(f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
                text = "\n".join(filter(None, (block.text for block in self.blocks(cell))))
                cells += [text] * (min(_repeated(cell, "columns"), _MAX_REPEATED) if text else 1)
            line = "\t".join(cells).rstrip()
            yield from [line] * (min(_repeated(row, "rows"), _MAX_REPEATED) if line else 0)

    def _inline(self, element: Any) -> str:
        """Return the text of a paragraph or a part of one."""
        parts = [_collapsed(element.text)]
        for child in element:
            if isinstance(child.tag, str):
                parts.append(self._part(child))
            parts.append(_collapsed(child.tail))
        return "".join(parts)

    def _part(self, child: Any) -> str:
        match child.tag:
            case tag if tag == f"{_TEXT}s":
                return " " * min(int(child.get(f"{_TEXT}c", "1")), _MAX_REPEATED)
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
            case tag if tag == f"{_DRAW}frame":
                return self._frame(child)
        return self._inline(child)

    def _note(self, note: Any) -> str:
        number = "".join(note.find(f"{_TEXT}note-citation").itertext()) if len(note) else ""
        text = " ".join("".join(note.find(f"{_TEXT}note-body").itertext()).split()) if len(note) > 1 else ""
        kind = note.get(f"{_TEXT}note-class", "footnote").capitalize()
        if text:
            self._notes.add(f"{kind.lower()}s follow the paragraphs that refer to them")
            self._pending.append(f"[{kind} {number}] {text}")
        return f"[{number}]"

    def _annotation(self, annotation: Any) -> None:
        author = annotation.findtext("{http://purl.org/dc/elements/1.1/}creator", "")
        text = "\n".join("".join(p.itertext()) for p in annotation.iter(f"{_TEXT}p")).strip()
        if text:
            self._pending.append(f"[Comment{f' by {author}' if author else ''}] {text}")

    def _frame(self, frame: Any) -> str:
        """Return the words in a frame: a text box, a table, the description of a picture, an equation."""
        described = [frame.findtext(f"{_SVG}{name}", "").strip() for name in ("title", "desc")]
        words = [f"[{text}]" for text in dict.fromkeys(described) if text]
        for child in frame:
            if child.tag == f"{_DRAW}object" and (equation := self._equation(child)):
                return equation
            if child.tag == f"{_DRAW}image" and not words:
                self._notes.left_out("pictures without a description")
            elif child.tag in (f"{_DRAW}object", f"{_DRAW}object-ole"):
                self._notes.left_out("embedded objects")
                return " ".join(words)
        words += [block.text for block in self.blocks(frame)] if frame.tag == f"{_DRAW}frame" else []
        return "\n".join(filter(None, words))

    def _equation(self, object: Any) -> str:
        name = object.get(f"{_XLINK}href", "").removeprefix("./").rstrip("/") + "/content.xml"
        try:
            tree = _xml(self._packed.read(name))
        except (KeyError, etree.XMLSyntaxError, *DAMAGED_ENTRY):
            return ""
        if not tree.tag.endswith("}math"):
            return ""
        return linear_mathml(tree)


def _repeated(element: Any, what: str) -> int:
    return int(element.get(f"{_TABLE}number-{what}-repeated", "1"))


def _collapsed(text: str | None) -> str:
    """Return text with a space for each run of white space, as the format defines."""
    return _SPACE.sub(" ", text or "")
