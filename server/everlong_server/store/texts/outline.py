"""Where the pages and sections of a document begin that was no plain text: a blob beside its text."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a process that converts one file needs none of it
    from everlong_server.store.texts.blobs import Blobs


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """From the character `start` of a text on, it stands on `page`, counted from 1, or in the section of that heading."""

    start: int
    page: int | None = None
    section: str | None = None


def save(blobs: Blobs, document_id: str, marks: Sequence[OutlineEntry]) -> None:
    """Keeps the document's marks, which are in the order of the text; durable. Blocks."""
    with blobs.fill(name(document_id)) as path:
        path.write_text(json.dumps([astuple(mark) for mark in marks]))


def load(blobs: Blobs, document_id: str) -> list[OutlineEntry]:
    """The document's marks; none if it has none, or is gone. Blocks."""
    try:
        with blobs.open(name(document_id)) as file:
            return [OutlineEntry(*mark) for mark in json.load(file)]
    except FileNotFoundError:
        return []


def at(marks: Sequence[OutlineEntry], place: int) -> OutlineEntry | None:
    """The mark that holds for the character `place`."""
    before = bisect_right(marks, place, key=lambda mark: mark.start)
    return marks[before - 1] if before else None


def name(document_id: str) -> str:
    """The blob's."""
    return f"{document_id}.marks"
