"""Reads PowerPoint files: a page for each slide, with tables, diagrams, speaker notes and comments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.readers.equations import M, linear
from everlong_server.engine.documents.formats.readers.ooxml import MC, A, Package, R

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_NOT_ON_THE_SLIDE = ("sldNum", "dt", "ftr", "hdr", "sldImg")
"""Placeholders that a speaker's notes repeat from the slide."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the slides in their order."""
    package = Package(file, notes)
    main = package.main("presentationml.", r"ppt/presentation\d*\.xml")
    presentation, relations = package.xml(main), package.relations(main)
    slides = [] if presentation is None else presentation.findall(f"{_P}sldIdLst/{_P}sldId")
    for number, slide in enumerate(slides, 1):
        relation = relations.get(slide.get(f"{R}id", ""))
        tree = None if relation is None or relation.external else package.xml(relation.target)
        if tree is None or relation is None:
            notes.add("the slide is not in the file", page=number)
            continue
        if tree.get("show") == "0":
            notes.add("the slide is hidden", page=number)
        blocks = [*_shapes(tree, notes), *_related(package, relation.target, notes)]
        if not blocks:
            notes.add("the slide has no text", page=number)
        yield Block("\n\n".join(blocks), page=number)


def _related(package: Package, slide: str, notes: Notes) -> Iterator[str]:
    """Yield the diagrams, speaker notes and comments of a slide."""
    for relation in package.relations(slide).values():
        if relation.kind not in ("diagramData", "notesSlide", "comments", "chart") or relation.external:
            continue
        if relation.kind == "chart":
            notes.left_out("charts")
            continue
        tree = package.xml(relation.target)
        if tree is None:
            continue
        if relation.kind == "comments":
            texts = [
                "".join(comment.itertext(f"{_P}text", f"{A}t")).strip()
                for comment in tree
                if isinstance(comment.tag, str)
            ]
            yield from (f"[Comment] {text}" for text in texts if text)
        elif text := "\n".join(_shapes(tree, notes)).strip():
            yield f"[Speaker notes] {text}" if relation.kind == "notesSlide" else text


def _shapes(tree: Any, notes: Notes) -> Iterator[str]:
    """Yield the text of each shape and table."""
    for element in tree:
        if not isinstance(element.tag, str) or element.tag == f"{MC}Fallback":
            continue
        placeholder = element.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
        if placeholder is not None and placeholder.get("type") in _NOT_ON_THE_SLIDE:
            continue
        if element.tag == f"{_P}pic":
            descriptions = [p.get("descr", "").strip() for p in element.iter(f"{_P}cNvPr")]
            notes.left_out("pictures without a description", not any(descriptions))
            yield from (f"[{' '.join(text.split())}]" for text in descriptions if text)
        elif element.tag == f"{A}tbl":
            rows = (
                [_paragraphs(cell) for cell in row.iterchildren(f"{A}tc")] for row in element.iterchildren(f"{A}tr")
            )
            yield "\n".join("\t".join(row) for row in rows)
        elif element.tag in (f"{_P}txBody", "{http://schemas.openxmlformats.org/drawingml/2006/diagram}t"):
            if text := _paragraphs(element):
                yield text
        else:
            yield from _shapes(element, notes)


def _paragraphs(body: Any) -> str:
    return "\n".join("".join(_runs(paragraph)) for paragraph in body.iter(f"{A}p")).strip()


def _runs(paragraph: Any) -> Iterator[str]:
    for part in paragraph:
        if part.tag == f"{A}br":
            yield "\n"
        elif part.tag in (f"{A}r", f"{A}fld"):
            yield part.findtext(f"{A}t", "")
        elif isinstance(part.tag, str) and part.tag != f"{MC}Fallback":
            maths = part.iter(f"{M}oMath")
            yield from (linear(equation) for equation in maths)
