"""Reads FictionBook (FB2): title, authors and annotation, then the chapters, and the footnotes at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.shared.trees import parse

_PARAGRAPHS = ("p", "v", "subtitle", "text-author", "date")
_NOTES = ("notes", "comments", "footnotes", "endnotes")
"""Names of the bodies with footnotes."""
_LINK = "{http://www.w3.org/1999/xlink}href"
_MAX_MARK = 12
"""Characters from which on a link to a footnote is no mark, but words."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs, verses and tables. The title of a chapter begins a section."""
    tree, fault = parse(file.read_bytes())
    if tree is None:
        raise Unreadable("the FictionBook is damaged")
    if fault is not None:
        notes.add(fault)
    yield from _Book(tree, notes).blocks()


class _Book:
    def __init__(self, tree: Any, notes: Notes) -> None:
        self._tree = tree
        self._notes = notes
        bodies = [body for body in tree.iterfind("{*}body") if body.get("name") in _NOTES]
        self._footnotes = {note.get("id") for body in bodies for note in body.iter("{*}*") if note.get("id")}
        self._marks: dict[str, str] = {}
        """The mark of each footnote in the text, by the footnote's id."""

    def blocks(self) -> Iterator[Block]:
        """Yield the book."""
        for about in self._tree.iterfind("{*}description/{*}title-info"):
            authors = map(_name, about.iterfind("{*}author"))
            titles = map(self._words, about.iterfind("{*}book-title"))
            yield Block("\n".join(filter(None, [*titles, *authors])))
            for cover in about.iterfind("{*}coverpage"):
                yield Block(self._words(cover))
            for annotation in about.iterfind("{*}annotation"):
                yield from self._blocks(annotation)
        for body in self._tree.iterfind("{*}body"):
            if body.get("name") in _NOTES:
                yield from self._footnotes_in(body)
            else:
                yield from self._blocks(body)

    def _footnotes_in(self, parent: Any) -> Iterator[Block]:
        """Yield the footnotes, also those that are grouped by chapters, and what is between them."""
        for element in parent:
            if _kind(element) != "section":
                yield from self._blocks([element])
            elif element.find("{*}section") is not None:
                yield from self._footnotes_in(element)
            else:
                number = " ".join(map(self._words, element.iterfind("{*}title")))
                number = number or self._marks.get(element.get("id", ""), "")
                texts = (block.text for child in element if _kind(child) != "title" for block in self._blocks([child]))
                if text := "\n".join(filter(None, texts)):
                    self._notes.add("footnotes follow the text")
                    yield Block(f"[{f'Footnote {number}'.strip()}] {text}")

    def _blocks(self, parent: Any) -> Iterator[Block]:
        for element in parent:
            match _kind(element):
                case "title":
                    lines = "\n".join(filter(None, map(self._words, element))) or self._words(element)
                    yield Block(lines, section=" ".join(lines.split()) or None)
                case "stanza":
                    yield Block("\n".join(map(self._words, element)))
                case "table":
                    rows = (map(self._words, row.iterfind("{*}*")) for row in element.iter("{*}tr"))
                    yield Block("\n".join("\t".join(row) for row in rows))
                case "image":
                    yield Block(self._picture(element))
                case kind if kind in _PARAGRAPHS:
                    yield Block(self._words(element))
                case _:
                    yield Block(" ".join((element.text or "").split()))
                    yield from self._blocks(element)
            yield Block(" ".join((element.tail or "").split()))

    def _words(self, element: Any) -> str:
        return " ".join("".join(self._inline(element)).split())

    def _inline(self, element: Any) -> Iterator[str]:
        """Yield the texts of a paragraph, with the marks of footnotes and the descriptions of pictures in brackets."""
        yield element.text or ""
        for child in element:
            kind = _kind(child)
            if kind == "image":
                yield self._picture(child)
            elif kind == "a":
                yield self._link(child)
            else:
                yield from self._inline(child)
            yield child.tail or ""

    def _link(self, link: Any) -> str:
        words, target = "".join(self._inline(link)), link.get(_LINK, "").removeprefix("#")
        mark = words.strip().strip("[](){}").strip()
        if target not in self._footnotes and link.get("type") != "note":
            return words
        self._marks.setdefault(target, mark)
        return words if words.strip() != mark or not 0 < len(mark) <= _MAX_MARK else f"[{mark}]"

    def _picture(self, picture: Any) -> str:
        described = " ".join((picture.get("alt") or picture.get("title") or "").split())
        if not described:
            self._notes.left_out("pictures")
        return f"[{described}]" if described else ""


def _name(author: Any) -> str:
    """Return the name of a person, or else the pen name. The other elements of a person are addresses and numbers."""
    parts = {_kind(part): " ".join("".join(part.itertext()).split()) for part in author}
    name = " ".join(filter(None, map(parts.get, ("first-name", "middle-name", "last-name"))))
    return name or parts.get("nickname", "") or " ".join((author.text or "").split())


def _kind(element: Any) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
