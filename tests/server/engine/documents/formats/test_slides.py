"""Footers of slides: what somebody typed is kept, once; numbers and dates that a program fills in are not. Authors of comments; links."""

from __future__ import annotations

from tests.server.engine.documents.formats.reading import text_of
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.presentations import (
    NAMES,
    paragraph,
    presentation,
    relations,
    shape,
    slide,
)

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


def test_comments_of_powerpoint_name_their_authors() -> None:
    old = f'<p:cmLst {NAMES}><p:cm authorId="0"><p:text>Why?</p:text></p:cm></p:cmLst>'
    reply = f'<c:replyLst><c:reply authorId="{{2}}"><c:txBody>{paragraph("Because.")}</c:txBody></c:reply></c:replyLst>'
    new = (
        f'<c:cmLst xmlns:c="http://schemas.microsoft.com/office/powerpoint/2018/8/main" {NAMES}><c:cm authorId="{{1}}">{reply}'
        f"<c:txBody>{paragraph('Who?')}</c:txBody></c:cm></c:cmLst>"
    )
    related = (("c", "comments", "../comments/a.xml"), ("d", "comments", "../comments/b.xml"))
    parts = {
        "ppt/comments/a.xml": old,
        "ppt/comments/b.xml": new,
        "ppt/a.xml": f'<p:cmAuthorLst {NAMES}><p:cmAuthor id="0" name="Ada"/></p:cmAuthorLst>',
        "ppt/b.xml": '<c:authorLst xmlns:c="x"><c:author id="{1}" name="Bo"/><c:author id="{2}" name="Cy"/></c:authorLst>',
        "ppt/_rels/presentation.xml.rels": relations(
            ("s0", "slide", "slides/slide1.xml"), ("x", "commentAuthors", "a.xml"), ("y", "authors", "b.xml")
        ),
    }
    assert text_of(presentation(slide(shape("One")), related=related, parts=parts), "a.pptx").split("\n\n") == [
        "One", "[Comment by Ada] Why?", "[Comment by Bo] Who?", "[Comment by Cy] Because.",
    ]  # fmt: skip


def test_a_shape_that_is_a_link_keeps_its_address() -> None:
    linked = (
        '<p:sp><p:nvSpPr><p:cNvPr id="3" name="D"><a:hlinkClick r:id="l"/></p:cNvPr></p:nvSpPr>'
        f"<p:txBody>{paragraph('Our prices')}</p:txBody></p:sp>"
    )
    related = relations(("l", "hyperlink", "https://x.org/prices")).replace("/>", ' TargetMode="External"/>')
    data = presentation(slide(linked), parts={"ppt/slides/_rels/slide1.xml.rels": related})
    assert text_of(data, "a.pptx") == "Our prices (https://x.org/prices)"
