"""`searchable`: a text as the search compares it, whichever way people and programs wrote it. `words_in`: its words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Characters that are not seen: soft hyphens (U+FFFE in text from a PDF) with the end of a line that they hyphenate, joiners, marks of
# direction, byte-order marks, variation selectors.
_UNSEEN = re.compile(
    "[\u00ad\ufffe][ \\t]*(?:\\r?\\n[ \\t]*)?"
    "|[\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]"
)
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:([,.'’ \u066c])\d{3})(?:\1\d{3})*(?![\d])")
_SEPARATOR = re.compile(r"\D")
_ESCAPED = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
"""Characters as most programs write them in JSON, as code units of UTF-16."""
_MARKS = "".join(chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
"""Accents, and the vowel signs of scripts such as Devanagari and Tamil, which `\\w` does not contain."""
_WORD, _ASCII_WORD = re.compile(rf"[^\W_]+(?:[{_MARKS}]+[^\W_]*)*"), re.compile(r"[^\W_]+")
_AFTER_ESCAPE = re.compile(rf"\\[bfnrt]({_WORD.pattern})")
"""A word behind a line end or tab as JSON and program code write it, such as "\\n"."""
_DIVIDED = re.compile(r"([^\W\d_]+)-\r?\n[ \t]*([^\W\d_]+)")
"""A word that a hyphen divides at the end of a line, or one that is written with this hyphen."""
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_PIECE = re.compile(r"\S{1,256}|\s+")


def searchable(text: str) -> str:
    """Return the text in compatibility composition (NFKC), without characters that are not seen or separators of thousands.

    Keeps the case, which shows the parts of an identifier.
    """
    return without_separators(composed(text))


def composed(text: str) -> str:
    """Do what `searchable` does, but keep separators of thousands."""
    if "\\u" in text:
        text = _ESCAPED.sub(_unescaped, text)
    if not text.isascii():
        # In pieces, since normalising takes quadratic time for many accents on one letter.
        text = "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(_UNSEEN.sub("", text)))
        text = _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)
    return text


def without_separators(text: str) -> str:
    """Return the text without separators of thousands."""
    return _GROUPED.sub(lambda match: _SEPARATOR.sub("", match[0]), text)


def words_in(text: str) -> list[str]:
    """Return the words of a searchable text."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def other_words(text: str, plain: str) -> Iterator[str]:
    """Yield the words that a `composed` text has if it is read in another way than in `plain`, the same text `without_separators`.

    "100 200" can be two columns of a table, and "1,100,200" at the beginning of a line three. A hyphen at the end of a line can be none.
    After "\\n", a word begins.
    """
    for number in _GROUPED.finditer(text) if plain != text else ():
        if number[1] == " " or (number[1] == "," and text[max(0, number.start() - 1) : number.start()] in ("", "\n")):
            yield from number[0].split(number[1])
    for divided in _DIVIDED.finditer(text) if "-\n" in text or "-\r" in text else ():
        if divided[2].islower():
            yield divided[1] + divided[2]
    if "\\" in text:
        yield from _AFTER_ESCAPE.findall(text)


def _unescaped(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\u", "")).decode("utf-16-be", "replace")
