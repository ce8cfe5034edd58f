"""Restores the order of letters in Arabic ligatures: PDFium reverses them, as it does with the letters of a line."""

from __future__ import annotations

import ctypes
import re
from itertools import groupby
from typing import Any

from pypdfium2 import raw

_WORD = re.compile("[\u0621-\u064a]{2,}")
"""Letters of a word in Arabic script, without marks, which have the origin of their letter."""


def reading_order(letters: str, textpage: Any) -> list[int]:
    """Return the numbers of a page's letters with those of each ligature in their order: they have the same origin.

    `letters`: all of the page, as PDFium has them.
    """
    order = list(range(len(letters)))
    for word in _WORD.finditer(letters):
        for _, run in groupby(range(*word.span()), lambda index: _origin(textpage, index)):
            places = list(run)
            order[places[0] : places[-1] + 1] = reversed(places)
    return order


def with_ligatures(text: str, textpage: Any) -> str:
    """Return the text of a page with the letters of ligatures in their order."""
    if not _WORD.search(text):
        return text
    letters = "".join(chr(raw.FPDFText_GetUnicode(textpage, index)) for index in range(textpage.count_chars()))
    return "".join(letters[index] for index in reading_order(letters, textpage)) if letters == text else text


def _origin(textpage: Any, index: int) -> tuple[float, float]:
    x, y = ctypes.c_double(), ctypes.c_double()
    raw.FPDFText_GetCharOrigin(textpage, index, x, y)
    return x.value, y.value
