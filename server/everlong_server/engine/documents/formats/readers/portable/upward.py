"""Finds pages whose lines a PDF draws from bottom to top, and reorders them."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any

from pypdfium2 import raw

_MIN_LINES = 3
_BREAK = "\r\n"
"""PDFium's line end."""


def reversed_lines(text: str) -> str:
    """Return the text of a page with its last line first."""
    return _BREAK.join(reversed(text.split(_BREAK)))


def is_upward(text: str, textpage: Any) -> bool:
    """Whether a PDF draws all lines of a page from the bottom to the top. `text`: of the page, as PDFium has it."""
    lines = text.split(_BREAK)
    if len(lines) < _MIN_LINES or textpage.count_chars() != len(text) or "\ufffe" in text:
        return False  # U+FFFE: PDFium has joined a hyphenated word with the line that it takes for the next
    start, heights = 0, []
    for line in lines:
        letter = next((at for at in range(start, start + len(line)) if not text[at].isspace()), None)
        start += len(line) + len(_BREAK)
        if letter is None:
            continue
        if raw.FPDFText_GetCharAngle(textpage, letter) != 0:  # turned text may go upwards
            return False
        x, y = ctypes.c_double(), ctypes.c_double()
        raw.FPDFText_GetCharOrigin(textpage, letter, x, y)
        heights.append(y.value)
    return len(heights) >= _MIN_LINES and all(below < above for below, above in pairwise(heights))
