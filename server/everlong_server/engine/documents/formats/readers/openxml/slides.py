"""Reads PowerPoint files: a page for each slide, with its shapes, speaker notes and comments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.readers.openxml.package import A, Package, R
from everlong_server.engine.documents.formats.readers.openxml.shapes import shapes
from everlong_server.engine.documents.formats.readers.shared.trees import remove

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_AUTHORS = ("commentAuthors", "authors")
"""Kinds of parts with the authors of comments: until and since PowerPoint 2019."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the slides in their order."""
    package = Package(file, notes)
    main = package.main("presentationml.", r"ppt/presentation\d*\.xml")
    presentation, relations = package.xml(main), package.relations(main)
    slides = [] if presentation is None else presentation.findall(f"{_P}sldIdLst/{_P}sldId")
    authors = [package.xml(r.target) for r in relations.values() if r.kind in _AUTHORS and not r.external]
    reader = _Slides(package, notes, [tree for tree in authors if tree is not None])
    number, is_damaged = 0, False
    for number, slide in enumerate(slides, 1):
        relation = relations.get(slide.get(f"{R}id", ""))
        tree = None if relation is None or relation.external else package.xml(relation.target)
        if tree is None or relation is None:
            notes.add("the slide is not in the file", page=number)
            is_damaged = True
        else:
            with notes.at(page=number):
                yield reader.slide(relation.target, tree, number)
    # If the list of slides is whole, the other ones in the file were deleted.
    pattern = r"ppt/slides/slide(\d+)\.xml"
    for part in package.unnamed(pattern, reader.seen, notes) if is_damaged or presentation is None else ():
        if (tree := package.xml(part)) is not None:
            number += 1
            with notes.at(page=number):
                yield reader.slide(part, tree, number)


class _Slides:
    """Reads the slides of one file. `seen`: the names of the slides, layouts and masters that were read, and the footers."""

    def __init__(self, package: Package, notes: Notes, authors: Sequence[Any]) -> None:
        """`authors`: the trees of the parts with the authors of comments."""
        self._package, self._notes = package, notes
        self._names = {each.get("id", ""): each.get("name", "") for tree in authors for each in tree}
        self.seen = set[str]()

    def slide(self, part: str, tree: Any, number: int) -> Block:
        """Return the text of a slide."""
        self.seen.add(part)
        if tree.get("show") == "0":
            self._notes.add("the slide is hidden", page=number)
        blocks = [*shapes(self._package, part, tree, self._notes), *self._footers(tree), *self._related(part)]
        if tree.get("showMasterSp") != "0":
            blocks += self._background(part, "slideLayout")
        if not any(blocks):
            self._notes.add("the slide has no text", page=number)
        return Block("\n\n".join(blocks), page=number)

    def _footers(self, tree: Any) -> Iterator[str]:
        """Yield the footer and the date that somebody typed for a slide, unless a slide before has the same."""
        for shape in tree.iter("{*}sp"):
            placeholder = shape.find("{*}nvSpPr/{*}nvPr/{*}ph")
            if (
                placeholder is None
                or placeholder.get("type") not in ("ftr", "dt")
                or next(shape.iter(f"{A}fld"), None) is not None
            ):
                continue
            text = " ".join("".join(shape.itertext(f"{A}t")).split())
            if text and (footer := f"[Footer] {text}") not in self.seen:
                self.seen.add(footer)
                yield footer

    def _related(self, slide: str) -> Iterator[str]:
        """Yield the speaker notes and comments of a slide."""
        for relation in self._package.relations(slide).values():
            if relation.kind not in ("notesSlide", "comments") or relation.external:
                continue
            tree = self._package.xml(relation.target)
            if tree is None:
                continue
            if relation.kind == "comments":
                yield from (text for comment in tree.iterchildren("{*}*") for text in self._comment(comment))
            elif text := "\n".join(shapes(self._package, relation.target, tree, self._notes)).strip():
                yield f"[Speaker notes] {text}"

    def _comment(self, comment: Any) -> Iterator[str]:
        """Yield a comment, and the replies to it."""
        for each in (comment, *comment.iterfind("{*}replyLst/{*}reply")):
            lines = [
                "".join(line.itertext(f"{A}t")) for body in each.iterfind("{*}txBody") for line in body.iter(f"{A}p")
            ]
            if text := ("\n".join(lines) or "".join(each.itertext(f"{_P}text"))).strip():
                name = self._names.get(each.get("authorId", ""))
                yield f"[Comment{f' by {name}' if name else ''}] {text}"

    def _background(self, part: str, kind: str) -> Iterator[str]:
        """Yield the text that the layout of a slide, and its master, draw on each of their slides: once."""
        for relation in self._package.relations(part).values():
            if relation.kind != kind or relation.external or relation.target in self.seen:
                continue
            self.seen.add(relation.target)
            if (tree := self._package.xml(relation.target)) is None:
                continue
            for placeholder in tree.xpath("//*[local-name()='sp'][*/*/*[local-name()='ph']]"):
                remove(placeholder)  # its words ask the author to write
            for text in shapes(self._package, relation.target, tree, self._notes):
                yield f"[On each slide] {text}"
            if kind == "slideLayout" and tree.get("showMasterSp") != "0":
                yield from self._background(relation.target, "slideMaster")
