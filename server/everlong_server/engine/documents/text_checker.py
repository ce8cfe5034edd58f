"""`TextChecker`: checks, while a file is being received, that it is text or can be converted to text."""

from __future__ import annotations

import codecs
import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from everlong_server.engine.documents import formats
from everlong_server.errors import InvalidRequest, TooLarge, UnsupportedMedia

_MAGIC = {
    b"\x1f\x8b": "a gzip file",
    b"7z\xbc\xaf\x27\x1c": "a 7z file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\xd0\xcf\x11\xe0": "an old Office file",
    b"{\\rtf": "an RTF file",
}
_BOM = codecs.BOM_UTF8
MAX_NAME = 255
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(slots=True)
class TextChecker:
    """Checks, chunk by chunk, that a file is UTF-8 text. Only counts the bytes of a file in a format that can be converted to
    text; `foreign` is that format."""

    limit: int
    size: int = 0
    foreign: str | None = None
    digest: Any = field(default_factory=hashlib.sha256)
    _head: bytes = b""
    _decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def feed(self, data: bytes) -> None:
        """Check the next chunk. Raises `TooLarge`, `UnsupportedMedia` or `InvalidRequest` with the problem and its place."""
        if len(self._head) < 1024:
            self._head += data[: 1024 - len(self._head)]
            self.foreign = self.foreign or formats.detect_kind(self._head)
            for magic, name in _MAGIC.items():
                if self._head.startswith(magic):
                    raise UnsupportedMedia(
                        f"the document is {name}: upload UTF-8 text or a supported format", param="file"
                    )
            if b"\0" in self._head and self.foreign is None:
                raise UnsupportedMedia(
                    "the document contains NUL bytes, so it is not text: upload UTF-8 text or a supported format",
                    param="file",
                )
        if self.size + len(data) > self.limit:
            raise too_large(self.limit)
        self.size += len(data)
        self.digest.update(data)
        if self.foreign is None:
            self._check(data)

    def _check(self, data: bytes) -> None:
        pending = len(self._decoder.getstate()[0])
        try:
            self._decoder.decode(data)
        except UnicodeDecodeError as error:
            at = self.size - len(data) - pending + error.start
            raise InvalidRequest(
                f"the document is not UTF-8: {error.reason} at byte {at}", param="file", code="invalid_utf8"
            ) from None

    def finish(self) -> int:
        """Return the offset of the text's first byte, after a byte-order mark. Raises `InvalidRequest` if there is no text."""
        if self.foreign is not None:
            return 0
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"the document is not UTF-8: it ends inside a character, at byte {self.size}",
                param="file",
                code="invalid_utf8",
            ) from None
        start = len(_BOM) if self._head.startswith(_BOM) else 0
        if self.size == start:
            raise InvalidRequest("the document is empty", param="file", code="empty_document")
        return start


def too_large(limit: int) -> TooLarge:
    """Return the error for a document of more than `limit` bytes."""
    return TooLarge(
        f"the document is larger than the limit of {limit} bytes (EVERLONG_MAX_DOCUMENT_BYTES)", param="file"
    )


def clean_filename(given: str) -> str | None:
    """Return the file name without its path, in NFC; None if nothing is left.

    Raises `InvalidRequest` for a name that is too long, or with characters that make it look like another one.
    """
    if len(given) > MAX_NAME:
        raise InvalidRequest(f"filename has {len(given)} characters, the limit is {MAX_NAME}", param="filename")
    name = unicodedata.normalize("NFC", re.split(r"[/\\]", given)[-1]).strip()
    # Control characters, lone surrogates, and characters that change the direction of writing.
    bad = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _BIDI_CONTROLS), None)
    if bad is not None:
        raise InvalidRequest(f"filename: the character U+{ord(bad):04X} is not allowed", param="filename")
    return None if name in ("", ".", "..") else name
