"""The charts of Office files: each value stands beside its own category, and dates, sizes and labels are kept."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everlong_server.engine.documents.formats.readers.openxml import charts
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

NAMES = (
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" xmlns:cx="http://schemas.microsoft.com/office/drawing/2014/chartex" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
)
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def word(chart: str, parts: Mapping[str, str] = {}) -> bytes:
    """Return a Word file with a chart. `chart`: what its part contains."""
    drawing = f'<w:p><w:r><w:drawing><c:chart {NAMES} xmlns:r="{RELATIONS}" r:id="chart"/></w:drawing></w:r></w:p>'
    return files.word_of(drawing, parts={"chart": f"<c:chartSpace {NAMES}>{chart}</c:chartSpace>", **parts})


def points(kind: str, *values: str, code: str = "General") -> str:
    found = "".join(f'<c:pt idx="{at}"><c:v>{each}</c:v></c:pt>' for at, each in enumerate(values))
    return (
        f"<c:{kind}><c:numRef><c:numCache><c:formatCode>{code}</c:formatCode>{found}</c:numCache></c:numRef></c:{kind}>"
    )


def named(name: str) -> str:
    return f'<c:tx><c:strRef><c:strCache><c:pt idx="0"><c:v>{name}</c:v></c:pt></c:strCache></c:strRef></c:tx>'


def level(**names: str) -> str:
    found = "".join(f'<c:pt idx="{at[1:]}"><c:v>{name}</c:v></c:pt>' for at, name in names.items())
    return f"<c:lvl>{found}</c:lvl>"


def series(*parts: str) -> str:
    return f"<c:ser>{''.join(parts)}</c:ser>"


LEVELS = level(_0="France", _1="Italy", _2="Japan") + level(_0="Europe", _2="Asia")
LABELS = (
    '<c:dLbls><c:dLbl><c:idx val="1"/><c:tx><c:rich><a:p><a:r><a:t>Our best year</a:t></a:r><a:fld type="VALUE"><a:t>[VALUE]</a:t></a:fld></a:p></c:rich></c:tx>'
    '</c:dLbl></c:dLbls><c:extLst><c:ext><cx:datalabelsRange><cx:dlblRangeCache><c:pt idx="0"><c:v>Oslo</c:v></c:pt></cx:dlblRangeCache></cx:datalabelsRange></c:ext></c:extLst>'
)
NEWER = (
    '<cx:chartData><cx:data id="0"><cx:strDim type="cat"><cx:lvl><cx:pt idx="0">Rent</cx:pt><cx:pt idx="1">Heat</cx:pt></cx:lvl>'
    '<cx:lvl><cx:pt idx="0">House</cx:pt></cx:lvl></cx:strDim><cx:numDim type="size"><cx:lvl formatCode="General"><cx:pt idx="0">300</cx:pt>'
    '<cx:pt idx="1">40</cx:pt></cx:lvl></cx:numDim></cx:data></cx:chartData><cx:chart><cx:title><cx:tx><cx:txData><cx:v>Costs</cx:v></cx:txData></cx:tx>'
    "<cx:txPr><a:p><a:r><a:t>Costs</a:t></a:r></a:p></cx:txPr></cx:title><cx:series><cx:tx><cx:txData><cx:v>Euros</cx:v></cx:txData></cx:tx>"
    '<cx:dataId val="0"/></cx:series></cx:chart>'
)
CHARTS = {
    "series with x values of their own": (
        series(named("A"), points("xVal", "1", "2"), points("yVal", "10", "20"))
        + series(named("B"), points("xVal", "100", "2"), points("yVal", "5", "6")),
        "\tA\n1\t10\n2\t20\n\tB\n100\t5\n2\t6",
    ),
    "series with the same categories": (
        series(named("A"), points("cat", "2023", "2024"), points("val", "1", "2"))
        + series(named("B"), points("cat", "2023"), points("val", "3")),
        "\tA\tB\n2023\t1\t3\n2024\t2",
    ),
    "sizes of bubbles": (
        series(named("A"), points("xVal", "1"), points("yVal", "2"), points("bubbleSize", "77")),
        "\tA\tA (size)\n1\t2\t77",
    ),
    "categories in levels": (
        series(f"<c:cat><c:multiLvlStrRef>{LEVELS}</c:multiLvlStrRef></c:cat>", points("val", "1", "2", "3")),
        "Europe, France\t1\nEurope, Italy\t2\nAsia, Japan\t3",
    ),
    "dates and percentages": (
        series(points("cat", "45292", code="yyyy\\-mm\\-dd"), points("val", "0.125", code="0.0%")),
        "2024-01-01\t12.5%",
    ),
    "dates from 1904": (
        '<c:date1904 val="1"/>' + series(points("cat", "43830", code="d/m/yyyy"), points("val", "1")),
        "2024-01-01\t1",
    ),
    "labels of points": (
        series(points("cat", "2023", "2024"), points("val", "1", "2"), LABELS),
        "2023\t1 (Oslo)\n2024\t2 (Our best year)",
    ),
    "a title from a cell": (f"<c:title>{named('By year')}</c:title>", "By year"),
    "a form of Office 2016": (NEWER, "Costs\n\tEuros\nHouse, Rent\t300\nHouse, Heat\t40"),
}  # fmt: skip


@pytest.mark.parametrize(("chart", "text"), CHARTS.values(), ids=CHARTS)
def test_a_chart_with(chart: str, text: str) -> None:
    assert text_of(word(chart)) == f"[Chart] {text}"


def test_the_shapes_that_are_drawn_in_a_chart() -> None:
    shape = "<c:sp><c:txBody><a:p><a:r><a:t>Source: our books</a:t></a:r></a:p></c:txBody></c:sp>"
    related = f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="x" Type="{RELATIONS}/chartUserShapes" Target="shapes.xml"/></Relationships>'
    parts = {"shapes": f"<c:userShapes {NAMES}>{shape}</c:userShapes>", "_rels/chart.xml.rels": related}
    assert text_of(word(series(points("val", "7")), parts)) == "[Chart] \t7\nSource: our books"


def test_points_that_are_left_out_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "_MAX_POINTS", 2)
    data = word(series(points("val", "1", "2", "3", "4")))
    assert text_of(data) == "[Chart] \t1\n\t2"
    assert notes_of(data) == ["left out: points of charts after the first 2 (2)"]
