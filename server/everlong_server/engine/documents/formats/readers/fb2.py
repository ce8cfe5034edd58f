"""Reads FictionBook (FB2): title, authors and annotation, then the chapters, and the footnotes at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.trees import parse

_PARAGRAPHS = ("p", "subtitle", "text-author", "date")


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs, verses and tables. The title of a chapter begins a section."""
    tree, fault = parse(file.read_bytes())
    if tree is None:
        raise Unreadable("the FictionBook cannot be read: it is damaged")
    if fault is not None:
        notes.add(fault)
    for about in tree.iterfind("{*}description/{*}title-info"):
        authors = (" ".join(map(_words, author.iterfind("{*}*"))) for author in about.iterfind("{*}author"))
        titles = map(_words, about.iterfind("{*}book-title"))
        yield Block("\n".join(filter(None, [*titles, *authors])))
        for annotation in about.iterfind("{*}annotation"):
            yield from _blocks(annotation, notes)
    for body in tree.iterfind("{*}body"):
        if body.get("name") in ("notes", "comments"):
            yield from _footnotes(body, notes)
        else:
            yield from _blocks(body, notes)


def _footnotes(body: Any, notes: Notes) -> Iterator[Block]:
    for note in body.iterfind("{*}section"):
        number = " ".join(map(_words, note.iterfind("{*}title")))
        texts = (block.text for child in note if _kind(child) != "title" for block in _blocks([child], notes))
        if text := "\n".join(filter(None, texts)):
            notes.add("footnotes follow the text")
            yield Block(f"[Footnote {number}] {text}")


def _blocks(parent: Any, notes: Notes) -> Iterator[Block]:
    for element in parent:
        match _kind(element):
            case "title":
                lines = "\n".join(filter(None, map(_words, element.iterfind("{*}p"))))
                yield Block(lines, section=" ".join(lines.split()) or None)
            case "stanza":
                yield Block("\n".join(map(_words, element)))
            case "table":
                rows = (map(_words, row.iterfind("{*}*")) for row in element.iter("{*}tr"))
                yield Block("\n".join("\t".join(row) for row in rows))
            case kind if kind in _PARAGRAPHS:
                yield Block(_words(element))
                notes.left_out("pictures", sum(1 for _ in element.iter("{*}image")))
            case "image":
                notes.left_out("pictures")
            case _:
                yield from _blocks(element, notes)


def _kind(element: Any) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _words(element: Any) -> str:
    return " ".join("".join(element.itertext("{*}*")).split())
