"""Finds the line of a passage in the local file that was uploaded."""

from __future__ import annotations

import codecs
from pathlib import Path

from everlong_client.types.document import Document

STDIN, STDIN_NAME = Path("-"), "standard input"
_CHUNK = 1 << 20


class Originals:
    """The local files of documents that were uploaded. The passages of a text can be found in its file by their offsets."""

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}
        self._piped: set[str] = set()

    def add(self, document: Document, file: Path) -> None:
        """Remember the file of a text document, or that a document came from standard input. Ignores converted documents and other pipes."""
        if file == STDIN:
            self._piped.add(document.id)
        elif document.format is None and file.is_file():
            self._files[document.id] = file

    def name(self, document: str) -> str | None:
        """Return what to call a document that has no file name; None if it did not come from standard input."""
        return STDIN_NAME if document in self._piped else None

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
