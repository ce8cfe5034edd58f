"""OpenDocument files: drawings are apart from the words around them; comments name their cell; masters and drawings are read."""

from __future__ import annotations

import pytest

from tests.server.engine.documents.formats.reading import text_of
from tests.server.engine.documents.formats.reports.opendocument import NS, odf

BOX = "<draw:frame><draw:text-box><text:p>One.</text:p><text:p>Two.</text:p></draw:text-box></draw:frame>"
PICTURE = '<draw:frame><draw:image xlink:href="a.png"/><svg:desc>a map</svg:desc></draw:frame>'


def test_a_text_box_has_lines_of_its_own() -> None:
    assert text_of(odf(f"<text:p>Rent{BOX}is due.</text:p>")) == "Rent\nOne.\nTwo.\nis due."


def test_a_picture_stays_in_its_sentence() -> None:
    assert text_of(odf(f"<text:p>See {PICTURE} here.</text:p>")) == "See [a map] here."


def test_a_table_on_a_slide_keeps_its_empty_first_cell() -> None:
    cells = "<table:table-cell/><table:table-cell><text:p>a</text:p></table:table-cell>"
    table = f"<draw:frame><table:table><table:table-row>{cells}</table:table-row></table:table></draw:frame>"
    assert text_of(odf(f"<draw:page>{table}</draw:page>", "presentation")) == "\ta"


def test_the_comments_of_a_sheet_name_their_cells_after_the_rows() -> None:
    ada = "<office:annotation><dc:creator>Ada</dc:creator><text:p>Why?</text:p></office:annotation>"
    empty = f'<table:table-cell table:number-columns-repeated="26"/><table:table-cell>{ada}</table:table-cell>'
    rows = (
        f"<table:table-row><table:table-cell>{ada}<text:p>a</text:p></table:table-cell>{empty}"
        '<table:table-cell><text:p>b</text:p></table:table-cell></table:table-row><table:table-row table:number-rows-repeated="9"/>'
        f"<table:table-row><table:table-cell>{ada}</table:table-cell></table:table-row>"
    )
    sheet = f'<table:table table:name="Rents">{rows}</table:table>'
    assert text_of(odf(sheet, "spreadsheet")).split("\n\n") == [
        "Rents", f"a{TAB * 28}b", "[Comment by Ada on A1] Why?", "[Comment by Ada on AB1] Why?", "[Comment by Ada on A11] Why?",
    ]  # fmt: skip


TAB = "\t"
DRAWING = (
    "<draw:page><draw:g><svg:title>Our house</svg:title><draw:rect><svg:desc>The door</svg:desc><text:p>Door</text:p></draw:rect></draw:g>"
    "</draw:page><draw:page><draw:connector><text:p>then</text:p></draw:connector></draw:page>"
)


@pytest.mark.parametrize("is_flat", [False, True])
def test_a_drawing_is_read_with_the_descriptions_of_its_shapes(is_flat: bool) -> None:
    kind = "application/vnd.oasis.opendocument.graphics"
    flat = f'<office:document {NS} office:mimetype="{kind}"><office:body><office:drawing>{DRAWING}</office:drawing></office:body></office:document>'
    data = flat.encode() if is_flat else odf(DRAWING, "drawing", mimetype=kind)
    assert text_of(data, "plan.fodg" if is_flat else None) == "[Our house]\n\n[The door]\n\nDoor\n\nthen"


def test_the_words_of_a_master_come_with_the_first_slide_that_shows_them() -> None:
    def slide(words: str, style: str) -> str:
        return (
            f'<draw:page draw:style-name="{style}" draw:master-page-name="M"><draw:frame><draw:text-box><text:p>{words}</text:p>'
            "</draw:text-box></draw:frame></draw:page>"
        )

    place = (
        '<draw:frame presentation:class="title"><draw:text-box><text:p>Click here</text:p></draw:text-box></draw:frame>'
    )
    master = f'<style:master-page style:name="M">{place}<draw:rect><text:p>For staff</text:p></draw:rect></style:master-page>'
    bare = '<style:style style:name="bare"><style:drawing-page-properties presentation:background-objects-visible="false"/></style:style>'
    slides = slide("One", "bare") + slide("Two", "") + slide("Three", "")
    data = odf(slides, "presentation", auto=bare, styles=f"<office:master-styles>{master}</office:master-styles>")
    assert text_of(data) == "One\n\nTwo\n\n[On each slide] For staff\n\nThree"
