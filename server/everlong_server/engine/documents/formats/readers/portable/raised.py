"""Superscript numbers of a PDF. The file only draws them smaller and higher: without a mark, 10⁶ would become 106."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from pypdfium2 import raw

_DIGIT = re.compile(r"[0-9]")
_RAISED = str.maketrans("0123456789+-\u2212\u2013=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁼⁽⁾ⁿⁱ")
_HAS_FORM = re.compile(r"[0-9+\-\u2212\u2013=()ni,.*\u2020]+")
"""Superscripts whose characters have a raised form, or need none."""
_BACK, _FORTH = 8, 24
"""Characters of a superscript before and after one of its digits."""
_SIZES = 0.4, 0.92
"""Size of a superscript, as a share of the size of the character that carries it."""
_HEIGHTS = 0.15, 0.75
"""Height of its baseline above that of this character, as a share of the same size."""
_OVERLAP, _NEAR, _SPACE = 0.35, 0.3, 1.0
"""How far a superscript may reach into the character, or be from it without and with a space between them, as a share of the same size."""
_GAP = 0.15
"""Width of a space that only the distance shows."""
_SAME = 0.05
"""Difference between characters with the same size and baseline, as a share of their size."""
_FRACTION = re.compile(r"\s*[/\u2044]\s*[0-9]")


@dataclass(frozen=True, slots=True)
class Superscript:
    """A superscript number. `start`, `end`: of what `written` replaces in the text of the page.

    `index`: of its first character on the page. `carrier`: the character before it; "" if it carries the next one. `plain`: as
    PDFium has it.
    """

    start: int
    end: int
    index: int
    carrier: str
    plain: str
    written: str


@dataclass(frozen=True, slots=True)
class _Letter:
    """How a character is drawn, in points. `start`, `end`: along its line. `baseline`: across. `angle`: of the line, in degrees."""

    index: int
    size: float
    start: float
    end: float
    baseline: float
    angle: int

    def carries(self, other: _Letter) -> bool:
        """Whether the other character is as small and as high as a superscript of this one."""
        size, height = other.size / self.size, (other.baseline - self.baseline) / self.size
        return self.angle == other.angle and _SIZES[0] <= size <= _SIZES[1] and _HEIGHTS[0] <= height <= _HEIGHTS[1]

    def is_level_with(self, other: _Letter) -> bool:
        """Whether both characters are on the same baseline."""
        return self.angle == other.angle and abs(self.baseline - other.baseline) <= _SAME * self.size

    def goes_with(self, other: _Letter) -> bool:
        """Whether both characters have the same baseline and size."""
        return self.is_level_with(other) and abs(self.size - other.size) <= _SAME * self.size

    def is_near(self, after: _Letter, most: float) -> bool:
        """Whether the other character follows in at most so many times the size of the larger one."""
        size = max(self.size, after.size)
        return -_OVERLAP * size <= after.start - self.end <= most * size


class _Page:
    """Finds the superscript numbers of a page. `text`: all of the page, as PDFium has it."""

    def __init__(self, text: str, textpage: Any) -> None:
        self._text = text
        self._textpage = textpage
        has_pairs = any(letter > "\uffff" for letter in text)  # PDFium counts their UTF-16
        self._units = [0, *accumulate(1 + (letter > "\uffff") for letter in text)] if has_pairs else None
        self._letter = cache(self._read_letter)

    def superscripts(self) -> Iterator[Superscript]:
        done = 0
        for digit in _DIGIT.finditer(self._text):
            place = digit.start()
            if place < done or (first := self._letter(place)) is None:
                continue
            start, end = place, place + 1
            while start > max(done, place - _BACK) and self._goes_on(start - 1, first):
                start -= 1
            while end < min(len(self._text), place + _FORTH) and self._goes_on(end, first):
                end += 1
            if (found := self._superscript(start, end)) is not None:
                yield found
                end = max(end, found.end)
            done = end

    def _goes_on(self, place: int, first: _Letter) -> bool:
        """Whether the character at a place is drawn like `first`. White space ends a superscript."""
        letter = None if self._text[place].isspace() else self._letter(place)
        return letter is not None and first.goes_with(letter)

    def _superscript(self, start: int, end: int) -> Superscript | None:
        """Return the superscript that these characters are, which are drawn alike; None if they are none."""
        first, last, plain = self._letter(start), self._letter(end - 1), self._text[start:end]
        if first is None or last is None:
            return None
        base = len(self._text[:start].rstrip()) - 1 if start else -1
        before = self._letter(base) if base >= max(0, start - 4) else None
        after_place = end + len(self._text[end : end + 4]) - len(self._text[end : end + 4].lstrip())
        after = self._letter(after_place) if after_place < len(self._text) else None
        space = self._text[base + 1 : start]
        if before is not None and before.carries(first) and before.is_near(first, _SPACE if space else _NEAR):
            carrier = before
        elif (not start or space) and after is not None and after.carries(first) and last.is_near(after, _SPACE):
            carrier = after
        else:
            return None
        written = self._written(plain, end, self._text[base] if carrier is before else "", carrier)
        if written is None:
            return None
        is_added = space and not any(self._letter(place) for place in range(base + 1, start))
        if carrier is before and is_added:  # PDFium takes the superscript for another word or line
            written = (" " if first.start - before.end > _NEAR * before.size else "") + written
            start = base + 1
        if after is not None and "\n" in self._text[end:after_place] and self._is_same_line(last, carrier, after):
            has_space = " " in self._text[end:after_place] or after.start - last.end > _GAP * carrier.size
            written, end = written + " " * has_space, after_place
        return Superscript(start, end, first.index, self._text[base] if carrier is before else "", plain, written)

    def _written(self, plain: str, end: int, base: str, carrier: _Letter) -> str | None:
        """Return a superscript as text: in raised characters, or after `^`. The upper number of a fraction stays as it is."""
        if fraction := _FRACTION.match(self._text, end):
            lower = self._letter(fraction.end() - 1)
            if lower is not None and lower.size <= _SIZES[1] * carrier.size:
                return f" {plain}" if base.isdigit() else plain
        if _HAS_FORM.fullmatch(plain):
            return plain.translate(_RAISED)
        if not base:
            return None
        return f"^{plain}" if plain.isalnum() else f"^({plain})"

    @staticmethod
    def _is_same_line(last: _Letter, carrier: _Letter, after: _Letter) -> bool:
        """Whether the line of the superscript's carrier continues with `after`."""
        return carrier.is_level_with(after) and after.start >= last.end - _OVERLAP * carrier.size

    def _read_letter(self, place: int) -> _Letter | None:
        """Return how the character at a place of the text is drawn; None if PDFium has added it."""
        unit = place if self._units is None else self._units[place]
        index = raw.FPDFText_GetCharIndexFromTextIndex(self._textpage, unit)
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
        return _Letter(index, size, start, max(ends), baseline, angle)


def _turned(x: float, y: float, angle: int) -> tuple[float, float]:
    """Return a point as its place along and across the lines with this angle."""
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return x * cosine + y * sine, y * cosine - x * sine


def superscripts(text: str, textpage: Any) -> Iterator[Superscript]:
    """Yield the superscript numbers of a page, such as exponents and marks of footnotes. `text`: all of the page, as PDFium has it."""
    return _Page(text, textpage).superscripts()


def with_superscripts(text: str, raised: Sequence[Superscript]) -> str:
    """Return the text of a page with its superscript numbers in raised characters, and without the line ends around them."""
    parts, place = list[str](), 0
    for found in raised:
        parts += text[place : found.start], found.written
        place = found.end
    return "".join([*parts, text[place:]])


def with_superscripts_of_line(line: str, raised: Sequence[Superscript]) -> str:
    """Return one line of a page with its superscript numbers in raised characters. `raised`: those of this line, in their order."""
    done = 0
    for found in raised:
        drawn = re.compile(rf"({re.escape(found.carrier)})(?:\r\n)?{re.escape(found.plain)}(?:\r\n)?")
        if match := drawn.search(line, done):
            line = f"{line[: match.end(1)]}{found.written.rstrip()}{line[match.end() :]}"
            done = match.end(1) + len(found.written.rstrip())
    return line
