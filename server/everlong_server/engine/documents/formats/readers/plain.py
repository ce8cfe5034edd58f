"""Reads plain text in another encoding than UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.charset import pieces


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the text as it is, in pieces."""
    for piece in pieces(file, notes):
        yield Block(piece, joined=True)
