"""Excel files: values as people see them, comments, text boxes and charts; a damaged or missing part does not cost the others."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from lxml import etree

from everlong_server.engine.documents.formats.readers.openxml import sheets
from everlong_server.engine.documents.formats.readers.openxml.cells import kind_of, shown
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
TYPES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
DRAWING = (
    'xmlns:xdr="http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing" '
    f'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:r="{TYPES}"'
)
STYLES = (
    f'<styleSheet {MAIN}><numFmts><numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd"/></numFmts><cellXfs><xf numFmtId="0"/>'
    '<xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="9"/><xf numFmtId="22"/><xf numFmtId="20"/><xf numFmtId="46"/></cellXfs>'
    "</styleSheet>"
)
RENTS = '<sheet name="Rents" sheetId="1" r:id="worksheet"/>'


def relations(*targets: str) -> str:
    """Return relationships. `targets`: of the kind that the file's name begins with, which is the id, too."""
    found = ""
    for target in targets:
        kind = (
            target.rpartition("/")[2].partition(".")[0].rstrip("0123456789").replace("SharedStrings", "sharedStrings")
        )
        found += f'<Relationship Id="{kind}" Type="{TYPES}/{kind}" Target="{target}"/>'
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{found}</Relationships>'
    )


def excel(
    cells: str, *, sheets: str = RENTS, properties: str = "", strings: str = "", parts: Mapping[str, str] = {}
) -> bytes:
    """Return an Excel file with these cells in the first row, or this XML as its sheet. `parts`: others, or changed ones."""
    sheet = cells if cells.startswith("<sheetData") else f'<sheetData><row r="1">{cells}</row></sheetData>'
    workbook = f'<workbook {MAIN} xmlns:r="{TYPES}">{properties}<sheets>{sheets}</sheets></workbook>'
    made = {
        "_rels/.rels": relations("xl/workbook.xml").replace('/workbook"', '/officeDocument"'),
        "xl/workbook.xml": workbook,
        "xl/_rels/workbook.xml.rels": relations("worksheets/worksheet.xml", "styles.xml", "sharedStrings.xml"),
        "xl/styles.xml": STYLES,
        "xl/sharedStrings.xml": f"<sst {MAIN}>{strings}</sst>",
        "xl/worksheets/worksheet.xml": f"<worksheet {MAIN}>{sheet}</worksheet>",
    }
    return files.zipped(made | parts)


def words(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def value(place: str, number: str, more: str = "") -> str:
    return f'<c r="{place}" {more}><v>{number}</v></c>'


ROWS = {
    "words": (words("A1", "hello") + value("B1", "3.5"), "hello\t3.5"),
    "formats in words": ('<c r="A1" t="inlineStr"><is><r><t>he</t></r><r><t xml:space="preserve">llo all</t></r></is></c>', "hello all"),
    "no places": ("<c t='inlineStr'><is><t>a</t></is></c><c><v>2</v></c>", "a\t2"),
    "gaps": (words("A1", "a") + words("D1", "d"), "a\t\t\td"),
    "truth and errors": (value("A1", "1", 't="b"') + value("B1", "#DIV/0!", 't="e"'), "TRUE\t#DIV/0!"),
    "formulas": ('<c r="A1" t="str"><f>B1</f><v>saved</v></c><c r="B1"><f>SUM(C1:C9)</f></c>', "saved\t=SUM(C1:C9)"),
    "formulas without a value": ('<c r="A1"><f>SUM(C1:\nC9)</f><v></v></c><c r="B1" t="str"><f>IF(C1,"")</f><v></v></c>' + words("C1", "c"),
                                 "=SUM(C1: C9)\t\tc"),
    "the first dates": ("".join(value(f"{c}1", day, 's="1"') for c, day in zip("ABCDEF", ("0", "1", "59", "60", "61", "15.25"), strict=True)),
                        "1900-01-00\t1900-01-01\t1900-02-28\t1900-02-29\t1900-03-01\t1900-01-15"),
    "superscripts": ('<c r="A1" t="inlineStr"><is><r><t>m</t></r><r><rPr><vertAlign val="superscript"/></rPr><t>2</t></r></is></c>', "m^2"),
    "a formula that is a link": ('<c r="A1" t="str"><f>HYPERLINK("https://x.org","site")</f><v>site</v></c>', "site (https://x.org)"),
    "dates": (value("A1", "45293", 's="1"') + value("B1", "45293.5", 's="4"') + value("C1", "45293", 's="2"'),
              "2024-01-02\t2024-01-02 12:00\t2024-01-02"),
    "times": (value("A1", "0.75", 's="5"') + value("B1", "1.5", 's="6"'), "18:00\t36:00:00"),
    "a date that is none": (value("A1", "-5", 's="1"') + value("B1", "9E99", 's="1"') + value("C1", "soon", 's="1"'), "-5\t9E+99\tsoon"),
    "ISO date": (value("A1", "2024-01-02T00:00:00", 't="d"'), "2024-01-02"),
    "percentage": (value("A1", "0.125", 's="3"'), "12.5%"),
    "rounding errors": (value("A1", "0.30000000000000004") + value("B1", "12345678901234"), "0.3\t12345678901234"),
    "lines": (words("A1", "one&#10;two") + words("B1", "b"), "one two\tb"),
    "escapes": (words("A1", "one_x000D_&#10;two_x0009_x"), "one two x"),
    "leading zeros": (words("A1", "007"), "007"),
    "far cell": (words("A1", "a") + words("XFD1", "b"), "a" + "\t" * 16383 + "b"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "row"), ROWS.values(), ids=ROWS)
def test_a_row_with(cells: str, row: str) -> None:
    assert text_of(excel(cells)) == f"Rents\n\n{row}"


STRINGS = {
    "formats": ("<si><r><t>Über </t></r><r><t>Lease</t></r></si>", "Über Lease"),
    "pronunciation": ('<si><t>東京</t><rPh sb="0" eb="2"><t>トウキョウ</t></rPh></si>', "東京"),
}


@pytest.mark.parametrize(("strings", "text"), STRINGS.values(), ids=STRINGS)
def test_a_shared_string_with(strings: str, text: str) -> None:
    assert text_of(excel(value("A1", "0", 't="s"'), strings=strings)) == f"Rents\n\n{text}"


FORMATS = {
    '#,##0.00\\ "€"': ("1234.5", "1234.5 €"), "[$$-409]#,##0.00": ("-250", "-$250"), "[$CHF] 0": ("7", "CHF 7"),
    '_-* #,##0.00\\ "kr"_-;\\-* #,##0.00\\ "kr"_-;_-* "-"??\\ "kr"_-': ("-3", "-3 kr"), '0" pcs"': ("5", "5 pcs"), 'General" kg"': ("7", "7 kg"),
    '"$"#,##0_);[Red]("$"#,##0)': ("-8", "-$8"), '0.00"%"': ("3.25", "3.25%"), '"Q"0': ("3", "Q3"), "£0.0": ("2.5", "£2.5"),
    "0": ("-1234567890123456789", "-1234567890123456789"), "General": ("1E+20", "1E+20"),
    "0000000000000000000": ("123456789012345678", "0123456789012345678"), '0" kg"': ("-12345678901234567", "-12345678901234567 kg"),
    '0.0,,"M"': ("1500000", "1500000"), "# ?/?": ("0.5", "0.5"), "0.00E+00": ("1200", "1200"), '0 "Dr";0 "Cr"': ("-4", "-4"),
    '0" (est.)"': ("5", "5 (est.)"), '"(loss) "0': ("5", "(loss) 5"), '0"+"': ("65", "65+"),
    '[<1]0 "low";0 "high"': ("4", "4"), "#,##0_);(#,##0)": ("-6", "-6"), '"yes";"no"': ("1", "1"), '0.0"x"0': ("1", "1"),
}  # fmt: skip


@pytest.mark.parametrize("code", FORMATS)
def test_a_number_in_the_format(code: str) -> None:
    value, text = FORMATS[code]
    assert shown(value, kind_of(code)) == text


def test_struck_cells_and_words() -> None:
    fonts = '<fonts><font/><font><strike/></font><font><strike val="0"/></font></fonts>'
    styles = (
        f'<styleSheet {MAIN}>{fonts}<cellXfs><xf fontId="0"/><xf fontId="1"/><xf fontId="2"/></cellXfs></styleSheet>'
    )
    runs = '<r><rPr><strike/></rPr><t xml:space="preserve">199 </t></r><r><t>149</t></r>'
    rich = f'<c r="D1" t="inlineStr"><is>{runs}</is></c>'
    cells = "".join(value(f"{column}1", "199", f's="{style}"') for column, style in zip("ABC", "012", strict=True))
    data = files.rezipped(excel(cells + rich), {"xl/styles.xml": lambda name, content: (name, styles.encode())})
    assert text_of(data) == "Rents\n\n199\t~~199~~\t199\t~~199~~ 149"


def test_the_links_of_cells() -> None:
    kind = f'Type="{TYPES}/hyperlink"'
    links = (
        f'<Relationship Id="one" {kind} Target="https://x.org/" TargetMode="External"/>'
        f'<Relationship Id="two" {kind} Target="mailto:ada@x.org" TargetMode="External"/>'
    )
    sheet = (
        f'<sheetData><row r="1">{words("A1", "site")}{words("B1", "Ada")}{words("C1", "below")}{words("D1", "x.org")}</row></sheetData>'
        f'<hyperlinks xmlns:r="{TYPES}"><hyperlink ref="A1:A2" r:id="one" location="part"/><hyperlink ref="B1" r:id="two"/>'
        '<hyperlink ref="C1" location="Rents!A9"/><hyperlink ref="D1" r:id="one"/></hyperlinks>'
    )
    rels = {"xl/worksheets/_rels/worksheet.xml.rels": relations().replace("></", f">{links}</")}
    assert text_of(excel(sheet, parts=rels)) == "Rents\n\nsite (https://x.org/#part)\tAda (ada@x.org)\tbelow\tx.org"


def test_no_cell_of_a_sheet_with_a_link_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[etree.iterparse] = []

    def iterparse(*arguments: Any, **more: Any) -> etree.iterparse:
        passes.append(etree.iterparse(*arguments, **more))
        return passes[-1]

    monkeypatch.setattr(sheets, "etree", SimpleNamespace(**vars(etree) | {"iterparse": iterparse}))
    rows = "".join(f'<row r="{row}">{words(f"A{row}", "site")}</row>' for row in range(1, 100))
    link = f'<hyperlinks xmlns:r="{TYPES}"><hyperlink ref="A99" r:id="one"/></hyperlinks>'
    kind = f'Type="{TYPES}/hyperlink"'
    relation = f'<Relationship Id="one" {kind} Target="https://x.org/" TargetMode="External"/>'
    rels = {"xl/worksheets/_rels/worksheet.xml.rels": relations().replace("</", f"{relation}</")}
    text = text_of(excel(f"<sheetData>{rows}</sheetData>{link}", parts=rels))
    assert text.endswith("site\nsite (https://x.org/)")
    kept = [len(list(each.root.iter("{*}c"))) for each in passes if each.root.tag.endswith("}worksheet")]
    assert kept == [0, 0, 0], "the links, the rows, and the headers"


def test_the_link_of_a_cell_in_a_file_of_2003() -> None:
    names = (
        'xmlns="urn:schemas-microsoft-com:office:spreadsheet" xmlns:ss="urn:schemas-microsoft-com:office:spreadsheet"'
    )
    row = '<Row><Cell ss:HRef="https://x.org/"><Data ss:Type="String">site</Data></Cell></Row>'
    packed = f'<?xml version="1.0"?><?mso-application progid="Excel.Sheet"?><Workbook {names}><Worksheet ss:Name="S"><Table>{row}</Table></Worksheet></Workbook>'
    assert text_of(packed.encode()) == "S\n\nsite (https://x.org/)"


def test_a_shared_formula_without_a_value_is_noted() -> None:
    formula = '<f t="shared" ref="A1:B1" si="0">C1*2</f>'
    packed = excel(f'<c r="A1">{formula}<v/></c><c r="B1"><f t="shared" si="0"/><v/></c>')
    assert text_of(packed) == "Rents\n\n=C1*2"
    assert notes_of(packed) == ["Rents: left out: formulas without a saved value (1)"]


def test_a_part_in_another_case() -> None:
    packed = files.rezipped(
        excel(value("A1", "0", 't="s"'), strings="<si><t>word</t></si>"),
        {"xl/sharedStrings.xml": lambda _, content: ("xl/SharedStrings.xml", content)},
    )
    assert text_of(packed) == "Rents\n\nword"


def test_days_counted_from_1904() -> None:
    assert (
        text_of(excel(value("A1", "43831", 's="1"'), properties='<workbookPr date1904="1"/>')) == "Rents\n\n2024-01-02"
    )


COMMENTS = (
    f'<comments {MAIN}><authors><author>Ada</author></authors><commentList><comment ref="A1" authorId="0"><text><r><t>late</t></r>'
    "</text></comment></commentList></comments>"
)
THREAD = (
    '<ThreadedComments xmlns="http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments">'
    '<threadedComment ref="A1"><text>why so late?</text></threadedComment></ThreadedComments>'
)
BOX = f"<xdr:wsDr {DRAWING}><xdr:sp><xdr:txBody><a:p><a:r><a:t>Box words</a:t></a:r></a:p></xdr:txBody></xdr:sp></xdr:wsDr>"
PICTURE = (
    f'<xdr:wsDr {DRAWING}><xdr:pic><xdr:nvPicPr><xdr:cNvPr descr="A blue cat"/></xdr:nvPicPr></xdr:pic></xdr:wsDr>'
)
RELATED = {
    "comments": ("comments1.xml", COMMENTS, "[Comment by Ada on A1] late"),
    "threads": ("threadedComment1.xml", THREAD, "[Comment on A1] why so late?"),
    "text box": ("drawing1.xml", BOX, "Box words"),
    "picture": ("drawing1.xml", PICTURE, "[A blue cat]"),
}


@pytest.mark.parametrize(("name", "part", "text"), RELATED.values(), ids=RELATED)
def test_what_belongs_to_a_sheet(name: str, part: str, text: str) -> None:
    parts = {"xl/worksheets/_rels/worksheet.xml.rels": relations(f"../{name}"), f"xl/{name}": part}
    assert text_of(excel(words("A1", "x"), parts=parts)) == f"Rents\n\nx\n\n{text}"


def test_the_author_of_a_threaded_comment() -> None:
    thread = THREAD.replace('ref="A1"', 'ref="A1" personId="{7}"')
    parts = {
        "xl/worksheets/_rels/worksheet.xml.rels": relations("../threadedComment1.xml"),
        "xl/threadedComment1.xml": thread,
        "xl/persons/person.xml": '<personList xmlns="x"><person displayName="Ada Byron" id="{7}"/></personList>',
    }
    assert text_of(excel(words("A1", "x"), parts=parts)).endswith("\n\n[Comment by Ada Byron on A1] why so late?")


def test_a_chart() -> None:
    def points(kind: str, *values: str) -> str:
        found = "".join(f'<c:pt idx="{at}"><c:v>{each}</c:v></c:pt>' for at, each in enumerate(values))
        return f"<c:{kind}><c:cache>{found}</c:cache></c:{kind}>"

    series = f"<c:ser>{points('tx', 'Rent')}{points('cat', '2023', '2024')}{points('val', '300', '310')}</c:ser>"
    chart = (
        '<c:chart xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
        f"{DRAWING}><c:title><a:p><a:r><a:t>By year</a:t></a:r></a:p></c:title>{series}</c:chart>"
    )
    frame = '<xdr:graphicFrame><c:chart xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" r:id="chart"/></xdr:graphicFrame>'
    parts = {
        "xl/worksheets/_rels/worksheet.xml.rels": relations("../drawing1.xml"),
        "xl/drawing1.xml": f"<xdr:wsDr {DRAWING}>{frame}</xdr:wsDr>",
        "xl/_rels/drawing1.xml.rels": relations("chart1.xml"),
        "xl/chart1.xml": chart,
    }
    assert text_of(excel(words("A1", "x"), parts=parts)).endswith("[Chart] By year\n\tRent\n2023\t300\n2024\t310")


def test_built_in_formats_of_currencies() -> None:
    formats = "".join(f'<xf numFmtId="{number}"/>' for number in (5, 8, 44, 4))
    styles = f"<styleSheet {MAIN}><cellXfs>{formats}</cellXfs></styleSheet>"
    cells = "".join(value(f"{column}1", "-1250.5", f's="{style}"') for style, column in enumerate("ABCD"))
    data = excel(cells, parts={"xl/styles.xml": styles})
    assert text_of(data) == "Rents\n\n-$1250.5\t-$1250.5\t-$1250.5\t-1250.5"


def test_headers_of_printed_pages() -> None:
    sheet = '<sheetData><row><c><v>1</v></c></row></sheetData><headerFooter><oddHeader>&amp;CFor &amp;"Arial"Ada&amp;&amp;Bo &amp;P</oddHeader></headerFooter>'
    assert text_of(excel(sheet)) == "Rents\n\n1\n\n[Header] For Ada&Bo"


def test_hidden_and_missing_sheets() -> None:
    sheets = RENTS.replace("sheetId", 'state="veryHidden" sheetId') + '<sheet name="B" sheetId="2" r:id="none"/>'
    packed = excel(words("A1", "secret"), sheets=sheets)
    assert text_of(packed) == "Rents\n\nsecret"
    assert notes_of(packed) == ["Rents: the sheet is hidden", "B: the sheet is not in the file"]


def test_a_damaged_sheet() -> None:
    packed = excel('<sheetData><row r="1">' + words("A1", "hello") + "</row><row><c r=")
    assert text_of(packed) == "Rents\n\nhello"


def test_a_file_that_is_cut_before_its_workbook() -> None:
    """openpyxl and XlsxWriter write the sheets first, and the workbook and the list of types last."""
    packed = files.zipped({
        "docProps/app.xml": "<Properties/>",
        "xl/worksheets/sheet2.xml": f'<worksheet {MAIN}><sheetData><row r="1">{words("A1", "costs")}</row></sheetData></worksheet>',
        "xl/worksheets/sheet1.xml": f'<worksheet {MAIN}><sheetData><row r="1">{words("A1", "rents")}</row></sheetData></worksheet>',
        "xl/workbook.xml": f"<workbook {MAIN}/>",
    })  # fmt: skip
    cut = packed[: packed.index(b"xl/workbook.xml")]
    assert text_of(cut, "rents.xlsx") == "rents\n\ncosts"
    assert (
        notes_of(cut, "rents.xlsx")[0] == "the end of the file is missing or damaged; what was found before it was read"
    )


def test_a_string_that_is_not_in_the_file() -> None:
    packed = excel(value("A1", "99", 't="s"') + words("B1", "ok"))
    assert text_of(packed) == "Rents\n\n\tok"
    assert notes_of(packed) == ["Rents: left out: cells whose text is not in the file (1)"]


def binary(kind: int, *values: int | str, flags: int = 0) -> bytes:
    """Return a record of a file in binary form. `flags`: number of bytes before the values, which are 0."""
    data = bytes(flags)
    for each in values:
        data += (
            struct.pack("<I", len(each)) + each.encode("utf-16-le")
            if isinstance(each, str)
            else struct.pack("<I", each)
        )
    head = bytes([kind]) if kind < 128 else bytes([kind & 127 | 128, kind >> 7])
    return head + bytes([len(data) & 127 | 128, len(data) >> 7]) + data


def test_a_file_in_binary_form() -> None:
    sheet = (
        binary(129)
        + binary(148, 0, 0, 0, 0)
        + binary(145)
        + binary(0, 0, flags=21)
        + binary(6, 0, 0, "x")
        + binary(146)
    )
    header = binary(479, "&CFor Ada", "", "", "", "", "", flags=2)
    comments = binary(632, "Bo") + binary(635, 0, 4, 4, 27, 27) + binary(637, "late payer", flags=1)
    packed = files.zipped({
        "_rels/.rels": relations("xl/workbook.bin").replace('/workbook"', '/officeDocument"'),
        "xl/workbook.bin": binary(131) + binary(143) + binary(156, 0, 1, "worksheet", "Rents")
        + binary(156, 1, 2, "sheet", "Drawn") + binary(144) + binary(132),
        "xl/_rels/workbook.bin.rels": relations("worksheets/worksheet.bin", "worksheets/sheet.bin"),
        "xl/worksheets/worksheet.bin": sheet + header + binary(130),
        "xl/worksheets/_rels/worksheet.bin.rels": relations("../comments1.bin"),
        "xl/comments1.bin": comments,
        "xl/worksheets/sheet.bin": binary(129) + binary(145) + binary(146) + binary(130),
        "xl/worksheets/_rels/sheet.bin.rels": relations("../drawing1.xml"),
        "xl/drawing1.xml": BOX,
    })  # fmt: skip
    assert text_of(packed).split("\n\n") == [
        "Rents", "x", "[Comment by Bo on AB5] late payer", "[Header] For Ada", "Drawn", "Box words",
    ]  # fmt: skip
    assert notes_of(packed) == ["Drawn: the sheet is hidden"]


def test_a_sheet_in_binary_form_with_spaces_in_its_name() -> None:
    cell = binary(0, 0, flags=21) + binary(6, 0, 0, "x")
    sheet = binary(129) + binary(148, 0, 0, 0, 0) + binary(145) + cell + binary(146) + binary(130)
    packed = files.zipped({
        "_rels/.rels": relations("xl/workbook.bin").replace('/workbook"', '/officeDocument"'),
        "xl/workbook.bin": binary(131) + binary(143) + binary(156, 0, 1, "worksheet", "First")
        + binary(156, 0, 2, "sheet", "A  B") + binary(144) + binary(132),
        "xl/_rels/workbook.bin.rels": relations("worksheets/worksheet.bin", "worksheets/sheet.bin"),
        "xl/worksheets/worksheet.bin": sheet, "xl/worksheets/sheet.bin": sheet,
    })  # fmt: skip
    assert text_of(packed).split("\n\n") == ["First", "x", "A  B", "x"]
