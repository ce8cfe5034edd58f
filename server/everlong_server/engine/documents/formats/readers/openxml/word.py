"""Reads Word files: docx, docm, dotx and dotm, after ISO/IEC 29500-1.

Footnotes, endnotes and comments follow the paragraph that refers to them. Headers stand before their section, footers after it.
All are marked, such as "[Footnote 1] …".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.readers.openxml.complex_fields import Fields, legacy_control, paired_marks
from everlong_server.engine.documents.formats.readers.openxml.numbering import Numbering
from everlong_server.engine.documents.formats.readers.openxml.package import MC, A, Package, R, Relation, W
from everlong_server.engine.documents.formats.readers.openxml.shapes import chart_texts
from everlong_server.engine.documents.formats.readers.openxml.styles import (
    Styles,
    is_hidden,
    is_initial,
    is_joined,
    is_on,
)
from everlong_server.engine.documents.formats.readers.shared.addresses import external, field_address
from everlong_server.engine.documents.formats.readers.shared.equations import M, linear
from everlong_server.engine.documents.formats.readers.shared.fields import field_text
from everlong_server.engine.documents.formats.readers.shared.marks import link, struck, superscript, written_out
from everlong_server.engine.documents.formats.readers.shared.symbols import character, is_symbol_font
from everlong_server.engine.documents.formats.readers.shared.tables import Placed, table_text

_PARAGRAPH, _TABLE, _ROW, _CELL, _CHUNK, _RUN = (W + name for name in ("p", "tbl", "tr", "tc", "altChunk", "r"))
_EQUATIONS = (f"{M}oMathPara", f"{M}oMath")
_BLOCKS = (_PARAGRAPH, _TABLE, *_EQUATIONS, _RUN)
"""What has text. Some programs write runs outside of paragraphs."""
_CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
# Copies of text for old programs, and properties.
_NO_TEXT = {W + name for name in ("pPr", "rPr", "delText", "tblPr", "sdtPr")} | {f"{MC}Fallback"}
_HEX = re.compile("[0-9a-fA-F]{1,4}")
_MOVED = {f"{W}del", f"{W}moveFrom"}
_ANNOTATIONS = {"footnoteReference": "Footnote", "endnoteReference": "Endnote", "commentReference": "Comment"}


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs and tables of the file. Each heading begins a section."""
    package = Package(file, notes)
    yield from _Document(package, package.main("wordprocessingml.", r"word/document\d*\.xml"), notes).blocks()


class _Document:
    def __init__(self, package: Package, part: str, notes: Notes) -> None:
        self._package = package
        self._notes = notes
        self._relations = package.relations(part)
        self._body = package.xml(part)
        self._links: dict[Any, dict[str, Relation]] = {self._body: self._relations}
        """The relationships of each part, by its tree."""
        self._trees: dict[str, Any] = {}
        """The tree of each other part, by its name: most sections refer to the same headers and footers."""
        styles = self._part("styles")
        self._styles = Styles(styles)
        self._numbering = Numbering(self._part("numbering"), styles)
        self._annotations = {
            kind: self._annotations_in(f"{kind.lower()}s", kind) for kind in ("Footnote", "Endnote", "Comment")
        }
        self._numbers: dict[tuple[str, str], int] = {}
        self._pending: list[tuple[str, str]] = []
        """Kind and id of the annotations that the current paragraph refers to."""
        self._fields = Fields()
        self._marks: tuple[Any, set[Any]] = (None, set())
        """The part that is being read, and the marks of its fields that have both a beginning and an end."""
        self._objects: list[str] = []
        """Relationships of the files that are embedded in the current paragraph."""
        self._shown = set[str]()
        """Headers and footers that were written; most sections repeat them."""
        self._shown_kinds = set[str]()
        self._written: dict[str, Callable[[Any], str]] = {
            "t": self._letters, "instrText": self._instruction, "fldChar": self._field, "ffData": legacy_control, "ruby": self._ruby, "drawing": self._drawing, "pict": self._drawing,
            "hyperlink": self._hyperlink, "hlink": self._hyperlink, "fldSimple": self._simple_field,
        }  # fmt: skip

    def blocks(self) -> Iterator[Block]:
        """Yield the document."""
        if self._body is None:
            return
        sections = list(self._body.iter(f"{W}sectPr"))
        self._shown_kinds = self._kinds_of_furniture()
        yield from self._furniture(sections[:1], "header")
        heading, initial, was_run = None, "", False
        for block in _outermost(self._body, *_BLOCKS, _CHUNK):
            if block.tag == _CHUNK:
                yield from self._chunk(block)
                continue
            with self._notes.at(part=heading):
                is_run, text = block.tag == _RUN, self._block(block)
                # The first cell of a table may be empty: its tab remains.
                joins = is_initial(block) or is_joined(block)
                text = text if is_run or joins else text if block.tag == _TABLE else text.strip()
                text = text if is_run else initial + text
                initial = text if joins else ""
                if initial:
                    continue
                section = (
                    " ".join(text.split())
                    if text and block.tag == _PARAGRAPH and self._styles.is_heading(block)
                    else None
                )
                yield Block(text, section=section, joined=is_run and was_run)
                yield from self._annotation_blocks()
            was_run = is_run
            heading = section or heading
            if block.tag == _PARAGRAPH and len(sections) > 1 and block.find(f"{W}pPr/{W}sectPr") is not None:
                yield from self._furniture([sections.pop(0)], "footer")
                yield from self._furniture(sections[:1], "header")
        yield Block(initial)
        yield from self._furniture(sections[:1], "footer")
        self._pending += [
            (kind, id) for kind, all in self._annotations.items() for id in all if (kind, id) not in self._numbers
        ]
        yield from self._annotation_blocks()

    # Parts other than the main one

    def _part(self, kind: str) -> Any:
        """Return the tree of the part that is related by `kind`; None if there is none."""
        part = next((r.target for r in self._relations.values() if r.kind == kind and not r.external), None)
        return None if part is None else self._tree(part)

    def _tree(self, part: str) -> Any:
        """Return the tree of a part, which is parsed once, and keep its relationships."""
        if part not in self._trees:
            self._trees[part] = tree = self._package.xml(part)
            if tree is not None:
                self._links[tree] = self._package.relations(part)
        return self._trees[part]

    def _annotations_in(self, part: str, kind: str) -> dict[str, Any]:
        """Return the footnotes, endnotes or comments of the file by their id. Separators are none."""
        tree = self._part(part)
        found = () if tree is None else tree.iter(f"{W}{kind.lower()}")
        return {note.get(f"{W}id", ""): note for note in found if note.get(f"{W}type", "normal") == "normal"}

    def _annotation_blocks(self) -> Iterator[Block]:
        """Yield the annotations that the last block refers to, those that they refer to, and embedded files."""
        while self._pending:
            kind, id = self._pending.pop(0)
            note = self._annotations[kind].get(id)
            if note is None:
                self._notes.add(f"the text refers to it, but the file does not contain it: {kind.lower()} {id}")
                continue
            self._numbers.setdefault((kind, id), self._next_number(kind))
            text = self._lines(note).strip()
            author = note.get(f"{W}author")
            label = f"Comment by {author}" if author else f"{kind} {self._numbers[kind, id]}"
            if text:
                self._notes.add(f"{kind.lower()}s follow the paragraphs that refer to them")
                yield Block(f"[{label}] {text}")
        objects, self._objects = self._objects, []
        for id in objects:
            yield from map(Block, self._package.embedded(self._relations.get(id)))

    def _next_number(self, kind: str) -> int:
        return 1 + sum(other == kind for other, _ in self._numbers)

    def _furniture(self, sections: list[Any], kind: str) -> Iterator[Block]:
        """Yield the headers or footers of a section that no section before it has. Those that are switched off are noted."""
        off = set[str]()
        for reference in (r for section in sections for r in section.iter(f"{W}{kind}Reference")):
            relation = self._relations.get(reference.get(f"{R}id", ""))
            tree = None if relation is None else self._tree(relation.target)
            lines = () if tree is None else self._lines(tree).splitlines()
            text = "\n".join(filter(None, map(str.strip, lines)))
            if reference.get(f"{W}type", "default") not in self._shown_kinds:
                off.add(text)
            elif text and text not in self._shown:
                self._shown.add(text)
                yield Block(f"[{kind.capitalize()}] {text}")
        self._notes.left_out("headers and footers that are switched off", len(off - self._shown - {""}))

    def _kinds_of_furniture(self) -> set[str]:
        """Return which headers and footers are shown: those of first pages and of even pages have switches."""
        settings = self._part("settings")
        is_even = settings is not None and is_on(settings.find(f"{W}evenAndOddHeaders"))
        # A section without a header has that of the section before, whose own switch may be off.
        is_first = any(is_on(switch) for switch in self._body.iter(f"{W}titlePg"))
        return {"default"} | ({"even"} if is_even else set()) | ({"first"} if is_first else set())

    def _chunk(self, chunk: Any) -> Iterator[Block]:
        """Yield a file of another format that the document includes at this place."""
        relation = self._relations.get(chunk.get(f"{R}id", ""))
        if relation is None or relation.external:
            self._notes.add("the document includes a part that the file does not contain")
        elif (data := self._package.read(relation.target)) is not None:
            yield from self._notes.nested(data, relation.target)

    # Text

    def _block(self, block: Any) -> str:
        """Return the text of a paragraph, a table or a cell."""
        if block.tag == _TABLE:
            rows = [row for row in _outermost(block, _ROW) if row.find(f"{W}trPr/{W}del") is None]
            self._notes.left_out("deleted rows (tracked changes)", sum(1 for _ in _outermost(block, _ROW)) - len(rows))
            return table_text([self._row(row) for row in rows])
        if block.tag == _CELL:
            return self._lines(block).strip()
        if block.tag in _EQUATIONS:
            return linear(block)
        if block.tag == _RUN:
            return written_out(self._inline(block))
        number, text = self._numbering.of(block), written_out("".join(self._inline(part) for part in block))
        is_shown = text.strip() or (number != "•" and block.getparent().tag == _CELL)  # as in a column of numbers
        return f"{number} {text}".rstrip(" ") if number and is_shown else text

    def _row(self, row: Any) -> list[Placed]:
        """Return the cells of a row, with the column of the table's grid that each begins in."""
        place, cells = _span(row.find(f"{W}trPr/{W}gridBefore"), 0), list[Placed]()
        for cell in _outermost(row, _CELL):
            is_deleted = cell.find(f"{W}tcPr/{W}cellDel") is not None
            self._notes.left_out("deleted cells (tracked changes)", is_deleted)
            cells.append((place, "" if is_deleted else self._block(cell)))
            place += _span(cell.find(f"{W}tcPr/{W}gridSpan"), 1)
        return cells

    def _lines(self, parent: Any) -> str:
        """Return the text of a cell, a note or a header, a line for each paragraph. Runs outside of paragraphs share a line."""
        lines, was_run, joins = list[str](), False, False
        for block in _outermost(parent, *_BLOCKS, _CHUNK):
            if block.tag == _CHUNK:
                is_of_body = block.getroottree().getroot() is self._body  # whose relationships are known
                lines += (inner.text for inner in (self._chunk(block) if is_of_body else ()))
                was_run = joins = False
                continue
            is_run, text = block.tag == _RUN, self._block(block)
            if joins or (is_run and was_run):
                lines[-1] += text
            else:
                lines.append(text)
            was_run, joins = is_run, is_joined(block)
        return "\n".join(lines)

    def _inline(self, part: Any) -> str:
        """Return the text of an element inside a paragraph."""
        tag = part.tag
        if not isinstance(tag, str) or tag in _NO_TEXT:
            return ""
        if tag in _MOVED:
            self._notes.left_out("deleted passages (tracked changes)")
            return ""
        if tag in (_PARAGRAPH, _TABLE):  # of a text box
            return f"\n{self._block(part)}\n"
        if tag in _EQUATIONS:
            return linear(part)
        if tag == f"{MC}AlternateContent":
            return self._alternative(part)
        match tag.removeprefix(W):
            case name if name in self._written:
                return self._written[name](part)
            case "sym":
                code = part.get(f"{W}char", "")
                return self._symbol(part.get(f"{W}font", ""), int(code, 16)) if _HEX.fullmatch(code) else ""
            case "footnoteReference" | "endnoteReference" | "commentReference" as name:
                return self._reference(_ANNOTATIONS[name], part)
            case "r" if is_hidden(part):
                self._notes.left_out("passages that the file hides")
                return ""
            case "object":
                self._objects += [each.get(f"{R}id", "") for each in part.iter("{*}OLEObject")] or [""]
            case name if name in _CHARACTERS:
                return _CHARACTERS[name]
        return "".join(self._inline(child) for child in part)

    def _alternative(self, part: Any) -> str:
        """Return what programs show that know a newer element; the text for others only if that is empty."""
        text = "".join(self._inline(child) for child in part)
        fallback = part.find(f"{MC}Fallback")
        is_lost = not text.strip() and fallback is not None and next(fallback.iter(f"{W}t"), None) is not None
        return "".join(self._inline(child) for child in fallback) if is_lost else text

    def _hyperlink(self, part: Any) -> str:
        """Return the words of a link, and its address."""
        relation = self._links.get(part.getroottree().getroot(), {}).get(part.get(f"{R}id", ""))
        # A file of Word 2003 has no relationships.
        target = relation.target if relation is not None and relation.external else part.get(f"{W}dest", "")
        address = external(target)
        place = part.get(f"{W}anchor", "")
        address += f"#{place}" if address and place and "#" not in address else ""
        return link("".join(self._inline(child) for child in part), address)

    def _simple_field(self, field: Any) -> str:
        return link("".join(self._inline(child) for child in field), field_address(field.get(f"{W}instr", "")))

    def _instruction(self, instruction: Any) -> str:
        self._fields.instruct(instruction.text or "")
        return ""

    def _field(self, mark: Any) -> str:
        """Return what a field shows, at its end, if it has no saved result. Its form control is inside its beginning."""
        match mark.get(f"{W}fldCharType") if self._is_paired(mark) else None:
            case "begin":
                self._fields.begin()
            case "separate":
                return self._fields.separate()
            case "end":
                end_of_link, instruction = self._fields.end()
                if instruction.split()[:1] == ["EQ"]:
                    self._notes.left_out("equations in fields")
                return end_of_link + ("" if self._fields.collects_instruction else field_text(instruction))
        return "".join(self._inline(child) for child in mark)

    def _is_paired(self, mark: Any) -> bool:
        part = mark.getroottree().getroot()
        if part is not self._marks[0]:
            self._marks = part, paired_marks(part, _is_skipped)
        return mark in self._marks[1]

    def _ruby(self, ruby: Any) -> str:
        """Return a word, and its pronunciation in brackets."""
        word, guide = ("".join(map(self._inline, ruby.iterchildren(W + name))) for name in ("rubyBase", "rt"))
        return f"{word}({guide})" if guide.strip() else word

    def _letters(self, text: Any) -> str:
        if self._fields.is_nested_in_instruction:
            return ""
        fonts = text.getparent().find(f"{W}rPr/{W}rFonts")
        font = "" if fonts is None else fonts.get(f"{W}ascii", "")
        letters = text.text or ""
        if is_symbol_font(font):
            return "".join(self._symbol(font, ord(c)) if "\ue000" <= c <= "\uf8ff" else c for c in letters)
        letters = superscript(letters) if self._styles.is_raised(text.getparent()) else letters
        return struck(letters) if self._styles.is_struck(text.getparent()) else letters

    def _symbol(self, font: str, code: int) -> str:
        found = character(font, code)
        if found is None:
            self._notes.left_out(f"symbols of the font {font[:40]}")
        return found or ""

    def _reference(self, kind: str, reference: Any) -> str:
        id = reference.get(f"{W}id", "")
        number = self._numbers.setdefault((kind, id), self._next_number(kind))
        self._pending.append((kind, id))
        # The mark of a comment would part the words that it is on.
        return "" if kind == "Comment" or reference.get(f"{W}customMarkFollows") else f"[{number}]"

    def _drawing(self, drawing: Any) -> str:
        """Return the description of a picture, the words of a diagram and of text boxes."""
        words = [text for art in drawing.iter("{*}textpath") if (text := art.get("string", "").strip())]
        words += [
            f"[{' '.join(description.split())}]"
            for shape in drawing.iter("{*}docPr", "{urn:schemas-microsoft-com:vml}shape")
            if (description := shape.get("descr") or shape.get("title") or shape.get("alt", "")).strip()
        ]
        pictures = sum(1 for _ in drawing.iter("{*}blip", "{*}imagedata"))
        self._notes.left_out("pictures without a description", max(0, pictures - len(words)))
        for chart in drawing.iter("{*}chart"):
            relation = self._relations.get(chart.get(f"{R}id", ""))
            if relation is not None and not relation.external:
                words += chart_texts(self._package, relation.target, self._notes)
        for diagram in drawing.iter("{*}relIds"):
            relation = self._relations.get(diagram.get(f"{R}dm", ""))
            tree = None if relation is None else self._package.xml(relation.target)
            words += () if tree is None else ("".join(p.itertext(f"{A}t")) for p in tree.iter(f"{A}p"))
        boxes = "".join(self._inline(child) for child in drawing)
        return "\n".join(filter(None, words)) + boxes


def _span(property: Any, default: int) -> int:
    """Return how many columns a property of a row or a cell says."""
    value = "" if property is None else property.get(f"{W}val", "")
    return int(value) if value.isdecimal() and len(value) < 8 else default


def _is_skipped(element: Any) -> bool:
    """Whether the text of an element is not shown."""
    return element.tag in _NO_TEXT or element.tag in _MOVED or (element.tag == _RUN and is_hidden(element))


def _outermost(parent: Any, *tags: str) -> Iterator[Any]:
    """Yield the outermost descendants of `parent` with these tags, whatever elements they are in: fields, controls, insertions."""
    for child in parent:
        if child.tag in tags:
            yield child
        elif child.tag not in _NO_TEXT and child.tag not in _MOVED:
            yield from _outermost(child, *tags)
