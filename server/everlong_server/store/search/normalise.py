"""`searchable`: normalises a text for the search, so that different spellings of the same characters match. `words_in`: its words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

# Characters that are not seen: soft hyphens (U+FFFE in text from a PDF) with the end of a line that they hyphenate, joiners, marks of
# direction, byte-order marks, variation selectors.
_UNSEEN = re.compile(
    "[\u00ad\ufffe][ \\t]*(?:\\r?\\n[ \\t]*)?"
    "|[\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]"
)
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:([,.'’ \u066c])\d{3})(?:\1\d{3})*(?![\d])")
_SEPARATOR = re.compile(r"\D")
_AFTER_FIGURE = re.compile(r"(?<=\d[-/:_])\d\d\D")
"""The last part of a date or time, with a separator."""
_ESCAPED = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
"""Escapes of JSON, such as `\\u00e9`: code units of UTF-16."""
_ASCII_WORD = re.compile(r"[^\W_]+")
_DIVIDED = re.compile(r"(?<![^\W\d_])([^\W\d_]+)-\r?\n[ \t]*([^\W\d_]+)")
"""A word that a hyphen divides at the end of a line, or one that is written with this hyphen."""
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
# Chinese, Japanese and Korean; Thai, Lao, Burmese and Khmer.
PAIRED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
TRIPLED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Characters of languages that are written without spaces, as in a regular expression."""
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


def without_certain_separators(text: str) -> str:
    """Return the text without separators of thousands, except those that can separate two numbers: see `other_words`."""
    return _GROUPED.sub(lambda match: match[0] if _can_be_two(match) else _SEPARATOR.sub("", match[0]), text)


def words_in(text: str) -> list[str]:
    """Return the words of a searchable text."""
    return (_ASCII_WORD if text.isascii() else _word()).findall(text)


def other_words(written: str, text: str, plain: str) -> Iterator[str]:
    """Yield further words, for places of a text that can be read in two ways. `text`: what is `written`, `composed`; `plain`: also `without_separators`.

    "100 200" can be two columns of a table, "1,100,200" at the beginning of a line three, and "2026-03-05,120" a date and a number.
    A hyphen at the end of a line can only divide a word. The n of an escaped line end is not a part of the next word. `C:\\ubeef` can be a path.
    """
    for number in _GROUPED.finditer(text) if plain != text else ():
        if _can_be_two(number):
            yield from number[0].split(number[1])
    for divided in _DIVIDED.finditer(text) if "-\n" in text or "-\r" in text else ():
        if divided[2].islower():
            yield divided[1] + divided[2]
    if "\\" in text:
        yield from _after_escape().findall(text)
    for escaped in _ESCAPED.findall(written) if "\\u" in written else ():
        yield from _ASCII_WORD.findall(escaped)


def _can_be_two(number: re.Match[str]) -> bool:
    """Return whether a number with separators of thousands can also be several numbers."""
    text, start = number.string, number.start()
    at_line_start = text[max(0, start - 1) : start] in ("", "\n")
    return number[1] == " " or (number[1] == "," and at_line_start) or bool(_AFTER_FIGURE.match(text, start))


@cache
def _word() -> re.Pattern[str]:
    """Return the pattern of a word. It has accents, and the vowel signs of scripts such as Devanagari and Tamil, which `\\w` does not contain."""
    marks = "".join(chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    # Python compares a letter with these marks one after the other. Nearly all letters of European texts fail the first comparison.
    return re.compile(rf"[^\W_]+(?:(?![\x00-\u02ff])[{marks}]+[^\W_]*)*")


@cache
def _after_escape() -> re.Pattern[str]:
    """Return the pattern of a word behind a line end or tab as JSON and program code write it, such as "\\n"."""
    return re.compile(rf"\\[bfnrt]({_word().pattern})")


def _unescaped(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\u", "")).decode("utf-16-be", "replace")
