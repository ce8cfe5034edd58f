"""Decodes an upload whose content type declares another encoding than UTF-8."""

from __future__ import annotations

import codecs

from everlong_server.engine.documents.formats.catalogue import HEAD, MEDIA_TYPES, detect, is_accepted
from everlong_server.engine.documents.formats.labels import encoding_of
from everlong_server.errors import UnsupportedMedia

_UTF8 = ("utf-8", "utf-8-sig", "ascii")
_WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
"""Encodings of Python that are those of names of hosts, of source code, or of nothing."""


class Decoder:
    """Turns the chunks of a plain text into UTF-8. Chunks of other files, and of texts that declare no encoding, stay as they are.

    `kind`, `charset`: the media type and its parameter, or None. The beginning of the content decides what the file is.
    """

    def __init__(self, kind: str | None, charset: str | None, filename: str | None) -> None:
        self._kind, self._charset, self._filename = kind, charset or "", filename
        self._head = bytearray()
        self._decoder: codecs.IncrementalDecoder | None = None
        is_text = kind is not None and is_accepted(kind) and kind.lower() not in MEDIA_TYPES
        self._is_undecided = bool(charset) and is_text and _python_name(self._charset) not in _UTF8

    def decode(self, chunk: bytes, *, is_last: bool = False) -> bytes:
        """Return the next chunk in UTF-8, or nothing while the beginning is incomplete. Raises `UnsupportedMedia` if it does not fit the encoding,
        or if that is unknown."""
        if self._is_undecided:
            self._head += chunk
            if len(self._head) < HEAD and not is_last:
                return b""
            self._is_undecided, chunk = False, bytes(self._head)
            if detect(chunk[:HEAD], self._filename, self._kind) is None:
                self._decoder = self._new_decoder()
        if self._decoder is None:
            return chunk
        try:
            return self._decoder.decode(chunk, is_last).encode()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise self._refused(
                f"does not fit: the document has bytes that are no characters in it, such as 0x{byte:02x}"
            ) from None
        except UnicodeError:
            raise self._refused("needs a byte order mark: name the byte order, as in utf-16le") from None

    def _new_decoder(self) -> codecs.IncrementalDecoder:
        known, name = encoding_of(self._charset), _python_name(self._charset)
        if known is None and name in _WIDE:  # others that begin with UTF keep their input for long (UTF-7)
            known = name
        if known is None or known in _NO_CHARSETS:
            raise self._refused("is not supported")
        return codecs.getincrementaldecoder(known)()

    def _refused(self, why: str) -> UnsupportedMedia:
        return UnsupportedMedia(
            f"charset {self._charset[:60]!r} {why}. Without charset, the server recognises the encoding",
            param="content-type",
        )


def _python_name(name: str) -> str:
    """Return Python's name of an encoding; "" for an unknown one."""
    try:
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        return ""
