"""Counts the paragraphs of numbered lists in Word files since Word 97 (MS-DOC, 2.4.6.3 and 2.9.131)."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from everlong_server.engine.documents.formats.readers.shared.numerals import count, numeral

_MARK = re.compile("[\r\x07\x0c]")
"""The end of a paragraph."""
_PAGE = 512
"""Bytes of a page that describes paragraphs."""
_LIST, _LEVEL = 0x460B, 0x260A
"""Properties of a paragraph: its list, counted from 1, and the level in it."""
_TABLE_DEFINITION = 0xD608
_SIZES = (1, 1, 2, 4, 2, 2, 0, 3)
"""Size of a property's value in bytes, by the three highest bits of the property's number; 0: the byte before the value has it."""
_FORMS = {1: "upperRoman", 2: "lowerRoman", 3: "upperLetter", 4: "lowerLetter", 22: "decimalZero", 255: "none"}
_BULLET = 23
_MAX_LEVELS, _MAX_BASES, _MAX_TEXT = 9, 16, 100
_PARAGRAPH_STYLE = 1


class Piece(NamedTuple):
    """A part of the text. `start`, `end`: its characters; `place`: of its bytes in the file; `width`: bytes of a character."""

    start: int
    end: int
    place: int
    width: int


class Tables(NamedTuple):
    """The tables of a file. `more`: what follows the table of lists, which is their levels."""

    pages: bytes
    styles: bytes
    lists: bytes
    more: bytes
    overrides: bytes


@dataclass(frozen=True, slots=True)
class _Level:
    """How a level is numbered. `text`: a character whose code n is below 9 stands for the number of level n."""

    start: int
    form: int
    text: str
    in_digits: bool


class Lists:
    """The lists of a file, and how far each has been counted. Raises `IndexError` or `struct.error` for damaged tables."""

    def __init__(self, stream: bytes, pieces: Sequence[Piece], tables: Tables) -> None:
        self._stream, self._pieces = stream, pieces
        number = max(0, len(tables.pages) - 4) // 8
        self._places = struct.unpack_from(f"<{number + 1}I", tables.pages) if number else ()
        self._pages = struct.unpack_from(f"<{number}I", tables.pages, 4 * (number + 1)) if number else ()
        self._styles = _styles(tables.styles) if tables.styles else {}
        levels = _levels(tables.lists, tables.more)
        self._lists: list[tuple[int, list[_Level]]] = []
        self._restarts: dict[int, Collection[int]] = {}
        for key, own, starts in _overrides(tables.overrides):
            self._restarts[len(self._lists)] = starts
            changed = (own.get(at, level) for at, level in enumerate(levels.get(key, [])))
            self._lists.append(
                (key, [replace(level, start=starts.get(at, level.start)) for at, level in enumerate(changed)])
            )
        self._counts: dict[int, dict[int, int]] = {}

    def labels(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the start and the number or bullet of each paragraph that has one. `text`: of the document, from its start."""
        start = 0
        for mark in _MARK.finditer(text if any(levels for _, levels in self._lists) else ""):
            found = self._list_and_level(mark.start())
            if found is None and mark[0] == "\x0c":
                continue  # a page break inside a paragraph
            label = self._label(*(found or (0, 0)))
            if label and text[start : mark.start()].strip():
                yield start, label
            start = mark.end()

    def _list_and_level(self, mark: int) -> tuple[int, int] | None:
        """Return the list, counted from 1, and the level of the paragraph that ends at a character; 0 for no list. None if no
        paragraph is known to end there."""
        piece = self._pieces[bisect_right(self._pieces, mark, key=lambda piece: piece.start) - 1]
        place = piece.place + (mark - piece.start) * piece.width
        number = bisect_right(self._places, place) - 1
        if not 0 <= number < len(self._pages):
            return None
        page = self._stream[_PAGE * (self._pages[number] & 0x3FFFFF) :][:_PAGE]
        count = page[_PAGE - 1]
        bounds = struct.unpack_from(f"<{count + 1}I", page)
        index = bisect_right(bounds, place) - 1
        if not 0 <= index < count or bounds[index + 1] != place + piece.width:
            return None
        at = 2 * page[4 * (count + 1) + 13 * index]
        if not at:
            return self._styles.get(0, (0, 0))
        size, at = (2 * page[at] - 1, at + 1) if page[at] else (2 * page[at + 1], at + 2)
        found, own = page[at : at + size], self._styles.get(int.from_bytes(page[at : at + 2], "little"), (0, 0))
        return _list_of(found[2:], own)

    def _label(self, reference: int, level: int) -> str:
        """Count a paragraph, and return its number or bullet; "" if it has none."""
        key, levels = self._lists[reference - 1] if 0 < reference <= len(self._lists) else (0, [])
        if level >= len(levels):
            return ""
        counts = self._counts.setdefault(key, {})
        for restarted in self._restarts.pop(reference - 1, ()):
            counts.pop(restarted, None)
        count(counts, level, levels[level].start)
        if levels[level].form == _BULLET:
            return "•"
        shown = ""
        for character in levels[level].text:
            upper = ord(character)
            if upper < len(levels):
                number = counts.setdefault(upper, levels[upper].start)
                form = "decimal" if levels[level].in_digits else _FORMS.get(levels[upper].form, "decimal")
                shown += numeral(number, form)
            elif upper >= _MAX_LEVELS:
                shown += character
        return shown.strip()


def _properties(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and value of each property."""
    at = 0
    while at + 2 < len(data):
        name = int.from_bytes(data[at : at + 2], "little")
        at += 2
        size = _SIZES[name >> 13]
        if name == _TABLE_DEFINITION:
            size = 1 + int.from_bytes(data[at : at + 2], "little")
        elif not size:
            size = 1 + data[at]
        yield name, data[at : at + size]
        at += size


def _list_of(data: bytes, base: tuple[int, int]) -> tuple[int, int]:
    """Return the list and level that properties set; those of the style where they set none."""
    found = _set(data)
    return found.get(_LIST, base[0]), found.get(_LEVEL, base[1])


def _set(data: bytes) -> dict[int, int]:
    """Return the list and the level that properties set, by the number of the property."""
    return {name: int.from_bytes(value, "little") for name, value in _properties(data) if name in (_LIST, _LEVEL)}


def _styles(table: bytes) -> dict[int, tuple[int, int]]:
    """Return the list and level of each paragraph style."""
    head, count, size = struct.unpack_from("<3H", table)
    at = 2 + head
    stored: dict[int, tuple[int, dict[int, int]]] = {}
    for number in range(count):
        length = int.from_bytes(table[at : at + 2], "little")
        style = table[at + 2 : at + 2 + length]
        at += 2 + length + length % 2
        if length > size + 2:
            base = int.from_bytes(style[2:4], "little")
            names = size + 2 * int.from_bytes(style[size : size + 2], "little") + 4
            found = int.from_bytes(style[names : names + 2], "little") if base & 15 == _PARAGRAPH_STYLE else 0
            stored[number] = base >> 4, _set(style[names + 4 : names + 2 + found])
    styles = {}
    for number in stored:
        merged, base = dict[int, int](), number
        for _ in range(_MAX_BASES):
            if base not in stored:
                break
            base, own = stored[base]
            merged = own | merged
        styles[number] = merged.get(_LIST, 0), merged.get(_LEVEL, 0)
    return styles


def _levels(table: bytes, more: bytes) -> dict[int, list[_Level]]:
    """Return the levels of each list by its key."""
    found: dict[int, list[_Level]] = {}
    at = 0
    for index in range(int.from_bytes(table[:2], "little")):
        data = table[2 + 28 * index :][:28]
        levels = []
        for _ in range(1 if data[26] & 1 else _MAX_LEVELS):
            level, at = _level(more, at)
            levels.append(level)
        found[int.from_bytes(data[:4], "little")] = levels
    return found


def _level(data: bytes, at: int) -> tuple[_Level, int]:
    """Return the level that is described at a place, and the place after it."""
    start, form, flags = struct.unpack_from("<IBB", data, at)
    after = at + 28 + data[at + 24] + data[at + 25]
    length = struct.unpack_from("<H", data, after)[0]
    if length > _MAX_TEXT:
        raise IndexError("the levels of a list are damaged")
    end = after + 2 + 2 * length
    return _Level(start, form, data[after + 2 : end].decode("utf-16-le", "replace"), bool(flags & 4)), end


def _overrides(table: bytes) -> Iterator[tuple[int, dict[int, _Level], dict[int, int]]]:
    """Yield the key of the list that each reference names, the levels that it changes, and the numbers that it restarts from."""
    count = int.from_bytes(table[:4], "little")
    at = 4 + 16 * count
    for index in range(count):
        key, number = struct.unpack_from("<I8xB", table, 4 + 16 * index)
        levels, starts = dict[int, _Level](), dict[int, int]()
        at += 4
        for _ in range(number):
            start, flags = struct.unpack_from("<II", table, at)
            at += 8
            if flags & 0x20:
                levels[flags & 15], at = _level(table, at)
                start = levels[flags & 15].start
            if flags & 0x10:
                starts[flags & 15] = start
        yield key, levels, starts
