"""Reads PowerPoint files: a page for each slide, with its shapes, speaker notes and comments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.readers.openxml.package import A, Package, R
from everlong_server.engine.documents.formats.readers.openxml.shapes import shapes

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"


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
        blocks = [*shapes(package, relation.target, tree, notes), *_related(package, relation.target, notes)]
        if not any(blocks):
            notes.add("the slide has no text", page=number)
        yield Block("\n\n".join(blocks), page=number)


def _related(package: Package, slide: str, notes: Notes) -> Iterator[str]:
    """Yield the speaker notes and comments of a slide."""
    for relation in package.relations(slide).values():
        if relation.kind not in ("notesSlide", "comments") or relation.external:
            continue
        tree = package.xml(relation.target)
        if tree is None:
            continue
        if relation.kind == "comments":
            texts = ["".join(comment.itertext(f"{_P}text", f"{A}t")).strip() for comment in tree.iterchildren("{*}*")]
            yield from (f"[Comment] {text}" for text in texts if text)
        elif text := "\n".join(shapes(package, relation.target, tree, notes)).strip():
            yield f"[Speaker notes] {text}"
