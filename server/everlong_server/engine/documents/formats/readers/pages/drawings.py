"""Separates the texts of SVG drawings that are drawn apart: on another line, or further to the right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lxml import etree

_LENGTH = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?)\s*(em|ex|px|pt|mm|cm|in|%)?", re.IGNORECASE)
_STYLED = re.compile(r"(?:^|;)\s*font-size\s*:\s*([^;]{1,40})", re.IGNORECASE)
_PIXELS = {"px": 1, "pt": 96 / 72, "mm": 96 / 25.4, "cm": 96 / 2.54, "in": 96}
_FONT = 16.0
"""Size of a font that no element states, in pixels."""
_LINE, _BLANK, _LETTER = 0.8, 0.2, 1.0
"""In font sizes: at least this far down is a new line (less is an index), at least this far to the right is a blank, and no letter is
wider."""
_KEPT = 16


@dataclass
class _Pen:
    """Where the text so far was drawn. `x`, `y`: None if unknown. `text`: the first characters that were drawn since `x`."""

    x: float | None
    y: float | None
    text: str = ""
    is_empty: bool = True

    def write(self, text: str | None) -> None:
        self.text = (self.text + (text or ""))[:_KEPT]
        self.is_empty = self.is_empty and not (text or "").strip()


def set_texts_apart(tree: Any) -> None:
    """Write a line end or a blank before the parts of a text that are drawn apart from the text before them."""
    for text in tree.xpath("//svg//text[not(ancestor::text)]"):
        size = _font_size(text, _FONT)
        pen = _Pen(_length(text.get("x"), size), _length(text.get("y"), size))
        sizes, separators = [size], list[tuple[Any, str]]()
        for event, element in etree.iterwalk(text, events=("start", "end")):
            if event == "end":
                sizes.pop()
                pen.write(element.tail if element is not text else "")
                continue
            sizes.append(_font_size(element, sizes[-1]))
            if element.tag == "tspan" and (separator := _moved(element, pen, sizes[-1])):
                separators.append((element, separator))
            pen.write(element.text if isinstance(element.tag, str) else "")
        for element, separator in separators:
            if separator == "\n":
                element.addprevious(etree.Element("br"))
            else:
                element.text = f" {element.text or ''}"


def _moved(part: Any, pen: _Pen, size: float) -> str:
    """Move the pen to a part of a text, and return what separates it from the text before: a line end, a blank or nothing."""
    x, y, right, down = (_length(part.get(name), size) for name in ("x", "y", "dx", "dy"))
    if x is None and y is None and right is None and down is None:
        return ""
    is_below = abs((0.0 if y is None or pen.y is None else y - pen.y) + (down or 0.0)) >= _LINE * size
    is_letter = x is not None and pen.x is not None and len(pen.text.strip()) == 1 and 0 < x - pen.x <= _LETTER * size
    is_apart = x is not None or (right or 0.0) >= _BLANK * size
    was_empty = pen.is_empty
    if y is not None or down is not None:
        base = pen.y if y is None else y
        pen.y = None if base is None else base + (down or 0.0)
    if x is not None:
        pen.x, pen.text = x, ""
    if was_empty:
        return ""
    if is_below and (x is not None or y is not None or part.get("dy") is not None):
        return "\n"
    return " " if is_apart and not is_letter else ""


def _length(text: str | None, size: float) -> float | None:
    """Return a length in pixels, the first of a list; None if there is none. `size`: that of the font."""
    match = _LENGTH.match(text or "")
    if match is None:
        return None
    unit = (match[2] or "px").lower()
    return float(match[1]) * (size if unit == "em" else size / 2 if unit == "ex" else _PIXELS.get(unit, 1))


def _font_size(element: Any, inherited: float) -> float:
    if not isinstance(element.tag, str):
        return inherited
    styled = _STYLED.search(element.get("style") or "")
    given = styled[1] if styled else element.get("font-size")
    if given and given.strip().endswith("%"):
        match = _LENGTH.match(given)
        return inherited * float(match[1]) / 100 if match else inherited
    return _length(given, inherited) or inherited
