"""Writes the charts of Office files as text: their titles, and their values as a table.

Charts since Office 2016, such as treemaps, have a form of their own (MS-ODRAWXML, 2.24.3: `cx:chartSpace`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everlong_server.engine.documents.formats.blocks import Notes
from everlong_server.engine.documents.formats.readers.openxml.cells import FROM_1904, kind_of, shown
from everlong_server.engine.documents.formats.readers.openxml.package import A

_MAX_POINTS = 1000
_Points = dict[int, str]
"""Values by the number of their point."""


@dataclass(frozen=True, slots=True)
class _Series:
    """The names of the categories, and the columns: their headings and values. A bubble has a size in a second column."""

    categories: _Points
    columns: Sequence[tuple[str, _Points]]


def chart_text(chart: Any, notes: Notes) -> str:
    """Return the titles and values of a chart; "" if it has neither. `chart`: the tree of its part."""
    is_1904 = any(switch.get("val", "1") in ("1", "true") for switch in chart.iter("{*}date1904"))
    series = [_series(each, is_1904=is_1904) for each in chart.iter("{*}ser")] or list(_newer_series(chart))
    titles = (_title(title) for title in chart.iter("{*}title"))
    words = [*filter(None, titles), *(line for table in _tables(series) for line in _lines(table, notes))]
    return "[Chart] " + "\n".join(words) if words else ""


def _title(title: Any) -> str:
    """Return a title, which may be the text of a cell."""
    saved = " ".join(" ".join(title.itertext("{*}v")).split())
    return saved or " ".join("".join(p.itertext(f"{A}t")) for p in title.iter(f"{A}p")).strip()


def _tables(series: Sequence[_Series]) -> list[list[_Series]]:
    """Return the series in groups with the same categories. Those of a scatter chart may each have values of their own."""
    groups: list[list[_Series]] = []
    known: _Points = {}
    for each in series:
        if groups and all(known.get(point, name) == name for point, name in each.categories.items()):
            groups[-1].append(each)
        else:
            groups.append([each])
            known = {}
        known |= each.categories
    return groups


def _lines(table: Sequence[_Series], notes: Notes) -> list[str]:
    """Return the rows of series with the same categories, after a row with their names."""
    categories = {point: name for each in table for point, name in each.categories.items()}
    columns = [column for each in table for column in each.columns]
    points = sorted(set(categories).union(*(values for _, values in columns)))
    notes.left_out(f"points of charts after the first {_MAX_POINTS}", max(0, len(points) - _MAX_POINTS))
    heads = ["\t".join(["", *(name for name, _ in columns)])] if any(name for name, _ in columns) else []
    return heads + [
        "\t".join([categories.get(point, ""), *(values.get(point, "") for _, values in columns)])
        for point in points[:_MAX_POINTS]
    ]


def _series(series: Any, *, is_1904: bool) -> _Series:
    name = " ".join("".join(text.itertext("{*}v")) for text in series.iterchildren("{*}tx")).strip()
    parts = {kind: _points(series, is_1904, *names) for kind, names in _PARTS.items()}
    values = parts["values"]
    for point, label in _labels(series).items():
        values[point] = f"{values.get(point, '')} ({label})".strip()
    sizes = [(f"{name} (size)" if name else "", parts["sizes"])] if parts["sizes"] else []
    return _Series(parts["categories"], [(name, values), *sizes])


_PARTS = {"categories": ("cat", "xVal"), "values": ("val", "yVal"), "sizes": ("bubbleSize",)}
"""The elements with the categories, the values and the sizes of bubbles."""


def _points(series: Any, is_1904: bool, *names: str) -> _Points:
    found: _Points = {}
    for data in (data for name in names for data in series.iterchildren(f"{{*}}{name}")):
        levels = list(data.iter("{*}lvl")) or [data]
        code = next(data.itertext("{*}formatCode"), "")
        found |= _joined([dict(_numbered(level, code, is_1904)) for level in levels])
    return found


def _numbered(level: Any, code: str, is_1904: bool) -> Iterator[tuple[int, str]]:
    """Yield the number and the value of each point, as its number format shows it."""
    for point in level.iter("{*}pt"):
        index, value = point.get("idx", ""), " ".join("".join(point.itertext("{*}v")).split())
        if (own := point.get("formatCode", code)) and value:
            kind = kind_of(own)
            value = shown(value, FROM_1904.get(kind, kind) if is_1904 else kind)
        if index.isascii() and index.isdigit():
            yield int(index), value


def _joined(levels: Sequence[Mapping[int, str]]) -> _Points:
    """Return the categories, such as "Europe, France". The innermost level comes first; one that goes on has no point."""
    found: _Points = {}
    current = [""] * len(levels)
    for point in sorted(set().union(*levels)):
        for depth in reversed(range(len(levels))):
            if point in levels[depth]:
                current[: depth + 1] = [""] * depth + [levels[depth][point]]
            elif depth == 0:
                current[0] = ""
        found[point] = ", ".join(filter(None, reversed(current)))
    return found


def _labels(series: Any) -> _Points:
    """Return what somebody wrote on points: words, or the texts of cells."""
    found: _Points = {}
    for cells in series.iter("{*}dlblRangeCache"):
        found |= _joined([dict(_numbered(cells, "", is_1904=False))])
    for label in series.iterfind("{*}dLbls/{*}dLbl"):
        number, text = label.find("{*}idx"), label.find("{*}tx")
        index = "" if number is None else number.get("val", "")
        # The other runs are fields, whose text is a name such as "[VALUE]".
        runs = () if text is None else text.iter(f"{A}r")
        words = " ".join("".join("".join(run.itertext(f"{A}t")) for run in runs).split())
        if words and index.isascii() and index.isdigit():
            found[int(index)] = " ".join(filter(None, [words, found.get(int(index), "")]))
    return found


def _newer_series(chart: Any) -> Iterator[_Series]:
    """Yield the series of a chart in the form of Office 2016."""
    data = {each.get("id", ""): each for each in chart.iterfind("{*}chartData/{*}data")}
    for series in chart.iter("{*}series"):
        name = " ".join("".join(text.itertext("{*}v")) for text in series.iterchildren("{*}tx")).strip()
        reference = series.find("{*}dataId")
        own = data.get("" if reference is None else reference.get("val", ""))
        if own is not None:
            words, numbers = (list(own.iterchildren(f"{{*}}{kind}Dim")) for kind in ("str", "num"))
            categories = _joined([level for each in words for level in _newer_levels(each)]) if words else {}
            columns = [_joined(list(_newer_levels(each))) for each in numbers]
            yield _Series(categories, [(name, values) for values in columns])


def _newer_levels(dimension: Any) -> Iterator[_Points]:
    for level in dimension.iterchildren("{*}lvl"):
        kind = kind_of(level.get("formatCode", "General"))
        points = ((point.get("idx", ""), " ".join((point.text or "").split())) for point in level.iterchildren("{*}pt"))
        numbered = {int(index): value for index, value in points if index.isascii() and index.isdigit()}
        is_number = dimension.tag.endswith("numDim")
        yield {index: shown(value, kind) if is_number and value else value for index, value in numbered.items()}
