"""Decodes an upload whose content type declares another encoding than UTF-8."""

from __future__ import annotations

import codecs

from everlong_server.engine.documents.formats.catalogue import MEDIA_TYPES, is_accepted
from everlong_server.engine.documents.formats.labels import encoding_of
from everlong_server.errors import UnsupportedMedia

_UTF8 = ("utf-8", "utf8", "us-ascii", "ascii")
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
"""Encodings of Python that are those of names of hosts, of source code, or of nothing."""


class Decoder:
    """Turns the chunks of a text into UTF-8. Chunks of other files, and of texts that declare no encoding, stay as they are.

    `kind`, `charset`: the media type and its parameter, or None. Raises `UnsupportedMedia` for an unknown encoding.
    """

    def __init__(self, kind: str | None, charset: str | None) -> None:
        self._charset = charset or ""
        self._decoder: codecs.IncrementalDecoder | None = None
        # A page or a mail declares its own encoding, or it is guessed.
        if not charset or (kind or "").lower() in MEDIA_TYPES or charset.lower().replace("_", "-") in _UTF8:
            return
        codec = _codec(charset) if kind and is_accepted(kind) else None
        if codec is None:
            raise UnsupportedMedia(
                f"charset {charset[:60]!r} is not supported: leave it out, and the encoding is recognised",
                param="content-type",
            )
        self._decoder = codec.incrementaldecoder()

    def decode(self, chunk: bytes, *, is_last: bool = False) -> bytes:
        """Return the next chunk in UTF-8. Raises `UnsupportedMedia` if it does not fit the encoding."""
        if self._decoder is None:
            return chunk
        try:
            return self._decoder.decode(chunk, is_last).encode()
        except UnicodeError as error:
            byte = f", such as 0x{error.object[error.start]:02x}" if isinstance(error, UnicodeDecodeError) else ""
            raise UnsupportedMedia(
                f"charset {self._charset[:60]!r} does not fit: the document has bytes that are no characters in it{byte}. "
                "Leave charset out, and the encoding is recognised",
                param="content-type",
            ) from None


def _codec(name: str) -> codecs.CodecInfo | None:
    """Return Python's codec for an encoding, as browsers understand its name; None for unknown ones."""
    try:
        codec = codecs.lookup(encoding_of(name) or name)
    except (LookupError, ValueError):
        return None
    is_text = codec._is_text_encoding and codec.name not in _NO_CHARSETS and codec.incrementaldecoder is not None
    return codec if is_text else None
