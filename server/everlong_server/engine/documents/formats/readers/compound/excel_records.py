"""Reads the records of Excel files since Excel 97 (MS-XLS): text boxes, charts, pictures' descriptions, headers of printed pages."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from everlong_server.engine.documents.formats.blocks import Notes
from everlong_server.engine.documents.formats.readers.compound.shapes import pictures
from everlong_server.engine.documents.formats.readers.openxml.cells import Kind, shown
from everlong_server.engine.documents.formats.readers.openxml.sheets import without_layout

_BOF, _EOF, _SHEET, _HEADER, _FOOTER, _OBJECT, _TEXT, _MORE, _DRAWING = (
    0x0809, 0x000A, 0x0085, 0x0014, 0x0015, 0x005D, 0x01B6, 0x003C, 0x00EC,
)  # fmt: skip
"""Types of records."""
_CHART_TEXT, _CHART_LABEL, _SERIES, _VALUES, _NUMBER, _STRING = 0x100D, 0x1025, 0x1003, 0x1065, 0x0203, 0x0204
"""Types of records of charts."""
_COMMENT = 0x19
"""The kind of an object that is a comment's box."""
_CHART, _CHART_RECORDS = 2, 0x20
"""How the list of sheets, and a record at the beginning of records, say that what follows is a chart."""
_POINTS, _CATEGORIES = 1, 2
"""Kinds of values of charts."""
_EXCEL_97 = 0x0600
_MAX_SERIES, _MAX_POINTS, _MAX_DEPTH = 255, 1000, 3
"""Of a chart, as in Excel; points that are kept; and how deep a sheet, a chart in it and so on are read."""


@dataclass(slots=True)
class Records:
    """The records of a file. `sheets`: the places and kinds of the sheets, by their names, in the file's order."""

    stream: bytes
    sheets: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, data in _until_end(self.stream, 0):
            if kind == _BOF and int.from_bytes(data[:2], "little") != _EXCEL_97:
                return  # an older one, with other texts
            if kind == _SHEET and len(data) > 8:
                name = _characters(data[7:], data[6])
                self.sheets.setdefault(name, (int.from_bytes(data[:4], "little"), data[5]))

    def is_chart(self, name: str) -> bool:
        """Whether the sheet is a chart, which has no cells."""
        return self.sheets[name][1] == _CHART

    def texts(self, name: str, notes: Notes) -> Iterator[str]:
        """Yield the text boxes, charts, descriptions of pictures, and headers and footers of printed pages of a sheet, each once."""
        parts: list[_Part] = []
        charts: list[str] = []
        deeper = 0  # parts inside those that are read
        for kind, data in _until_end(self.stream, self.sheets.get(name, (len(self.stream), 0))[0]):
            if kind == _BOF and len(parts) < _MAX_DEPTH:
                parts.append(_Part(is_chart=int.from_bytes(data[2:4], "little") == _CHART_RECORDS))
            elif kind in (_BOF, _EOF) and (deeper or kind == _BOF):
                deeper += 1 if kind == _BOF else -1
            elif kind != _EOF and parts and not deeper:
                parts[-1].take(kind, data)
            elif kind == _EOF and len(parts) > 1:  # the end of a chart in the sheet
                charts += parts.pop().words(notes)
        own = [
            text for part in parts for text in part.words(notes)
        ]  # of several parts if the end of the file is missing
        yield from dict.fromkeys(filter(None, [*own, *charts]))


class _Part:
    """What the records of a sheet, or of a chart in it, say."""

    def __init__(self, *, is_chart: bool) -> None:
        self._chart = _Chart() if is_chart else None
        self._texts: list[str] = []
        self._drawing = bytearray()
        self._last = 0
        self._is_comment, self._box = False, ""
        self._left = 0
        """The number of characters of a text box that the next records have."""

    def take(self, kind: int, data: bytes) -> None:
        """Read the next record."""
        if kind != _MORE:
            self._last = kind
        if kind == _DRAWING or (kind == _MORE and self._last == _DRAWING):
            self._drawing += data
        elif kind == _OBJECT:
            self._is_comment = data[4:5] == bytes([_COMMENT])
        elif kind == _TEXT:
            self._box, self._left = "", 0 if self._is_comment else int.from_bytes(data[10:12], "little")
        elif kind == _MORE and self._left and data:
            self._box += _characters(data, self._left)
            self._left = max(0, self._left - (len(data) - 1) // (2 if data[0] & 1 else 1))
            self._texts += [] if self._left else [self._box.strip()]
        elif kind in (_HEADER, _FOOTER) and len(data) > 3:
            words = without_layout(_characters(data[2:], int.from_bytes(data[:2], "little")))
            self._texts += [f"[{'Header' if kind == _HEADER else 'Footer'}] {words}"] if words else []
        if self._chart is not None:
            self._chart.take(kind, data)

    def words(self, notes: Notes) -> Iterator[str]:
        """Yield the texts."""
        yield from self._texts
        yield "" if self._chart is None else self._chart.text()
        yield from pictures(bytes(self._drawing), notes)


@dataclass(slots=True)
class _Chart:
    """The titles, the names of the series, and the values of each kind, by their series and place in it."""

    titles: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    values: dict[int, dict[int, dict[int, str]]] = field(default_factory=dict)
    kind: int = 0
    in_series: bool = False

    def take(self, kind: int, data: bytes) -> None:
        """Read the next record."""
        if kind == _SERIES:
            self.names.append("")
            self.in_series = True
        elif kind == _CHART_LABEL:
            self.in_series = False
        elif kind == _CHART_TEXT and len(data) > 4:
            text = _characters(data[3:], data[2]).strip()
            if self.in_series:
                self.names[-1] = text
            else:
                self.titles.append(text)
        elif kind == _VALUES:
            self.kind = int.from_bytes(data[:2], "little")
        elif self.kind and kind in (_NUMBER, _STRING) and len(data) >= 9:
            place, series = struct.unpack_from("<2H", data)
            self.values.setdefault(self.kind, {}).setdefault(series, {})[place] = _value(kind, data)

    def text(self) -> str:
        """Return the titles, and the values as a table; "" if the chart has neither."""
        points, categories = self.values.get(_POINTS, {}), dict[int, str]()
        for each in self.values.get(_CATEGORIES, {}).values():
            categories |= each
        columns = sorted(points)[:_MAX_SERIES]
        names = [self.names[each] if each < len(self.names) else "" for each in columns]
        lines = [*dict.fromkeys(filter(None, self.titles)), *(["\t".join(["", *names])] if any(names) else [])]
        for place in sorted(set(categories).union(*points.values()))[:_MAX_POINTS]:
            lines.append("\t".join([categories.get(place, ""), *(points[each].get(place, "") for each in columns)]))
        return "[Chart] " + "\n".join(lines) if lines else ""


def _value(kind: int, data: bytes) -> str:
    """Return the value of a cell, which is a number or a string."""
    if kind == _STRING:
        return " ".join(_characters(data[8:], int.from_bytes(data[6:8], "little")).split())
    return shown(repr(struct.unpack_from("<d", data.ljust(14, b"\0"), 6)[0]), Kind.NUMBER)


def _until_end(stream: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the type and content of each record of a sheet, also of the charts in it."""
    depth = 0
    while at + 4 <= len(stream):
        kind, size = struct.unpack_from("<HH", stream, at)
        yield kind, stream[at + 4 : at + 4 + size]
        at += 4 + size
        depth += (kind == _BOF) - (kind == _EOF)
        if depth <= 0:
            return


def _characters(data: bytes, count: int) -> str:
    """Return at most this many characters, which are in one or two bytes each. The first byte says in which."""
    if data[0] & 1:
        return data[1 : 1 + 2 * count].decode("utf-16-le", "replace")
    return data[1 : 1 + count].decode("latin-1")
