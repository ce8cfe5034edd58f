"""Finds the line of a passage in the local file that was uploaded."""

from __future__ import annotations

import codecs
from pathlib import Path

from everlong_client.types.document import Document

_CHUNK = 1 << 20


class Originals:
    """The local files of documents that were uploaded as text, whose passages can be found by their offsets."""

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}

    def add(self, document: Document, file: Path) -> None:
        """Remember the file of a document. Ignores converted documents, whose text is not in the file, and pipes."""
        if document.format is None and file.is_file():
            self._files[document.id] = file

    def line(self, document: str, start_byte: int, text: str) -> int | None:
        """Return the line, from 1, on which `text` begins, `start_byte` bytes after a byte-order mark.

        None if the document has no local file, or if the file does not hold `text` there. Raises `OSError`.
        """
        if (file := self._files.get(document)) is None:
            return None
        with file.open("rb") as stream:
            if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                stream.seek(0)
            lines, left = 1, start_byte
            while left and (chunk := stream.read(min(left, _CHUNK))):
                lines += chunk.count(b"\n")
                left -= len(chunk)
            expected = text.encode()
            return lines if left == 0 and stream.read(len(expected)) == expected else None
