"""The original of a document that was converted from a PDF, for pictures of its pages. Stored next to its text."""

from __future__ import annotations

import shutil
from pathlib import Path

from everlong_server.store.texts.blobs import Blobs


def save(blobs: Blobs, document_id: str, file: Path) -> None:
    """Store the document's original durably. Blocks."""
    with blobs.fill(name(document_id)) as path:
        shutil.copyfile(file, path)


def name(document_id: str) -> str:
    """Return the name of the original's blob."""
    return f"{document_id}.original"
