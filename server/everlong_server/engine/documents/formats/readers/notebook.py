"""Reads Jupyter notebooks (nbformat 3 and 4): their text and code, and what the code printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.charset import pieces
from everlong_server.engine.documents.formats.readers.html import render

_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+([^\n]+)", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Commands to a terminal, which tracebacks and progress bars have."""
_PICTURES = ("image/png", "image/jpeg", "image/svg+xml", "image/gif", "png", "jpeg", "svg")
_TEXTS = ("text/markdown", "text/latex", "text/plain", "latex", "text")
"""Kinds of text that an output may have, best first. The last two are those of nbformat 3."""
_PAGES = ("text/html", "html")
_JSON = "application/json"
_EMBEDDED = re.compile(r"data:image/[\w.+-]{1,40};base64,[A-Za-z0-9+/=]*", re.IGNORECASE)
"""A picture in the text of a cell, as programs write one that is pasted."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the cells, each followed by its outputs. A heading in a cell begins a section.

    A file that is no notebook is yielded as it is.
    """
    if (cells := _cells(file)) is None:
        notes.add("it is no Jupyter notebook that can be read, so the text is its source")
        for piece in pieces(file, notes):
            yield Block(piece, joined=True)
        return
    for cell in cells:
        text, kind = _joined(cell.get("source", cell.get("input"))).strip("\n"), cell.get("cell_type")
        text = _without_pictures(text, notes) if kind == "markdown" else text
        heading = _HEADING.search(text) if kind == "markdown" else None
        section = heading[1].rstrip(" \t#") if heading else text if kind == "heading" else None
        yield Block(text, section=section or None)
        attached = cell.get("attachments")
        notes.left_out("pictures", len(attached) if isinstance(attached, dict) else 0)
        for output in _dicts(cell.get("outputs")):
            yield from _output(output, notes)


def _cells(file: Path) -> list[dict[str, Any]] | None:
    """Return the cells of a notebook; None for another file."""
    try:
        notebook = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None
    sheets = _dicts(notebook.get("worksheets")) or [notebook] if isinstance(notebook, dict) else []
    lists = [sheet["cells"] for sheet in sheets if isinstance(sheet.get("cells"), list)]
    return [cell for cells in lists for cell in _dicts(cells)] if lists else None


def _output(output: dict[str, Any], notes: Notes) -> Iterator[Block]:
    """Yield the text of an output, and count what it has besides."""
    data = output.get("data")
    data = {**output, **(data if isinstance(data, dict) else {})}
    text = f"{data['ename']}: {data.get('evalue', '')}" if "ename" in data else ""
    text = text or next((_joined(data[kind]) for kind in _TEXTS if data.get(kind)), "")
    has_picture = any(kind in data for kind in _PICTURES)
    notes.left_out("pictures", has_picture)
    page = next((_joined(data[kind]) for kind in _PAGES if data.get(kind)), "")
    # Libraries describe a picture or a page by its Python object, such as "<Figure size 640x480 with 1 Axes>".
    text = "" if text.startswith("<") and (page or has_picture or _JSON in data) else _without_pictures(text, notes)
    if not text and page:
        text = "\n".join(block.text for block in render(page, notes))
    elif not text and _JSON in data:
        text = json.dumps(data[_JSON], ensure_ascii=False)
    elif not text and not has_picture:
        notes.left_out("outputs in other forms", any("/" in kind for kind in data))
    if text := _as_shown(text).strip("\n"):
        yield Block(f"[Output]\n{text}")


def _without_pictures(text: str, notes: Notes) -> str:
    """Return a text without the data of pictures in it, which are counted."""
    text, count = _EMBEDDED.subn("", text)
    notes.left_out("pictures", count)
    return text


def _as_shown(text: str) -> str:
    """Return what a terminal shows: no colours, and of a line that was written over, as progress bars do, the last state."""
    lines = _COLOURS.sub("", text).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _dicts(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _joined(text: Any) -> str:
    """Return a text that a notebook may store as a list of lines."""
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")
