"""Reads Excel files: a section for each sheet, with its rows, comments, text boxes and charts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from lxml import etree

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers import legacy
from everlong_server.engine.documents.formats.readers.openxml import binary
from everlong_server.engine.documents.formats.readers.openxml.cells import Styles, is_struck, shown
from everlong_server.engine.documents.formats.readers.openxml.package import Package, R, Relation, is_xml
from everlong_server.engine.documents.formats.readers.openxml.shapes import shapes
from everlong_server.engine.documents.formats.readers.shared.addresses import external, labelled
from everlong_server.engine.documents.formats.readers.shared.marks import struck, superscript, written_out
from everlong_server.engine.documents.formats.readers.shared.trees import OPTIONS, parse, repaired

_ESCAPED = re.compile(r"_x([0-9a-fA-F]{4})_")
_LETTERS = re.compile(r"[A-Z]{1,3}")
_LINK = re.compile(r'\s*(?:_xlfn\.)?HYPERLINK\(\s*"([^"]*)"', re.IGNORECASE)
"""A formula that is a link with a fixed address."""
_LAYOUT = re.compile(r'&(?:"[^"]*"|K[0-9A-Fa-f]{6}|\d+|[A-Za-z]|(&))')
"""Codes in headers and footers: fonts, sizes, page numbers; && is a character."""
_EXCEL_2003 = "{urn:schemas-microsoft-com:office:spreadsheet}"
_PEOPLE = "xl/persons/person.xml"
"""The part with the authors of threaded comments."""
_COPY = "[Threaded comment]"
"""The beginning of a copy of a threaded comment for old versions of Excel."""
_SHEET = r"xl/worksheets/sheet(\d+)\.xml"
_ROW = "{*}row"
_MAX_COLUMN = 16384
_ROWS_TOGETHER = 1000


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the sheets in their order, also hidden ones."""
    if is_xml(file):
        yield from _sheets_of_2003(file)
        return
    package = Package(file, notes)
    if package.has("xl/workbook.bin"):  # xlsb
        yield from _binary_sheets(file, package, notes)
        return
    workbook, relations = _workbook(package)
    by_kind = {relation.kind: relation.target for relation in relations.values()}
    strings = list(_strings(package, by_kind.get("sharedStrings", "xl/sharedStrings.xml"), notes))
    is_1904 = any(p.get("date1904") in ("1", "true") for p in _children(workbook, "{*}workbookPr"))
    target = by_kind.get("styles", "" if relations else "xl/styles.xml")
    styles = Styles(package.xml(target) if package.has(target) else None, is_1904=is_1904)
    known, is_damaged = set[str](), False
    for sheet in _children(workbook, "{*}sheets/{*}sheet"):
        name = sheet.get("name", "")
        relation = relations.get(sheet.get(f"{R}id", ""))
        if relation is None or relation.external or not package.has(relation.target):
            notes.add("the sheet is not in the file", part=name)
            is_damaged = True
            continue
        known.add(relation.target)
        if sheet.get("state", "visible") != "visible":
            notes.add("the sheet is hidden", part=name)
        yield Block(name, section=name or None)
        with notes.at(part=name):
            yield from _Sheet(package, relation.target, strings, styles, notes).blocks()
    for part in package.unnamed(_SHEET, known, notes) if is_damaged or workbook is None else ():
        with notes.at(part=part):
            yield from _Sheet(package, part, strings, styles, notes).blocks()


def _workbook(package: Package) -> tuple[Any, dict[str, Relation]]:
    """Return the tree of the main part, and its relations; None and {} if only sheets are left of the file. Raises `Unreadable`."""
    try:
        main = package.main("sheet.main+xml", r"xl/workbook\d*\.xml")
    except Unreadable:
        if not package.matches(_SHEET):
            raise
        return None, {}
    return package.xml(main), package.relations(main)


def _children(tree: Any, path: str) -> list[Any]:
    return [] if tree is None else tree.findall(path)


def _binary_sheets(file: Path, package: Package, notes: Notes) -> Iterator[Block]:
    """Yield the sheets of a file in binary form (xlsb). Another library reads the cells, and leaves out sheets without any."""
    relations = package.relations("xl/workbook.bin")
    sheets = list(binary.sheets(package.read("xl/workbook.bin") or b""))
    if not sheets:
        notes.add("it is damaged: its comments, drawings and headers were not read", part="xl/workbook.bin")
    found: list[Block] = []
    cells = {"": found}
    names = {_heading(sheet.name) for sheet in sheets}
    for block in legacy.read(file, notes, "xlsx"):
        if block.section in names:
            cells[block.section or ""] = found = []
        found.append(block)
    yield from cells.pop("")
    for sheet in sheets:
        relation = relations.get(sheet.reference)
        if sheet.is_hidden:
            notes.add("the sheet is hidden", part=sheet.name)
        yield from cells.pop(_heading(sheet.name), [Block(sheet.name, section=sheet.name or None)])
        if relation is not None and not relation.external:
            styles = Styles(None, is_1904=False)
            with notes.at(part=sheet.name):
                yield from _Sheet(package, relation.target, [], styles, notes).related()


def _heading(name: str) -> str:
    """Return the name of a sheet as `legacy` gives it."""
    return " ".join(name.split())


def _sheets_of_2003(file: Path) -> Iterator[Block]:
    """Yield the sheets of a file that is one XML file, as Excel 2002 and 2003 write it."""
    tree, _ = parse(file.read_bytes())
    for sheet in () if tree is None else tree.iter(f"{_EXCEL_2003}Worksheet"):
        name = sheet.get(f"{_EXCEL_2003}Name", "")
        yield Block(name, section=name or None)
        lines = []
        for row in sheet.iter(f"{_EXCEL_2003}Row"):
            cells: list[str] = []
            for cell in row.iterchildren(f"{_EXCEL_2003}Cell"):
                place = cell.get(f"{_EXCEL_2003}Index", "")
                if place.isdecimal() and len(cells) < int(place) <= _MAX_COLUMN:
                    cells += [""] * (int(place) - 1 - len(cells))
                data = cell.find(f"{_EXCEL_2003}Data")
                text = "" if data is None else _unescaped("".join(data.itertext())).removesuffix("T00:00:00.000")
                cells.append(labelled(text, external(cell.get(f"{_EXCEL_2003}HRef", ""))))
            lines.append("\t".join(cells).rstrip())
        yield Block("\n".join(filter(None, lines)))
        for comment in sheet.iter(f"{_EXCEL_2003}Comment"):
            yield Block(f"[Comment] {' '.join(''.join(comment.itertext()).split())}")


def _strings(package: Package, part: str, notes: Notes) -> Iterator[str]:
    """Yield the strings that cells share."""
    yield from (_words(item) for item in _elements(package, part, "{*}si", notes)) if package.has(part) else ()


def _elements(package: Package, part: str, tag: str, notes: Notes) -> Iterator[Any]:
    """Yield the elements with this tag one by one, as a sheet may be too large for memory."""
    count = 0
    try:
        with package.open(part) as stream:
            for element in _iterated(stream, tag):
                yield element
                count += 1
    except etree.XMLSyntaxError as error:
        stream = io.BytesIO(repaired(package.read(part) or b""))
        notes.add(f"it is damaged and may have lost text ({error})", part=part)
        yield from islice(_iterated(stream, tag, recover=True), count, None)
    except DAMAGED_ENTRY as error:
        notes.add(f"it is damaged and may have lost text ({error})", part=part)


def _iterated(stream: IO[bytes], tag: str, *, recover: bool = False) -> Iterator[Any]:
    """Yield the elements with this tag. Frees the memory of each one after its use, and that of all rows."""
    for _, element in etree.iterparse(stream, tag=(tag, _ROW), **OPTIONS, recover=recover):
        if tag == _ROW or etree.QName(element).localname != "row":
            yield element
        element.clear()
        while element.getprevious() is not None:
            del element.getparent()[0]


def _words(item: Any) -> str:
    """Return the text of a string, without pronunciation guides."""
    parts = (
        _marked(text)
        for text in item.iter("{*}t")
        if text.getparent() is item or not text.getparent().tag.endswith("}rPh")
    )
    return _unescaped(written_out("".join(parts)))


def _marked(text: Any) -> str:
    """Return the text of a run, with marks if it is a superscript or struck through."""
    words, properties = text.text or "", text.getparent().find("{*}rPr")
    if properties is None:
        return words
    position = properties.find("{*}vertAlign")
    words = superscript(words) if position is not None and position.get("val") == "superscript" else words
    return struck(words) if is_struck(properties) else words


def _unescaped(text: str) -> str:
    """Return a string on one line, with escapes such as _x0041_ replaced by their characters."""
    text = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), text) if "_x" in text else text
    return in_one_line(text)


def in_one_line(text: str) -> str:
    """Return the text of a cell without line ends and tabs, which separate rows and cells."""
    return " ".join(text.split("\n")).replace("\r", "").replace("\t", " ").strip()


def row_blocks(rows: Iterable[str]) -> Iterator[Block]:
    """Yield the rows of a sheet, which are one block, in parts. Leaves out empty rows."""
    lines: list[str] = []
    joined = False
    for line in filter(None, rows):
        lines.append(line)
        if len(lines) == _ROWS_TOGETHER:
            yield Block(("\n" if joined else "") + "\n".join(lines), joined=joined)
            joined, lines = True, []
    if lines:
        yield Block(("\n" if joined else "") + "\n".join(lines), joined=joined)


class _Sheet:
    def __init__(self, package: Package, part: str, strings: list[str], styles: Styles, notes: Notes) -> None:
        self._package, self._part = package, part
        self._strings, self._styles, self._notes = strings, styles, notes
        self._links: dict[str, str] = {}

    def blocks(self) -> Iterator[Block]:
        """Yield the rows, and what belongs to the sheet."""
        self._links = self._addresses()
        yield from row_blocks(map(self._row, _elements(self._package, self._part, _ROW, self._notes)))
        yield from self.related()

    def related(self) -> Iterator[Block]:
        """Yield what belongs to the sheet."""
        for relation in self._package.relations(self._part).values():
            if relation.external or not self._package.has(relation.target):
                continue
            match relation.kind:
                case "comments" | "threadedComment":
                    yield from map(Block, self._comments(relation.target))
                case "drawing":
                    tree = self._package.xml(relation.target)
                    texts = () if tree is None else shapes(self._package, relation.target, tree, self._notes)
                    yield from map(Block, texts)
                case "package" | "oleObject":
                    yield from map(Block, self._package.embedded(relation))
        yield from self._furniture()

    def _row(self, row: Any) -> str:
        cells: list[str] = []
        column = 0
        for cell in row.iterchildren("{*}c"):
            letters = _LETTERS.match(cell.get("r", ""))
            column = max(column, _column(letters[0]) if letters else column)
            text = self._cell(cell)
            text = f"~~{text}~~" if text and self._styles.is_struck(cell.get("s", "")) and "~~" not in text else text
            if text and (address := self._links.get(cell.get("r", "")) or _formula_address(cell)):
                text = labelled(text, address)
            if text and column < _MAX_COLUMN:
                cells += [""] * (column - len(cells)) + [text]
            column += 1
        return "\t".join(cells)

    def _cell(self, cell: Any) -> str:
        kind, value = cell.get("t", "n"), cell.findtext("{*}v")
        if kind == "inlineStr":
            inline = cell.find("{*}is")
            return "" if inline is None else _words(inline)
        # Programs that do not calculate write an empty value. That of a string may be the result of a formula.
        if value is None or (not value.strip() and kind not in ("str", "s")):
            formula = cell.find("{*}f")
            if formula is not None and not formula.text:  # it is the formula of another cell, moved
                self._notes.left_out("formulas without a saved value")
            return "" if formula is None or not formula.text else f"={in_one_line(formula.text)}"
        match kind:
            case "s":
                known = value.strip().isdecimal() and int(value) < len(self._strings)
                if not known:
                    self._notes.left_out("cells whose text is not in the file")
                return self._strings[int(value)] if known else ""
            case "b":
                return "TRUE" if value.strip() in ("1", "true") else "FALSE"
            case "str":
                return _unescaped(value)
            case "d" | "e":
                return value.removesuffix("T00:00:00")
        return shown(value, self._styles.of(cell.get("s", "")))

    def _addresses(self) -> dict[str, str]:
        """Return the addresses of links by their cell, the first one if a link is on several."""
        relations = self._package.relations(self._part)
        known = {id: external(r.target) for id, r in relations.items() if r.kind == "hyperlink" and r.external}
        links = _elements(self._package, self._part, "{*}hyperlink", self._notes) if any(known.values()) else ()
        found = {}
        for link in links:
            address, place = known.get(link.get(f"{R}id", ""), ""), link.get("location", "")
            address += f"#{place}" if address and place and "#" not in address else ""
            found[link.get("ref", "").partition(":")[0]] = address
        return found

    def _comments(self, part: str) -> Iterator[str]:
        if part.endswith(".bin"):
            for author, place, text in binary.comments(self._package.read(part) or b""):
                if text and not text.startswith(_COPY):
                    yield _comment(author, place, text)
            return
        tree = self._package.xml(part)
        if tree is None:
            return
        authors = [author.text or "" for author in tree.iter("{*}author")]
        people = self._package.xml(_PEOPLE) if self._package.has(_PEOPLE) else None
        names = {person.get("id", ""): person.get("displayName", "") for person in (() if people is None else people)}
        for comment in tree.iter("{*}comment", "{*}threadedComment"):
            text = "".join(t.text or "" for t in comment.iter("{*}t", "{*}text")).strip()
            if text and not text.startswith(_COPY):
                index = comment.get("authorId", "")
                author = authors[int(index)] if index.isdecimal() and int(index) < len(authors) else ""
                author = author or names.get(comment.get("personId", ""), "")
                yield _comment(author, comment.get("ref", ""), text)

    def _furniture(self) -> Iterator[Block]:
        """Yield the headers and footers of printed pages, each once."""
        seen = set[str]()
        for kind, line in self._furniture_lines():
            text = without_layout(line)
            if text and text not in seen:
                seen.add(text)
                yield Block(f"[{kind}] {text}")

    def _furniture_lines(self) -> Iterator[tuple[str, str]]:
        if self._part.endswith(".bin"):
            yield from binary.furniture(self._package.read(self._part) or b"")
            return
        for part in _elements(self._package, self._part, "{*}headerFooter", self._notes):
            yield from (("Header" if str(line.tag).endswith("Header") else "Footer", line.text or "") for line in part)


def _formula_address(cell: Any) -> str:
    """Return the address of a cell with a saved value whose formula is a link."""
    formula = cell.findtext("{*}f", "") if len(cell) > 1 and cell.findtext("{*}v") else ""
    found = _LINK.match(formula)
    return "" if found is None else external(found[1])


def _comment(author: str, place: str, text: str) -> str:
    return f"[Comment{f' by {author}' if author else ''} on {place}] {text}"


def without_layout(line: str) -> str:
    """Return the words of a header or a footer of printed pages."""
    return " ".join(_LAYOUT.sub(lambda code: code[1] or " ", line).split())


def _column(letters: str) -> int:
    """Return the number of a column, from 0."""
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - 64
    return number - 1
