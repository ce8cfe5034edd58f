"""A row of a table is one line in every format that has tables, and each value is in its column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from everlong_server.engine.documents.formats.readers.shared.tables import table_text
from tests import files
from tests.server.engine.documents.formats.reading import text_of
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.presentations import presentation, slide

Cell = tuple[int, Sequence[str]]
"""How many columns it covers, and its paragraphs."""


def one(*paragraphs: str) -> Cell:
    return 1, paragraphs


def as_docx(rows: Sequence[Sequence[Cell]]) -> bytes:
    def cell(span: int, paragraphs: Sequence[str]) -> str:
        texts = "".join(f"<w:p><w:r><w:t>{each}</w:t></w:r></w:p>" for each in paragraphs)
        return f'<w:tc><w:tcPr><w:gridSpan w:val="{span}"/></w:tcPr>{texts}</w:tc>'

    table = "".join(f"<w:tr>{''.join(cell(*each) for each in row)}</w:tr>" for row in rows)
    return files.word_of(f"<w:tbl>{table}</w:tbl>")


def as_pptx(rows: Sequence[Sequence[Cell]]) -> bytes:
    def cell(span: int, paragraphs: Sequence[str]) -> str:
        texts = "".join(f"<a:p><a:r><a:t>{each}</a:t></a:r></a:p>" for each in paragraphs)
        return f'<a:tc gridSpan="{span}"><a:txBody>{texts}</a:txBody></a:tc>' + '<a:tc hMerge="1"/>' * (span - 1)

    table = "".join(f"<a:tr>{''.join(cell(*each) for each in row)}</a:tr>" for row in rows)
    return presentation(slide(f"<p:graphicFrame><a:tbl>{table}</a:tbl></p:graphicFrame>"))


def as_odt(rows: Sequence[Sequence[Cell]]) -> bytes:
    def cell(span: int, paragraphs: Sequence[str]) -> str:
        texts = "".join(f"<text:p>{each}</text:p>" for each in paragraphs)
        covered = f'<table:covered-table-cell table:number-columns-repeated="{span - 1}"/>' if span > 1 else ""
        return f'<table:table-cell table:number-columns-spanned="{span}">{texts}</table:table-cell>{covered}'

    table = "".join(f"<table:table-row>{''.join(cell(*each) for each in row)}</table:table-row>" for row in rows)
    return odf(f"<table:table>{table}</table:table>")


def as_rtf(rows: Sequence[Sequence[Cell]]) -> bytes:
    lines = []
    for number, row in enumerate(rows):
        edges = [1000 * sum(span for span, _ in row[: at + 1]) + number for at in range(len(row))]
        defined = "".join(rf"\cellx{edge}" for edge in edges)
        cells = "".join(r"\intbl " + r"\par ".join(paragraphs) + r"\cell" for _, paragraphs in row)
        lines.append(rf"\trowd{defined}{cells}\row")
    return rf"{{\rtf1 {''.join(lines)}\pard End.\par}}".encode()


MAKERS = [as_docx, as_pptx, as_odt, as_rtf]
LONG = ["Experience", "Chief cook of the inn. " * 20]
TABLES = {
    "an empty first cell": ([[one(), one("2023")], [one("North"), one("1")]], "\t2023\nNorth\t1"),
    "several paragraphs": (
        [[one("Ann"), one("Cook", "Clean"), one("100")], [one("Bob"), one(), one("200")]],
        "Ann\tCook Clean\t100\nBob\t\t200",
    ),
    "wide cells": (
        [[one(), (2, ["2023"]), one("2024")], [one("North"), one("1"), one("2"), one("3")]],
        "\t2023\t\t2024\nNorth\t1\t2\t3",
    ),
    "empty cells at the end": ([[one("a"), one(), one()], [one("b"), one("c"), one()]], "a\nb\tc"),
    "one cell": ([[one("A box", "of words")]], "A box\nof words"),
    "passages": (
        [[one("Contact", "Turku"), one(*LONG)], [one("a"), one("b")]],
        f"Contact\nTurku\n{LONG[0]}\n{LONG[1].strip()}\na\tb",
    ),
    "a long paragraph": ([[one("Duties"), one(LONG[1])]], f"Duties\t{LONG[1].strip()}"),
}


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize(("rows", "text"), TABLES.values(), ids=TABLES)
def test_a_table_with(made: Callable[[object], bytes], rows: list[list[Cell]], text: str) -> None:
    assert text_of(made(rows)).removesuffix("\n\nEnd.") == text


def test_a_row_that_begins_in_the_second_column() -> None:
    row = "<w:tr>{}<w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc>{}</w:tr>"
    rows = row.format("", "<w:tc><w:p/></w:tc>") + row.format('<w:trPr><w:gridBefore w:val="1"/></w:trPr>', "")
    assert text_of(files.word_of(f"<w:tbl>{rows}</w:tbl>")) == "a\n\ta"


def test_columns_in_which_no_cell_begins_are_not_counted() -> None:
    assert table_text([[(0, "a"), (20, "b")], [(0, "c"), (20, "d"), (60, "e")]]) == "a\tb\nc\td\te"


def test_places_that_are_in_no_order_do_not_fill_the_text_with_tabs() -> None:
    rows = [[(0, "a"), (10 * number + 1, str(number))] for number in range(1000)]
    assert table_text(rows).splitlines()[999] == "a\t999"


def test_notes_in_a_table_of_a_text_follow_it() -> None:
    note = "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Not May.</text:p></text:note-body></text:note>"
    cells = (
        f"<table:table-cell><text:p>{each}</text:p></table:table-cell>" for each in (f"Rent{note}", "300", "crowns")
    )
    data = odf(f"<table:table><table:table-row>{''.join(cells)}</table:table-row></table:table>")
    assert text_of(data) == "Rent[1]\t300\tcrowns\n\n[Footnote 1] Not May."


def test_empty_cells_between_those_of_a_sheet_keep_their_columns() -> None:
    cells = '<table:table-cell/><table:table-cell table:number-columns-repeated="2"/>'
    word = "<table:table-cell><text:p>a</text:p></table:table-cell>"
    rest = '<table:table-cell table:number-columns-repeated="16000"/>'
    table = f'<table:table table:name="S"><table:table-row>{word}{cells}{word}{rest}</table:table-row></table:table>'
    assert text_of(odf(table, "spreadsheet")) == "S\n\na\t\t\t\ta"
