"""How the characters of a PDF's page are drawn: their size and place."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from pypdfium2 import raw

SIZES = 0.4, 0.92
"""Size of a superscript or subscript, as a share of the size of the character that carries it."""
_HEIGHTS = 0.15, 0.75
"""Smallest and largest height of a superscript's baseline above its base character's, as a share of the base character's size."""
_DEPTH = 0.5
"""Largest depth of the baseline of a subscript, as a share of the same size."""
OVERLAP = 0.35
"""How far a character may reach into the one before, as a share of the larger one's size."""
GAP = 0.15
"""Width of a space that only the distance shows."""
_SAME = 0.05
"""Difference between characters with the same size and baseline, as a share of their size."""


@dataclass(frozen=True, slots=True)
class Letter:
    """How a character is drawn, in points. `start`, `end`: along its line. `baseline`: across. `angle`: of the line, in degrees."""

    index: int
    size: float
    start: float
    end: float
    baseline: float
    angle: int

    def carries(self, other: Letter) -> bool:
        """Whether the other character is as small and as high as a superscript of this one."""
        return (
            self._is_larger_than(other) and _HEIGHTS[0] <= (other.baseline - self.baseline) / self.size <= _HEIGHTS[1]
        )

    def carries_below(self, other: Letter) -> bool:
        """Whether the other character is as small and as low as a subscript of this one."""
        return self._is_larger_than(other) and _SAME < (self.baseline - other.baseline) / self.size <= _DEPTH

    def _is_larger_than(self, other: Letter) -> bool:
        return self.angle == other.angle and SIZES[0] <= other.size / self.size <= SIZES[1]

    def is_level_with(self, other: Letter) -> bool:
        """Whether both characters are on the same baseline."""
        return self.angle == other.angle and abs(self.baseline - other.baseline) <= _SAME * self.size

    def goes_with(self, other: Letter) -> bool:
        """Whether both characters have the same baseline and size."""
        return self.is_level_with(other) and abs(self.size - other.size) <= _SAME * self.size

    def is_near(self, after: Letter, most: float) -> bool:
        """Whether the gap to the next character is at most `most` times the size of the larger character."""
        size = max(self.size, after.size)
        return -OVERLAP * size <= after.start - self.end <= most * size


class Letters:
    """The characters of a page. `text`: all of the page, as PDFium has it."""

    def __init__(self, text: str, textpage: Any) -> None:
        self._textpage = textpage
        has_pairs = any(letter > "\uffff" for letter in text)  # PDFium counts their UTF-16
        self._units = [0, *accumulate(1 + (letter > "\uffff") for letter in text)] if has_pairs else None
        self.at = cache(self._read)
        """Returns how the character at a place of the text is drawn; None if PDFium has added it."""

        self._x, self._y = ctypes.c_double(), ctypes.c_double()

    def height(self, place: int) -> float | None:
        """Return the y of the character at a place of the text, in points; None if there is none. Much faster than `at`."""
        index = self._index(place)
        if index < 0 or not raw.FPDFText_GetCharOrigin(self._textpage, index, self._x, self._y):
            return None
        return self._y.value

    def _index(self, place: int) -> int:
        unit = place if self._units is None else self._units[place]
        return int(raw.FPDFText_GetCharIndexFromTextIndex(self._textpage, unit))

    def _read(self, place: int) -> Letter | None:
        index = self._index(place)
        if index < 0 or raw.FPDFText_IsGenerated(self._textpage, index) == 1:
            return None
        matrix, box = raw.FS_MATRIX(), raw.FS_RECTF()
        x, y = ctypes.c_double(), ctypes.c_double()
        raw.FPDFText_GetMatrix(self._textpage, index, matrix)
        raw.FPDFText_GetCharOrigin(self._textpage, index, x, y)
        raw.FPDFText_GetLooseCharBox(self._textpage, index, box)
        size = raw.FPDFText_GetFontSize(self._textpage, index) * math.hypot(matrix.c, matrix.d)
        if size <= 0:
            return None
        angle = round(math.degrees(math.atan2(matrix.b, matrix.a)))
        start, baseline = _turned(x.value, y.value, angle)
        ends = (_turned(*corner, angle)[0] for corner in ((box.left, box.bottom), (box.right, box.top)))
        return Letter(index, size, start, max(ends), baseline, angle)


def _turned(x: float, y: float, angle: int) -> tuple[float, float]:
    """Return a point as its place along and across the lines with this angle."""
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return x * cosine + y * sine, y * cosine - x * sine
