"""OpenDocument files: what is drawn beside a paragraph does not join its words."""

from __future__ import annotations

from tests.server.engine.documents.formats.reading import text_of
from tests.server.engine.documents.formats.reports.opendocument import odf

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
