"""Loads the text of a PDF's page. PDFium reads lines that run downwards on the shown page in the wrong order."""

from __future__ import annotations

import math
from typing import Any

from pypdfium2 import raw

_SAMPLE = 100
"""Number of characters that show how a page is turned."""
_TOLERANCE = 10
"""Degrees that a line may differ from the vertical."""


def text_page(page: Any) -> Any:
    """Return the text of a page. If most of its lines run downwards, as on a page that somebody has turned, read it upright."""
    textpage = page.get_textpage()
    rotation = page.get_rotation()
    if not _runs_downwards(textpage, rotation):
        return textpage
    page.set_rotation((rotation - 90) % 360)
    try:
        return page.get_textpage()
    finally:
        page.set_rotation(rotation)


def _runs_downwards(textpage: Any, rotation: int) -> bool:
    """Whether most characters are turned clockwise by a quarter on the shown page."""
    count = textpage.count_chars()
    letters = [
        index for index in range(0, count, 1 + count // _SAMPLE) if not raw.FPDFText_IsGenerated(textpage, index)
    ]
    turns = (math.degrees(raw.FPDFText_GetCharAngle(textpage, index)) + rotation for index in letters)
    return 2 * sum(abs(turn % 360 - 90) < _TOLERANCE for turn in turns) > len(letters)
