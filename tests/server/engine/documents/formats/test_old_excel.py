"""Excel files of 1990 to 2003: cells as people see them, and what belongs to a sheet."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pytest

from everlong_server.engine.documents.formats.blocks import Unreadable
from tests import files
from tests.pages import ROOT
from tests.server.engine.documents.formats.reading import notes_of, text_of
from tests.server.engine.documents.formats.test_old_slides import group, properties, shape

_FORMATS = ("General", "yyyy-mm-dd hh:mm", "0.0%", '0.00 "kg"')


def record(kind: int, data: bytes = b"") -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


def characters(text: str) -> bytes:
    """Return the characters, with the byte before them that says that each has one or two bytes."""
    return b"\0" + text.encode("latin-1") if all(c < "\u0100" for c in text) else b"\1" + text.encode("utf-16-le")


def beginning(kind: int, version: int = 0x0600) -> bytes:
    return record(0x0809, struct.pack("<HHHHII", version, kind, 0, 0, 0, 0))


def words(row: int, column: int, text: str) -> bytes:
    return record(0x0204, struct.pack("<HHHH", row, column, 0, len(text)) + characters(text))


def number(row: int, column: int, value: float, style: int = 0) -> bytes:
    return record(0x0203, struct.pack("<HHHd", row, column, style, value))


def box(text: str, kind: int = 6) -> bytes:
    """Return the records of a shape with a text. Its kind is 25 for the box of a comment."""
    shape = record(0x005D, struct.pack("<HHHHH12xHH", 0x15, 18, kind, 1, 0, 0, 0))
    half = len(text) // 2
    parts = record(0x003C, characters(text[:half])) + record(0x003C, characters(text[half:]))
    return shape + record(0x01B6, struct.pack("<HH6xHHH", 0, 0, len(text), 16, 0)) + parts + record(0x003C, bytes(16))


def note(row: int, column: int, author: str) -> bytes:
    return record(0x001C, struct.pack("<HHHHH", row, column, 0, 1, len(author)) + characters(author) + b"\0")


def chart(title: str) -> bytes:
    """Return the records of a chart, without those of a sheet."""
    return record(0x100D, struct.pack("<HB", 0, len(title)) + characters(title))


def furniture(kind: int, text: str) -> bytes:
    return record(kind, struct.pack("<H", len(text)) + characters(text))


def workbook(
    sheets: Mapping[str, bytes], *, hidden: Sequence[str] = (), charts: Sequence[str] = (), is_1904: bool = False,
    more: bytes = b"",
) -> bytes:  # fmt: skip
    """Return the records of a file with these sheets."""
    styles = b"".join(
        record(0x041E, struct.pack("<HH", 164 + index, len(code)) + characters(code))
        for index, code in enumerate(_FORMATS)
    ) + b"".join(record(0x00E0, struct.pack("<HH16x", 0, 164 + index)) for index in range(len(_FORMATS)))
    head = beginning(5) + more + record(0x0022, bytes([is_1904, 0])) + styles
    parts = {
        name: beginning(0x20 if name in charts else 0x10) + content + record(0x000A) for name, content in sheets.items()
    }
    at = len(head) + sum(4 + 7 + len(characters(name)) for name in sheets) + len(record(0x000A))
    for name, content in parts.items():
        about = struct.pack("<IBBB", at, name in hidden, 2 if name in charts else 0, len(name))
        head += record(0x0085, about + characters(name))
        at += len(content)
    return head + record(0x000A) + b"".join(parts.values())


def old_excel(sheets: Mapping[str, bytes], stream: str = "Workbook", **options: object) -> bytes:
    return files.compound({stream: workbook(sheets, **options)})  # type: ignore[arg-type]


def texts(data: bytes) -> Sequence[str]:
    return text_of(data).split("\n\n")


def test_rows_and_numbers_as_they_are_shown() -> None:
    rows = words(0, 0, "Größe\nof all") + words(0, 2, "Dřevo") + number(2, 0, 38754.5, 1) + number(2, 1, 0.125, 2)
    rows += number(2, 2, 0.1 + 0.2, 3) + number(3, 1, 38754.0, 1)
    assert texts(old_excel({"Sales": rows})) == [
        "Sales", "Größe of all\t\tDřevo\n2006-02-06 12:00\t12.5%\t0.3 kg\n\t2006-02-06",
    ]  # fmt: skip


def test_a_built_in_format_of_chinese_excel() -> None:
    style = record(0x00E0, struct.pack("<HH16x", 0, 31))
    assert texts(old_excel({"A": number(0, 0, 38754.0) + number(0, 1, 0.125, 3)}, more=style)) == [
        "A",
        "2006-02-06\t12.5%",
    ]


def test_days_counted_from_1904() -> None:
    assert texts(old_excel({"A": number(0, 0, 1.0, 1)}, is_1904=True)) == ["A", "1904-01-02"]


def test_what_belongs_to_a_sheet() -> None:
    rows = words(0, 0, "Cell") + furniture(0x14, '&L&"Arial"Acme &P') + furniture(0x15, "&CSecret")
    rows += box("A box of words") + box("Ask Бo", 25) + note(0, 0, "Ada")
    rows += beginning(0x20) + chart("Growth") + chart("Growth") + record(0x000A)
    assert texts(old_excel({"A": rows})) == [
        "A", "Cell", "[Comment by Ada on A1] Ask Бo", "[Header] Acme", "[Footer] Secret", "A box of words", "[Chart] Growth",
    ]  # fmt: skip


def test_hidden_sheets_and_charts() -> None:
    data = old_excel(
        {"A": words(0, 0, "x"), "Chart": chart("Title"), "B": words(0, 0, "y")}, hidden=["A"], charts=["Chart"]
    )
    assert texts(data) == ["A", "x", "Chart", "[Chart] Title", "B", "y"]
    assert notes_of(data) == ["A: the sheet is hidden"]


def test_the_values_of_a_chart() -> None:
    def values(kind: int, *cells: bytes) -> bytes:
        return record(0x1065, struct.pack("<H", kind)) + b"".join(cells)

    series = record(0x1003, bytes(12)) + chart("Rent") + record(0x1025, bytes(32)) + chart("By year")
    points = values(1, number(0, 0, 300.0), number(1, 0, 310.0)) + values(2, words(0, 0, "2023"), words(1, 0, "2024"))
    rows = words(0, 0, "x") + beginning(0x20) + series + points + record(0x000A)
    assert texts(old_excel({"A": rows})) == ["A", "x", "[Chart] By year\n\tRent\n2023\t300\n2024\t310"]


def test_pictures_and_word_art() -> None:
    shapes = shape(properties(picture=b"", description="A red barn\0".encode("utf-16-le")))
    shapes += shape(properties(letters="Growth\0".encode("utf-16-le"))) + shape(properties(picture=b""))
    drawing = record(0x00EC, group(shapes)[:40]) + record(0x005D, bytes(22)) + record(0x00EC, group(shapes)[40:])
    data = old_excel({"A": words(0, 0, "x") + drawing, "B": words(0, 0, "y")})
    assert texts(data) == ["A", "x", "[A red barn]", "Growth", "B", "y"]
    assert notes_of(data) == ["A: left out: pictures without a description (1)"]


def test_a_damaged_file_whose_cells_can_be_read() -> None:
    """The library xlrd refuses a style that is too short."""
    data = old_excel({"A": words(0, 0, "x")}, more=record(0x00E0, bytes(4)))
    assert texts(data) == ["A", "x"]
    assert notes_of(data) == ["it is damaged: its comments, text boxes, charts, pictures and headers were not read"]


def test_a_container_whose_small_sectors_follow_each_other_in_a_circle() -> None:
    data = bytearray((ROOT / "tests" / "data" / "formats" / "libreoffice.xls").read_bytes())
    table = 512 * (int.from_bytes(data[0x3C:0x40], "little") + 1)
    data[table + 12 : table + 16] = bytes(4)  # after the fourth sector, the first one follows again
    with pytest.raises(Unreadable, match="the file is damaged"):  # xlrd would read on for ever
        text_of(bytes(data))


def test_a_stream_in_capitals_and_an_embedded_file() -> None:
    streams = {
        "WORKBOOK": workbook({"A": words(0, 0, "x")}), "MBD01/\x01Ole10Native": files.ole_package("b.csv", b"x,y\n"),
        "MBD02/WordDocument": b"x",
    }  # fmt: skip
    assert texts(files.compound(streams)) == ["A", "x", "[Embedded file] b.csv", "x,y"]
    assert notes_of(files.compound(streams)) == ["left out: embedded objects (1)"]


def test_a_file_of_excel_4() -> None:
    """Such a file is one sheet, and not in a compound file."""
    cell = record(0x0204, struct.pack("<HHHH", 0, 0, 0, 3) + "été".encode("cp1252"))
    data = (
        record(0x0409, struct.pack("<HHH", 0, 0x10, 0))
        + record(0x0042, struct.pack("<H", 1252))
        + cell
        + record(0x000A)
    )
    assert texts(data) == ["Sheet 1", "été"]
    assert notes_of(data) == [
        "text boxes, charts, pictures and headers of files before Excel 97 are not read; save it as .xlsx to keep them"
    ]


def test_an_encrypted_file_is_refused() -> None:
    with pytest.raises(Unreadable, match="encrypted"):
        text_of(old_excel({"A": words(0, 0, "x")}, more=record(0x002F, bytes(6))))


def test_a_damaged_file_is_refused() -> None:
    with pytest.raises(Unreadable, match="damaged"):
        text_of(files.compound({"Workbook": workbook({"A": words(0, 0, "x")})[:30]}))
