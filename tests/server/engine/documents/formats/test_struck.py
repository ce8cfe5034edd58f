"""Text that is struck through has `~~` around it in every format: it may be a former price, or a clause that does not apply."""

from __future__ import annotations

import pytest

from everlong_server.engine.documents.formats.readers.shared.marks import link, struck, superscript, written_out
from tests import files
from tests.server.engine.documents.formats.reading import text_of
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.presentations import presentation, slide

MARKED = [
    (struck("199") + struck(" EUR ") + "149", "~~199 EUR~~ 149"),
    ("a " + struck(" ") + "b", "a  b"),
    (struck("10" + superscript("6")), "~~10^6~~"),
    (struck("All " + struck("gone")), "~~All gone~~"),
    (link(struck("gone"), "https://x.org/"), "~~gone~~ (https://x.org/)"),
]


@pytest.mark.parametrize(("marked", "text"), MARKED)
def test_a_paragraph_with(marked: str, text: str) -> None:
    assert written_out(marked) == text


PAGES = [
    ("<p>Price <s>199 EUR </s>149 EUR</p>", "Price ~~199 EUR~~ 149 EUR"),
    ("<p><del><b>Milk</b> and <i>tea</i></del>.</p>", "~~Milk and tea~~."),
    ("<p style='text-decoration: Line-Through'>Clause <del>4</del> applies.</p>", "~~Clause 4 applies.~~"),
    ("<del><p>One.</p><p>Two <br>lines.</p></del>", "~~One.~~\n\n~~Two\nlines.~~"),
    ("<p>a<s> </s>b<strike></strike></p>", "a b"),
    ("<ul><li><s>Tea <ul><li>green</li></ul></s></li></ul>", "* ~~Tea~~\n      + ~~green~~"),
    (
        "<ul><li style='text-decoration:line-through'>Tea<ul><li>green</li></ul></li></ul>",
        "* ~~Tea~~\n      + ~~green~~",
    ),
    (
        "<style>.old, b.gone {text-decoration: line-through}</style><p>A <span class='old'>B</span> <b class='gone'>C</b></p>",
        "A ~~B~~ ~~C~~",
    ),
    (
        "<style>@media print {.a {color: red} .b {text-decoration: line-through}} .c {text-decoration: line-through}</style>"
        "<p><i class='a b'>A</i> <i class='c'>C</i></p>",
        "A ~~C~~",
    ),
]


@pytest.mark.parametrize(("page", "text"), PAGES)
def test_a_page_with(page: str, text: str) -> None:
    assert text_of(f"<html><body>{page}</body></html>".encode(), "a.html") == text


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


@pytest.mark.parametrize(
    ("properties", "text"),
    [("<w:strike/>", "~~199~~ 149"), ("<w:dstrike/>", "~~199~~ 149"), ('<w:strike w:val="0"/>', "199 149")],
)
def test_a_word_file_with(properties: str, text: str) -> None:
    assert text_of(files.word_of(f"<w:p>{run('199', properties)}{run(' 149')}</w:p>")) == text


def test_a_word_file_with_a_style() -> None:
    style = '<w:style w:type="character" w:styleId="Gone"><w:rPr><w:strike/></w:rPr></w:style>'
    gone = run("199", '<w:rStyle w:val="Gone"/>')
    data = files.word_of(f"<w:p>{gone}{run(' 149')}</w:p>")

    def styles(name: str, content: bytes) -> tuple[str, bytes]:
        return name, content.replace(b"</w:styles>", f"{style}</w:styles>".encode())

    assert text_of(files.rezipped(data, {"word/styles.xml": styles})) == "~~199~~ 149"


def test_a_presentation_and_an_opendocument_text() -> None:
    shape = '<p:sp><p:txBody><a:p><a:r><a:rPr strike="sngStrike"/><a:t>199</a:t></a:r><a:r><a:rPr strike="noStrike"/><a:t> 149</a:t></a:r></a:p></p:txBody></p:sp>'
    assert text_of(presentation(slide(shape))) == "~~199~~ 149"
    style = '<style:style style:name="{}" style:family="{}"><style:text-properties style:text-line-through-style="{}"/></style:style>'
    styles = (
        style.format("T1", "text", "solid")
        + style.format("P1", "paragraph", "solid")
        + style.format("T2", "text", "none")
    )
    body = (
        '<text:p><text:span text:style-name="T1">199</text:span><text:span text:style-name="T2"> 149</text:span></text:p>'
        '<text:p text:style-name="P1">All <text:span text:style-name="T1">gone</text:span></text:p>'
    )
    assert text_of(odf(body, auto=styles)) == "~~199~~ 149\n\n~~All gone~~"
