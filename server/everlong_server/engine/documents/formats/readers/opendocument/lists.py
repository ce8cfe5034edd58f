"""Counts the items of lists and the headings of OpenDocument files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from everlong_server.engine.documents.formats.readers.shared.numerals import numeral

_TEXT, _STYLE = (f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("text", "style"))
_OUTLINE = "outline"


@dataclass(frozen=True, slots=True)
class _Level:
    """How a level is numbered. `shown`: how many levels its number has."""

    form: str
    prefix: str
    suffix: str
    start: int
    shown: int
    is_bullet: bool


class Lists:
    """The list styles of a file, and how far each list has been counted."""

    def __init__(self, trees: Iterable[Any]) -> None:
        """`trees`: of the parts with styles."""
        self._styles: dict[str, dict[int, _Level]] = {}
        for tree in trees:
            for style in tree.iter(f"{_TEXT}list-style", f"{_TEXT}outline-style"):
                is_outline = style.tag == f"{_TEXT}outline-style"
                name = _OUTLINE if is_outline else style.get(f"{_STYLE}name", "")
                self._styles[name] = {number(level.get(f"{_TEXT}level")): _level(level) for level in style}
        self._counts: dict[str, dict[int, int]] = {}

    def begin(self, style: str, level: int, *, resumes: bool) -> None:
        """Begin a list, which counts from the start of its style unless it resumes the last one."""
        if not resumes:
            counts = self._counts.setdefault(style, {})
            for deeper in [each for each in counts if each >= level]:
                del counts[deeper]

    def count(self, style: str, level: int, value: str | None) -> str:
        """Count an item, and return its number or bullet; "" if it has none. `value`: its number, if the file sets it."""
        levels = self._styles.get(style, {})
        if level not in levels:
            return ""
        counts = self._counts.setdefault(style, {})
        counts[level] = number(value) if value else counts.get(level, levels[level].start - 1) + 1
        for deeper in [each for each in counts if each > level]:
            del counts[deeper]
        found = levels[level]
        if found.is_bullet:
            return "•"
        if not found.form:
            return ""
        upper = (
            each for each in range(max(1, level - found.shown + 1), level + 1) if each in levels and levels[each].form
        )
        numbers = (numeral(counts.setdefault(each, levels[each].start), levels[each].form) for each in upper)
        return f"{found.prefix}{'.'.join(numbers)}{found.suffix}".strip()

    def count_heading(self, level: str) -> str:
        """Count a heading, and return its number; "" if headings have none."""
        return self.count(_OUTLINE, number(level), None)


def _level(level: Any) -> _Level:
    kind = str(level.tag)
    return _Level(
        level.get(f"{_STYLE}num-format", ""),
        level.get(f"{_STYLE}num-prefix", ""),
        level.get(f"{_STYLE}num-suffix", ""),
        number(level.get(f"{_TEXT}start-value")),
        number(level.get(f"{_TEXT}display-levels")),
        kind.endswith(("bullet", "image")),
    )


def number(text: str | None) -> int:
    """Return the number in an attribute's text; 1 if it is not a number."""
    return int(text) if text and text.isdecimal() and len(text) < 8 else 1
