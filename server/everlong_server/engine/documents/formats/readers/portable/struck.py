"""Finds struck text on a PDF's page. The file only draws a line through the middle of the letters."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pypdfium2 import raw

from everlong_server.engine.documents.formats.readers.portable.changes import Change
from everlong_server.engine.documents.formats.readers.portable.letters import Letter, Letters

_MAX_OBJECTS = 20_000
"""Objects of a page that are looked at. Maps and drawings have more, and no struck text."""
_THIN = 3.0
"""Points up to which a line is thin."""
_MIDDLE = 0.12, 0.5
"""Height of the line above the baseline of the letters, as a share of their size. Underlines are below, rules of tables above."""
_INNER = 0.15, 0.8
"""The inner part of the height of a box around letters, as shares of it."""
_AROUND = -0.25, 0.95
"""Heights in which there is no other line but an underline. Shades may be drawn as a stack of thin lines."""
_MAX_AROUND = 2
_MAX_HEIGHTS = 12
"""Heights of lines within the height of a letter, in any part of the page, from which on they are a drawing."""
_MAX_ABOVE = 40.0
"""Points above a baseline in which its letters may be struck."""
_REACH = 0.5
"""How far the line may go on beside the letters, as a share of their size. Grids of charts and rules of forms go on further."""
_FILLED = 0.6, 1.25
"""Width of the letters, as a share of the line's length: words have blanks between them, and a line reaches to their ends."""
_STEP = 0.25
"""Points between two heights that are told apart."""
_TOUCHING = 1.0
"""Points between two lines that continue each other."""
_MARK = "~~"


class _Line(NamedTuple):
    left: float
    right: float


class _Lines:
    """The thin horizontal lines of a page, by height."""

    def __init__(self, boxes: Iterable[tuple[float, float, float, float]]) -> None:
        """`boxes`: left, bottom, right and top of each."""
        found = defaultdict[int, list[_Line]](list)
        for left, bottom, right, top in boxes:
            found[round((bottom + top) / 2 / _STEP)].append(_Line(left, right))
        self._at = {height: _merged(lines) for height, lines in found.items()}
        self._heights = sorted(self._at)

    def through_boxes(self, boxes: Iterable[tuple[float, float, float, float]]) -> list[float]:
        """Return the heights of lines that go through boxes of text and no further. `boxes`: left, bottom, right and top of each."""
        reach = dict[tuple[int, _Line], tuple[float, float]]()
        for box in boxes:
            size = box[3] - box[1]
            first, last = (bisect_right(self._heights, (box[1] + share * size) / _STEP) for share in _INNER)
            for height in self._heights[first:last] if last - first <= _MAX_HEIGHTS else ():
                if line := self._overlapping(height, box):
                    left, right = reach.get((height, line), (math.inf, -math.inf))
                    reach[height, line] = min(left, box[0] - size), max(right, box[2] + size)
        found = {height for (height, line), (left, right) in reach.items() if left <= line.left and line.right <= right}
        return [height * _STEP for height in sorted(found)]

    def _overlapping(self, height: int, box: tuple[float, float, float, float]) -> _Line | None:
        """Return the last line of a height that begins before the end of a box, if it ends after the box's start."""
        lines = self._at[height]
        place = bisect_right(lines, (box[2], math.inf)) - 1
        return lines[place] if place >= 0 and lines[place].right > box[0] else None

    def through(self, letter: Letter) -> tuple[int, _Line] | None:
        """Return the line through the middle of a letter, and its height; None if there is none."""
        low, high = (math.floor((letter.baseline + share * letter.size) / _STEP) for share in _AROUND)
        first, last = ((letter.baseline + share * letter.size) / _STEP for share in _MIDDLE)
        near = self._heights[bisect_left(self._heights, low) : bisect_right(self._heights, high)]
        across = [(height, line) for height in near if (line := self._covering(height, letter))]
        middle = [(height, line) for height, line in across if first <= height <= last]
        return middle[0] if middle and len(across) <= _MAX_AROUND else None

    def _covering(self, height: int, letter: Letter) -> _Line | None:
        center = (letter.start + letter.end) / 2
        lines = self._at[height]
        place = bisect_right(lines, (center, math.inf)) - 1
        return lines[place] if place >= 0 and lines[place].right >= center else None


def _merged(lines: Iterable[_Line]) -> list[_Line]:
    """Return lines of one height from left to right, with those that touch joined."""
    merged: list[_Line] = []
    for line in sorted(lines):
        if merged and line.left <= merged[-1].right + _TOUCHING:
            merged[-1] = _Line(merged[-1].left, max(merged[-1].right, line.right))
        else:
            merged.append(line)
    return merged


def strikes(text: str, page: Any, textpage: Any, letters: Letters) -> tuple[list[Change], list[Change]]:
    """Return the marks before and after the struck text of a page. `text`: all of the page, as PDFium has it."""
    boxes = [*_drawn_lines(page), *_marked_lines(page)]
    if not boxes:
        return [], []
    lines = _Lines(boxes)
    heights = lines.through_boxes(textpage.get_rect(index) for index in range(textpage.count_rects()))
    if not heights:
        return [], []
    found = defaultdict[tuple[int, _Line], list[tuple[int, Letter]]](list)
    for place, character in enumerate(text):
        if character.isspace() or not _is_below_one(letters.height(place), heights):
            continue
        if (letter := letters.at(place)) is None or letter.angle:
            continue
        if line := lines.through(letter):
            found[line].append((place, letter))
    struck = {place for (_, line), across in found.items() if _is_strike(line, across, text) for place, _ in across}
    runs = list(_runs(text, sorted(struck)))
    return [Change(start, start, _MARK) for start, _ in runs], [Change(end, end, _MARK) for _, end in runs]


def _is_below_one(baseline: float | None, heights: Sequence[float]) -> bool:
    """Whether one of the heights is a little above a baseline."""
    place = 0 if baseline is None else bisect_left(heights, baseline)
    return baseline is not None and place < len(heights) and heights[place] <= baseline + _MAX_ABOVE


def _is_strike(line: _Line, across: Sequence[tuple[int, Letter]], text: str) -> bool:
    """Whether a line goes along these letters and no further."""
    size = max(letter.size for _, letter in across)
    start, end = min(letter.start for _, letter in across), max(letter.end for _, letter in across)
    on_letters = sum(letter.end - letter.start for _, letter in across)
    return (
        start - line.left <= _REACH * size
        and line.right - end <= _REACH * size
        and _FILLED[0] <= on_letters / (line.right - line.left) <= _FILLED[1]
        and any(text[place].isalnum() for place, _ in across)
    )


def _runs(text: str, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each run of places in a line, with the blanks between its words."""
    start = end = -1
    for place in places:
        between = text[end:place] if start >= 0 else "\n"
        if between.strip(" ") or start < 0:
            if start >= 0:
                yield start, end
            start = place
        end = place + 1
    if start >= 0:
        yield start, end


def _drawn_lines(page: Any) -> Iterator[tuple[float, float, float, float]]:
    """Yield the boxes of a page's thin horizontal lines and rectangles."""
    count = raw.FPDFPage_CountObjects(page)
    if count > _MAX_OBJECTS:
        return
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    for index in range(count):
        drawn = raw.FPDFPage_GetObject(page, index)
        if raw.FPDFPageObj_GetType(drawn) != raw.FPDF_PAGEOBJ_PATH:
            continue
        if raw.FPDFPageObj_GetBounds(drawn, left, bottom, right, top):
            box = left.value, bottom.value, right.value, top.value
            if _is_thin(box):
                yield box


def _is_thin(box: tuple[float, float, float, float]) -> bool:
    height = box[3] - box[1]
    return height <= _THIN and box[2] - box[0] > height and all(map(math.isfinite, box))


def _marked_lines(page: Any) -> Iterator[tuple[float, float, float, float]]:
    """Yield a box for each line of text that a reader of the file has struck, with a mark of its own."""
    corners = raw.FS_QUADPOINTSF()
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        if annotation and raw.FPDFAnnot_GetSubtype(annotation) == raw.FPDF_ANNOT_STRIKEOUT:
            for index in range(raw.FPDFAnnot_CountAttachmentPoints(annotation)):
                if raw.FPDFAnnot_GetAttachmentPoints(annotation, index, corners):
                    xs = corners.x1, corners.x2, corners.x3, corners.x4
                    ys = corners.y1, corners.y2, corners.y3, corners.y4
                    middle = min(ys) + 0.4 * (max(ys) - min(ys))
                    if all(map(math.isfinite, (*xs, middle))):
                        yield min(xs), middle, max(xs), middle
        raw.FPDFPage_CloseAnnot(annotation)
