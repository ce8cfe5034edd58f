"""Counts the paragraphs of numbered lists on slides and in other drawings (ISO/IEC 29500-1, 21.1.2.4.1)."""

from __future__ import annotations

import re
from typing import Any

from everlong_server.engine.documents.formats.readers.openxml.package import A
from everlong_server.engine.documents.formats.readers.shared.numerals import numeral

_SCHEME = re.compile("(arabic|alphaLc|alphaUc|romanLc|romanUc)(Period|ParenR|ParenBoth|Plain)")
_FORMS = {
    "arabic": "decimal", "alphaLc": "lowerLetter", "alphaUc": "upperLetter", "romanLc": "lowerRoman", "romanUc": "upperRoman",
}  # fmt: skip
_SIGNS = {"Period": "{}.", "ParenR": "{})", "ParenBoth": "({})", "Plain": "{}"}
_AUTOMATIC = f"{A}buAutoNum"
_KINDS = {_AUTOMATIC, *(f"{A}bu{kind}" for kind in ("None", "Char", "Blip"))}
_LEVELS = 9


class Bullets:
    """How far the lists of one text have been counted. Lists that only a layout or a master numbers are not counted."""

    def __init__(self, body: Any) -> None:
        """`body`: the element with the paragraphs."""
        style = next(body.iter(f"{A}lstStyle"), None)
        levels = (None if style is None else style.find(f"{A}lvl{level + 1}pPr") for level in range(_LEVELS))
        self._styles = [_numbering(each) for each in levels]
        self._counts: dict[int, tuple[tuple[str, int], int]] = {}
        """Scheme and start of the list at each level, and the number of its last paragraph."""

    def of(self, paragraph: Any) -> str:
        """Count a paragraph that has text, and return its number; "" if it has none."""
        properties = paragraph.find(f"{A}pPr")
        level = min(_number("0" if properties is None else properties.get("lvl"), 0), _LEVELS - 1)
        for deeper in [each for each in self._counts if each > level]:
            del self._counts[deeper]
        found = _numbering(properties)
        if found is None:
            found = self._styles[level]
        if found is None or found.tag != _AUTOMATIC:
            self._counts.pop(level, None)
            return ""
        scheme, start = found.get("type", ""), _number(found.get("startAt"), 1)
        last, count = self._counts.get(level, (None, 0))
        count = count + 1 if last == (scheme, start) else start
        self._counts[level] = (scheme, start), count
        return _shown(count, scheme)


def _numbering(properties: Any) -> Any:
    """Return the element that says what is before a paragraph, such as `buAutoNum` or `buNone`; None if none does."""
    return next((each for each in (() if properties is None else properties) if each.tag in _KINDS), None)


def _shown(number: int, scheme: str) -> str:
    known = _SCHEME.fullmatch(scheme)
    if known is None:  # in circles, or in digits of other scripts
        return f"{number}."
    return _SIGNS[known[2]].format(numeral(number, _FORMS[known[1]]))


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 6 else default
