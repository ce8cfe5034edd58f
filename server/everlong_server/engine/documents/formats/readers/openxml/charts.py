"""Writes the charts of Office files as text: their titles, and their values as a table."""

from __future__ import annotations

from typing import Any

from everlong_server.engine.documents.formats.readers.openxml.package import A

_MAX_POINTS = 1000


def chart_text(chart: Any) -> str:
    """Return the titles and values of a chart; "" if it has neither. `chart`: the tree of its part."""
    titles = [" ".join("".join(p.itertext(f"{A}t")) for p in title.iter(f"{A}p")) for title in chart.iter("{*}title")]
    columns: list[tuple[str, dict[int, str]]] = [("", {})]
    columns += [(_name(series), _points(series, "val", "yVal")) for series in chart.iter("{*}ser")]
    categories: dict[int, str] = {}
    for series in chart.iter("{*}ser"):
        categories |= _points(series, "cat", "xVal")
    rows = sorted(set(categories).union(*(values for _, values in columns)))[:_MAX_POINTS]
    table = ["\t".join(name for name, _ in columns)] if any(name for name, _ in columns) else []
    table += ["\t".join([categories.get(row, ""), *(values.get(row, "") for _, values in columns[1:])]) for row in rows]
    words = [title for title in map(str.strip, titles) if title] + table
    return "[Chart] " + "\n".join(words) if words else ""


def _name(series: Any) -> str:
    return " ".join("".join(text.itertext("{*}v")) for text in series.iterchildren("{*}tx")).strip()


def _points(series: Any, *kinds: str) -> dict[int, str]:
    """Return the values that the file stores for a series, by their number."""
    points = (point for kind in kinds for data in series.iterchildren(f"{{*}}{kind}") for point in data.iter("{*}pt"))
    numbered = ((point.get("idx", ""), "".join(point.itertext("{*}v"))) for point in points)
    return {int(number): value for number, value in numbered if number.isascii() and number.isdigit()}
