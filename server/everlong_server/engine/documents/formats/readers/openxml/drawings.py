"""Reads Visio drawings (vsdx, vsdm, vstx, vstm): a page for each page, with the text of its shapes, as [MS-VSDX] describes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.readers.openxml.package import Package, R

_MAX_DEPTH = 100
"""Groups inside groups."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the pages in their order. The text of a shape precedes that of the shapes grouped in it."""
    package = Package(file, notes)
    main = package.main(".main+xml", r"visio/document\.xml")
    for relation in package.relations(main).values():
        if relation.kind == "pages" and not relation.external and (tree := package.xml(relation.target)) is not None:
            yield from _Drawing(package, notes, main).pages(relation.target, tree)


class _Drawing:
    def __init__(self, package: Package, notes: Notes, main: str) -> None:
        """`main`: the name of the main part."""
        self._package, self._notes = package, notes
        self._masters = dict(self._masters_of(main))
        self._comments = list(self._comments_of(main))

    def pages(self, part: str, tree: Any) -> Iterator[Block]:
        """Yield the pages that a list of pages names. `part`: its name."""
        relations = self._package.relations(part)
        for number, page in enumerate(tree.iterchildren("{*}Page"), 1):
            reference = page.find("{*}Rel")
            relation = None if reference is None else relations.get(reference.get(f"{R}id", ""))
            content = None if relation is None or relation.external else self._package.xml(relation.target)
            if content is None or relation is None:
                self._notes.add("the page is not in the file", page=number)
                continue
            name = page.get("Name") or page.get("NameU") or ""
            with self._notes.at(page=number):
                texts = [text for shapes in content.iterchildren("{*}Shapes") for text in self._texts(shapes, None, 0)]
                texts += (text for id, text in self._comments if id == page.get("ID"))
                self._notes.left_out("pictures", sum(1 for _ in content.iter("{*}ForeignData")))
            yield Block("\n\n".join(filter(None, [name, *texts])), page=number, section=name or None)

    def _masters_of(self, main: str) -> Iterator[tuple[str, Any]]:
        """Yield the id and the tree of each master."""
        for listed in self._package.relations(main).values():
            tree = self._package.xml(listed.target) if listed.kind == "masters" and not listed.external else None
            relations = {} if tree is None else self._package.relations(listed.target)
            for each in () if tree is None else tree.iterchildren("{*}Master"):
                reference = each.find("{*}Rel")
                relation = None if reference is None else relations.get(reference.get(f"{R}id", ""))
                if relation is not None and not relation.external:
                    yield each.get("ID", ""), self._package.xml(relation.target)

    def _texts(self, shapes: Any, master: Any, depth: int) -> Iterator[str]:
        """Yield the texts of shapes. `master`: the tree of the master of the group that they are in."""
        for shape in shapes.iterchildren("{*}Shape"):
            own = self._masters.get(shape.get("Master", ""), master)
            yield _text(shape, own)
            yield from _data(shape)
            for inner in shape.iterchildren("{*}Shapes"):
                if depth < _MAX_DEPTH:
                    yield from self._texts(inner, own, depth + 1)
                else:
                    self._notes.left_out("shapes in too many groups")

    def _comments_of(self, main: str) -> Iterator[tuple[str, str]]:
        """Yield the comments of the file, each with the id of its page."""
        for relation in self._package.relations(main).values():
            tree = self._package.xml(relation.target) if relation.kind == "comments" else None
            for comment in () if tree is None else tree.iter("{*}CommentEntry"):
                if text := "".join(comment.itertext()).strip():
                    yield comment.get("PageID", ""), f"[Comment] {text}"


def _text(shape: Any, master: Any) -> str:
    """Return the text of a shape, or else that of the shape of the master that it is made of."""
    text = shape.find("{*}Text")
    number = shape.get("MasterShape")
    if text is None and master is not None and (number is not None or shape.get("Master") is not None):
        source = next((each for each in master.iter("{*}Shape") if number is None or each.get("ID") == number), None)
        text = None if source is None else source.find("{*}Text")
    return "" if text is None else "".join(text.itertext()).replace("\u2028", "\n").strip()


def _data(shape: Any) -> Iterator[str]:
    """Yield the data of a shape, such as the cost of a step: its label and its value."""
    for row in shape.iterfind("{*}Section[@N='Property']/{*}Row"):
        cells = {cell.get("N"): cell.get("V", "").strip() for cell in row.iterchildren("{*}Cell")}
        if cells.get("Value") and cells.get("Invisible", "0") == "0":
            yield f"{cells.get('Label') or row.get('N', '')}: {cells['Value']}"
