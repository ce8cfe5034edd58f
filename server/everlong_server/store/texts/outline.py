"""The outline of a document that was converted from another format: where its pages and sections begin. Kept as a sidecar file."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the process that converts a file imports this module, and should start fast
    from everlong_server.store.texts.blobs import Blobs


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """The text from the character `start` on is on `page`, counted from 1, or in the section with the heading `section`."""

    start: int
    page: int | None = None
    section: str | None = None


def save(blobs: Blobs, document_id: str, entries: Sequence[OutlineEntry]) -> None:
    """Store the document's outline durably. `entries`: in the order of the text. Blocks."""
    with blobs.fill(name(document_id)) as path:
        path.write_text(json.dumps([astuple(entry) for entry in entries]))


def load(blobs: Blobs, document_id: str) -> list[OutlineEntry]:
    """Return the document's outline; an empty one if it has none or was deleted. Blocks."""
    try:
        with blobs.open(name(document_id)) as file:
            return [OutlineEntry(*entry) for entry in json.load(file)]
    except FileNotFoundError:
        return []


def at(entries: Sequence[OutlineEntry], character: int) -> OutlineEntry | None:
    """Return the entry that applies to a character of the text; None before the first entry."""
    before = bisect_right(entries, character, key=lambda entry: entry.start)
    return entries[before - 1] if before else None


def name(document_id: str) -> str:
    """Return the name of the outline's blob."""
    return f"{document_id}.marks"
