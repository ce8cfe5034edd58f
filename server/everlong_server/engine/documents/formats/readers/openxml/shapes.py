"""Reads the shapes of slides and sheets: text, tables, pictures' descriptions, diagrams, charts, embedded files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from everlong_server.engine.documents.formats.blocks import Notes
from everlong_server.engine.documents.formats.readers.openxml.bullets import Bullets
from everlong_server.engine.documents.formats.readers.openxml.charts import chart_text
from everlong_server.engine.documents.formats.readers.openxml.package import MC, A, Package, R, Relation
from everlong_server.engine.documents.formats.readers.shared.addresses import external, labelled
from everlong_server.engine.documents.formats.readers.shared.equations import M, linear
from everlong_server.engine.documents.formats.readers.shared.marks import link, struck, superscript, written_out
from everlong_server.engine.documents.formats.readers.shared.tables import row_text

_NOT_ON_THE_SLIDE = ("sldNum", "dt", "ftr", "hdr", "sldImg")
"""Placeholders that a speaker's notes repeat from the slide."""
_Relations = dict[str, Relation]


def shapes(package: Package, part: str, tree: Any, notes: Notes) -> Iterator[str]:
    """Yield the text of each shape in `tree`, the tree of a part or an element in it. `part`: the part's name."""
    relations = package.relations(part)

    def related(reference: str) -> Any:
        relation = relations.get(reference)
        return None if relation is None or relation.external else package.xml(relation.target)

    def chart(reference: str) -> Iterator[str]:
        relation = relations.get(reference)
        if relation is not None and not relation.external:
            yield from chart_texts(package, relation.target, notes)

    def walk(parent: Any, known: _Relations) -> Iterator[str]:
        for element in parent:
            if not isinstance(element.tag, str) or element.tag == f"{MC}Fallback":
                continue
            name = element.tag.rpartition("}")[2]
            match name:
                case "sp" if _is_furniture(element):
                    pass
                case "AlternateContent":
                    yield from _newest(element, lambda parent: list(filter(None, walk(parent, known))))
                case "pic":
                    yield from _descriptions(element, notes)
                case "cNvPr" if words := described(element):
                    yield f"[{words}]"
                case "tbl":
                    rows = (_row(row, known) for row in element.iter(f"{A}tr"))
                    yield "\n".join(filter(None, rows))
                case "txBody" | "t":
                    yield _linked(element, _paragraphs(element, known), known)
                case "chart":
                    yield from chart(element.get(f"{R}id", ""))
                case "relIds":
                    diagram = related(element.get(f"{R}dm", ""))
                    yield from walk(() if diagram is None else diagram, {})  # whose relationships are others
                case "oleObj":
                    yield from package.embedded(known.get(element.get(f"{R}id", "")))
                case _:
                    yield from walk(element, known)

    yield from filter(None, walk(tree, relations))


def chart_texts(package: Package, part: str, notes: Notes) -> Iterator[str]:
    """Yield the text of a chart, and of the shapes that somebody drew in it. `part`: the name of its part."""
    tree = package.xml(part)
    if tree is None:
        return
    yield chart_text(tree, notes)
    for relation in package.relations(part).values():
        drawing = package.xml(relation.target) if relation.kind == "chartUserShapes" and not relation.external else None
        if drawing is not None:
            yield from shapes(package, relation.target, drawing, notes)


def described(properties: Any) -> str:
    """Return the description of a drawing, or else its title."""
    return " ".join((properties.get("descr", "").strip() or properties.get("title", "")).split())


def _descriptions(picture: Any, notes: Notes) -> list[str]:
    """Return the description of a picture, in brackets."""
    found = [described(properties) for properties in picture.iter("{*}cNvPr")]
    notes.left_out("pictures without a description", not any(found))
    return [f"[{text}]" for text in found if text]


def _is_furniture(shape: Any) -> bool:
    placeholder = shape.find("{*}nvSpPr/{*}nvPr/{*}ph")
    return placeholder is not None and placeholder.get("type") in _NOT_ON_THE_SLIDE


def _row(row: Any, relations: _Relations) -> str:
    """Return a row of a table. The positions that a cell covers are empty cells."""
    cells = row.findall(f"{A}tc")
    shown = [cell for cell in cells if not any(cell.get(f"{way}Merge") in ("1", "true") for way in "hv")]
    texts = [_paragraphs(cell, relations) if cell in shown else "" for cell in cells]
    return row_text(texts, is_alone=len(shown) == 1 and shown == cells[:1])


def _paragraphs(body: Any, relations: _Relations) -> str:
    bullets = Bullets(body)
    return "\n".join(_line(paragraph, bullets, relations) for paragraph in body.iter(f"{A}p")).strip()


def _line(paragraph: Any, bullets: Bullets, relations: _Relations) -> str:
    text = written_out("".join(_runs(paragraph, relations)))
    number = bullets.of(paragraph) if text.strip() else ""
    return f"{number} {text}" if number else text


def _linked(body: Any, text: str, relations: _Relations) -> str:
    """Return the text of a shape with the address that a click on the shape opens. Links inside the text have their own."""
    shape = body.getparent()
    clicked = None if shape is None else shape.find("{*}nvSpPr/{*}cNvPr/{*}hlinkClick")
    relation = None if clicked is None else relations.get(clicked.get(f"{R}id", ""))
    return text if relation is None or not relation.external else labelled(text, external(relation.target))


def _newest(alternatives: Any, texts: Callable[[Any], list[str]]) -> list[str]:
    """Return the texts for programs that know a newer element; those for others only if there are none.

    Those of a newer chart only say that the program cannot show it.
    """
    found = texts(alternatives)
    fallback = alternatives.find(f"{MC}Fallback")
    is_lost = not found and fallback is not None and next(alternatives.iter("{*}chart"), None) is None
    return texts(fallback) if is_lost else found


def _runs(paragraph: Any, relations: _Relations) -> Iterator[str]:
    for part in paragraph:
        if part.tag == f"{A}br":
            yield "\n"
        elif part.tag in (f"{A}r", f"{A}fld"):
            yield _run(part, relations)
        elif part.tag == f"{M}oMath":
            yield linear(part)
        elif part.tag == f"{MC}AlternateContent":
            yield from _newest(part, lambda parent: list(filter(None, _runs(parent, relations))))
        elif isinstance(part.tag, str) and part.tag != f"{MC}Fallback":
            yield from _runs(part, relations)


def _run(run: Any, relations: _Relations) -> str:
    """Return the text of a run, with marks if it is a superscript or a link."""
    text, properties = run.findtext(f"{A}t", ""), run.find(f"{A}rPr")
    if properties is None:
        return text
    clicked = properties.find(f"{A}hlinkClick")
    relation = None if clicked is None else relations.get(clicked.get(f"{R}id", ""))
    address = external(relation.target) if relation is not None and relation.external else ""
    is_raised = (
        properties.get("baseline", "0")[:1] in "123456789"
    )  # a share of the font's size; negative for subscripts
    text = superscript(text) if is_raised else text
    is_struck = properties.get("strike", "noStrike") != "noStrike"
    return link(struck(text) if is_struck else text, address)
