"""`TextChecker`: checks, while a file is being received, that it is text or can be converted to text."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any, Protocol

from everlong_server.engine.documents.formats.catalogue import HEAD, binary_kind, detect
from everlong_server.engine.documents.formats.charset import is_utf8, iso2022
from everlong_server.errors import InvalidRequest, TooLarge, UnsupportedMedia

_BOM = codecs.BOM_UTF8
MAX_NAME = 255
_MAX_JSON = 1 << 20
"""Bytes of a body that is parsed because its media type is JSON. A larger one is taken as text."""
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp")


class Declaration(Protocol):
    """What the sender says about a file. It may be known only once the file's first bytes have arrived."""

    @property
    def filename(self) -> str | None:
        """Name of the file; None if unknown."""

    @property
    def media_type(self) -> str | None:
        """Media type of the file; None if unknown."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A `Declaration` that is complete."""

    filename: str | None = None
    media_type: str | None = None


@dataclass(slots=True)
class TextChecker:
    """Checks, chunk by chunk, that a file is text. Only counts the bytes of a file that must be converted.

    `plain`: the file is text in UTF-8, even if it looks like the source of a page or an e-mail. `foreign`: the kind of a file that must be
    converted, as `detect` returns it, or "text" for text in another encoding than UTF-8.
    """

    limit: int
    declared: Declaration = Declared()
    plain: bool = False
    size: int = 0
    foreign: str | None = None
    digest: Any = field(default_factory=hashlib.sha256)
    _head: bytes = b""
    _decided: bool = False
    _checked: int = 0
    """Number of bytes that were checked to be text."""
    _blank: bool = True
    _json: bytearray = field(default_factory=bytearray)
    """The beginning of a file without a name that is declared as JSON."""
    _decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def feed(self, data: bytes) -> None:
        """Check the next chunk. Raises `TooLarge` or `UnsupportedMedia` with the problem and its place."""
        if self.size + len(data) > self.limit:
            raise too_large(self.limit)
        self.size += len(data)
        self.digest.update(data)
        if self._is_declared_json() and self.size <= _MAX_JSON:
            self._json += data
        if not self._decided:
            self._head += data
            if len(self._head) >= HEAD:
                self._decide()
        elif self.foreign is None:
            self._check(data)

    def _decide(self) -> None:
        """Decide whether the file is text, by its first bytes, and check those."""
        self._decided = True
        head, self._head = self._head, self._head[: len(_BOM)]
        if self.plain:
            self._check(head)
            return
        self.foreign = detect(head[:HEAD], self.declared.filename, self.declared.media_type)
        if self.foreign is not None:
            return
        if name := binary_kind(head[:HEAD]):
            raise UnsupportedMedia(
                f"the document is {name}: upload text or a supported format (GET /v1/formats)", param="file"
            )
        if b"\0" in head[:HEAD] or not is_utf8(head[:HEAD]) or iso2022(head[:HEAD]):
            self.foreign = "text"
        else:
            self._check(head)

    def _check(self, data: bytes) -> None:
        if (nul := data.find(b"\0")) >= 0:
            raise UnsupportedMedia(
                f"the document contains a NUL byte at byte {self._checked + nul}, so it is not text: upload text or a "
                "supported format (GET /v1/formats)",
                param="file",
            )
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError:
            self.foreign = "text"
            return
        self._checked += len(data)
        self._blank = self._blank and all(unicodedata.category(character) in _INVISIBLE for character in text)

    def finish(self) -> int:
        """Return the offset of the text's first byte, after a byte-order mark. Raises `InvalidRequest` if there is no text."""
        if not self._decided:
            self._decide()
        if self.foreign is not None:
            return 0
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            self.foreign = "text"
            return 0
        start = len(_BOM) if self._head.startswith(_BOM) else 0
        if self._blank:
            what = "is empty" if self.size == start else "has only white space and invisible characters"
            raise InvalidRequest(f"the document {what}", param="file", code="empty_document")
        if self._is_declared_json() and self.size <= _MAX_JSON:
            _require_json(self._json)
        return start

    def _is_declared_json(self) -> bool:
        """Return whether the file has the media type of JSON, and no name: then it may be the body of a request to another path."""
        return not self.declared.filename and (self.declared.media_type or "").lower() == "application/json"


def _require_json(data: bytearray) -> None:
    """Raise `InvalidRequest` unless `data` is JSON."""
    try:
        with contextlib.suppress(RecursionError):
            json.loads(data, parse_int=str)  # any number of digits
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the content type is application/json, but the body is not JSON ({error}): send other text as text/plain",
            param="file",
            code="invalid_json",
        ) from None


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
