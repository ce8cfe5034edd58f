"""PowerPoint files."""

from __future__ import annotations

from tests.files import zipped
from tests.server.engine.documents.formats.reports import Report

NAMES = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
TYPES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def relations(*found):
    listed = "".join(f'<Relationship Id="{id}" Type="{TYPES}/{kind}" Target="{target}"/>' for id, kind, target in found)
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{listed}</Relationships>'
    )


def shape(text, placeholder="", properties=""):
    kind = f'<p:ph type="{placeholder}"/>' if placeholder else ""
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="2" name="T"{properties}/><p:cNvSpPr/><p:nvPr>{kind}</p:nvPr></p:nvSpPr><p:spPr/>'
        f"<p:txBody><a:bodyPr/>{paragraph(text)}</p:txBody></p:sp>"
    )


def paragraph(text, properties=""):
    return f"<a:p>{properties}<a:r><a:t>{text}</a:t></a:r></a:p>"


def item(text, scheme, level=0, more=""):
    return paragraph(text, f'<a:pPr lvl="{level}"><a:buAutoNum type="{scheme}"{more}/></a:pPr>')


def listed(*paragraphs, styles=""):
    return f"<p:sp><p:txBody><a:lstStyle>{styles}</a:lstStyle>{''.join(paragraphs)}</p:txBody></p:sp>"


PICTURE = '<p:pic><p:nvPicPr><p:cNvPr id="1" name="x"/></p:nvPicPr></p:pic>'


def slide(shapes, tag="sld", more=""):
    return f"<p:{tag} {NAMES}{more}><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:{tag}>"


def presentation(*slides, related=(), parts=None, listed=None):
    """`related`: relations of the first slide; `listed`: the number of slides that the presentation names."""
    count = len(slides) if listed is None else listed
    ids = "".join(f'<p:sldId id="{256 + n}" r:id="s{n}"/>' for n in range(count))
    made = {
        "_rels/.rels": relations(("r", "officeDocument", "ppt/presentation.xml")),
        "ppt/presentation.xml": f"<p:presentation {NAMES}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": relations(
            *((f"s{n}", "slide", f"slides/slide{n + 1}.xml") for n in range(count))
        ),
        "ppt/slides/_rels/slide1.xml.rels": relations(*related),
    }
    made |= {f"ppt/slides/slide{n}.xml": part for n, part in enumerate(slides, 1)}
    return zipped(made | (parts or {}))


MODERN = (
    f'<c:cmLst xmlns:c="http://schemas.microsoft.com/office/powerpoint/2018/8/main" {NAMES}><c:cm id="x"><c:replyLst><c:reply>'
    f"<c:txBody>{paragraph('A reply')}</c:txBody></c:reply></c:replyLst><c:txBody>{paragraph('A comment')}</c:txBody></c:cm></c:cmLst>"
)
LAYOUT = slide(shape("Company confidential") + shape("Click to edit the title", "title"), "sldLayout")
MASTER = slide(shape("Printed in Oslo"), "sldMaster")


def alternatives(newer, older):
    names = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    return f'<mc:AlternateContent {names}><mc:Choice Requires="x">{newer}</mc:Choice><mc:Fallback>{older}</mc:Fallback></mc:AlternateContent>'


CHART = '<cx:chart xmlns:cx="http://schemas.microsoft.com/office/drawing/2014/chartex"/>'

REPORTS = [
    Report("words-for-old-programs-alone", "a.pptx", presentation(slide(alternatives("<p:x/>", shape("Old words")))), ["Old words"], [], []),
    Report("words-for-new-and-old-programs", "a.pptx", presentation(slide(alternatives(shape("New words"), shape("Old words")))), ["New words"], ["Old"], []),
    Report("newer-chart", "a.pptx", presentation(slide(shape("A slide") + alternatives(CHART, shape("Not available here")))), ["A slide"], ["Not available"], []),
    Report("words-of-a-part-of-a-paragraph-for-new-programs", "a.pptx",
        presentation(slide(f"<p:sp><p:txBody><a:p>{alternatives('<a:r><a:t>New words</a:t></a:r>', '<a:r><a:t>Old words</a:t></a:r>')}</a:p></p:txBody></p:sp>")),
        ["New words"], ["Old"], []),
    Report(
        "words-of-the-layout", "a.pptx",
        presentation(
            slide(shape("A slide")),
            related=[("l", "slideLayout", "../slideLayouts/slideLayout1.xml")],
            parts={
                "ppt/slideLayouts/slideLayout1.xml": LAYOUT,
                "ppt/slideLayouts/_rels/slideLayout1.xml.rels": relations(("m", "slideMaster", "../slideMasters/m.xml")),
                "ppt/slideMasters/m.xml": MASTER,
            },
        ),
        ["A slide [On each slide] Company confidential", "[On each slide] Printed in Oslo"], ["Click to edit"], [],
    ),
    Report(
        "layout-that-is-not-drawn", "a.pptx",
        presentation(
            slide(shape("A slide"), more=' showMasterSp="0"'),
            related=[("l", "slideLayout", "../slideLayouts/slideLayout1.xml")],
            parts={"ppt/slideLayouts/slideLayout1.xml": LAYOUT},
        ),
        ["A slide"], ["Company confidential"], [],
    ),
    Report(
        "replies-to-comments", "a.pptx",
        presentation(
            slide(shape("A slide")),
            related=[("c", "comments", "../comments/modernComment1.xml")],
            parts={"ppt/comments/modernComment1.xml": MODERN},
        ),
        ["[Comment] A comment", "[Comment] A reply"], [], [],
    ),
    Report(
        "list-of-slides-damaged", "a.pptx",
        presentation(slide(shape("First")), slide(shape("Second")), parts={"ppt/_rels/presentation.xml.rels": "<"}),
        ["First Second"], [], ["the file does not refer to it"],
    ),
    Report("slide-deleted", "a.pptx", presentation(slide(shape("Kept")), slide(shape("Deleted")), listed=1), ["Kept"], ["Deleted"], []),
    Report(
        "numbered-lists", "a.pptx",
        presentation(
            slide(
                listed(
                    paragraph("Plan"), item("One", "arabicPeriod"), item("Sub", "alphaLcParenR", 1), item("Sub2", "alphaLcParenR", 1),
                    paragraph(" "), item("Two", "arabicPeriod"), item("Four", "romanUcParenBoth", more=' startAt="4"'),
                    paragraph("No number"), item("Again", "arabicPeriod"), item("Circle", "circleNumDbPlain"),
                )
                + listed(
                    paragraph("By its level"), paragraph("Not", "<a:pPr><a:buNone/></a:pPr>"),
                    styles='<a:lvl1pPr><a:buAutoNum type="arabicPlain"/></a:lvl1pPr>',
                )
            )
        ),
        ["Plan 1. One a) Sub b) Sub2 2. Two (IV) Four No number 1. Again 1. Circle 1 By its level Not"], [], [],
    ),
    Report(
        "title-of-a-picture", "a.pptx",
        presentation(slide('<p:pic><p:nvPicPr><p:cNvPr id="1" name="x" title="A red boat"/></p:nvPicPr></p:pic>')),
        ["[A red boat]"], [], [],
    ),
]  # fmt: skip
