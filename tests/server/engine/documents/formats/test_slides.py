"""Footers of slides: what somebody typed is kept, once; numbers and dates that a program fills in are not."""

from __future__ import annotations

from tests.server.engine.documents.formats.reading import text_of
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.presentations import presentation, shape, slide

DATE = (
    '<p:sp><p:nvSpPr><p:cNvPr id="3" name="D"/><p:cNvSpPr/><p:nvPr><p:ph type="dt"/></p:nvPr></p:nvSpPr><p:spPr/>'
    '<p:txBody><a:p><a:fld type="datetime1"><a:t>5/1/2026</a:t></a:fld></a:p></p:txBody></p:sp>'
)


def test_footers_of_powerpoint() -> None:
    number, footer = shape("7", "sldNum"), shape("Draft, do not share", "ftr")
    first, second = shape("One") + footer + DATE + number, shape("Two") + footer + shape("May 2026", "dt")
    assert text_of(presentation(slide(first), slide(second)), "a.pptx").split("\n\n") == [
        "One", "[Footer] Draft, do not share", "Two", "[Footer] May 2026",
    ]  # fmt: skip


def test_footers_of_opendocument() -> None:
    styles = "".join(
        f'<style:style style:name="{name}" style:family="drawing-page"><style:drawing-page-properties presentation:display-footer="{shown}"/></style:style>'
        for name, shown in (("on", "true"), ("off", "false"))
    )
    texts = (
        '<presentation:footer-decl presentation:name="f1">Draft, do <text:s/>not share</presentation:footer-decl>'
        '<presentation:date-time-decl presentation:name="d1" presentation:source="fixed">May 2026</presentation:date-time-decl>'
        '<presentation:date-time-decl presentation:name="d2" presentation:source="current-date"/>'
    )
    pages = "".join(
        f'<draw:page draw:style-name="{style}" presentation:use-footer-name="f1" presentation:use-date-time-name="{date}"><draw:frame><draw:text-box>'
        f"<text:p>{words}</text:p></draw:text-box></draw:frame></draw:page>"
        for style, date, words in (("off", "d2", "One"), ("on", "d1", "Two"), ("on", "d1", "Three"))
    )
    assert text_of(odf(texts + pages, "presentation", styles)).split("\n\n") == [
        "One", "Two", "[Footer] Draft, do not share", "[Footer] May 2026", "Three",
    ]  # fmt: skip
