"""`searchable`: a text as the search compares it, whichever way people and programs wrote it."""

from __future__ import annotations

import re
import unicodedata

# Characters that are not seen: soft hyphens (U+FFFE in text from a PDF) with the end of a line that they hyphenate, joiners, marks of
# direction, byte-order marks, variation selectors.
_UNSEEN = re.compile(
    "[\u00ad\ufffe][ \\t]*(?:\\r?\\n[ \\t]*)?"
    "|[\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]"
)
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:([,.'’ \u066c])\d{3})(?:\1\d{3})*(?![\d])")
_SEPARATOR = re.compile(r"\D")
_PIECE = re.compile(r"\S{1,256}|\s+")


def searchable(text: str) -> str:
    """Return the text in compatibility composition (NFKC), without characters that are not seen or separators of thousands.

    Keeps the case, which shows the parts of an identifier.
    """
    if not text.isascii():
        # In pieces, since normalising takes quadratic time for many accents on one letter.
        text = "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(_UNSEEN.sub("", text)))
    return _GROUPED.sub(lambda match: _SEPARATOR.sub("", match[0]), text)
