"""Word files of 1997 to 2003: the parts of their text are told apart."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import kreuzberg
import pytest

from everlong_server.engine.documents.formats import catalogue
from everlong_server.engine.documents.formats.blocks import Unreadable
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

FOOTNOTE_PLACES, FOOTNOTES, COMMENT_PLACES, COMMENTS, HEADERS, PIECES, AUTHORS = 2, 3, 4, 5, 11, 33, 36
STYLES, PARAGRAPHS, LISTS, LEVELS, LIST_REFERENCES = 1, 13, 73, 72, 74
"""Numbers of tables. That of `LEVELS` is not in use; in a file, the levels follow the lists."""


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def old_word(
    main: str, *, footnotes: str = "", headers: str = "", comments: str = "", boxes: str = "", tables: Mapping[int, bytes] = {},
    flags: int = 0x0200, streams: Mapping[str, bytes] = {}, pages: bytes = b"",
) -> bytes:  # fmt: skip
    """Return a file (MS-DOC) with these parts of the text. `tables`: by their number in the list of places. `pages`: from page 3 on."""
    parts = [main, footnotes, headers, "", comments, "", boxes, ""]
    text = "".join(parts)
    header = bytearray(0x400)
    struct.pack_into("<HH", header, 0, 0xA5EC, 193)
    struct.pack_into("<H", header, 10, flags)
    struct.pack_into("<8I", header, 0x4C, *map(len, parts))
    piece = numbers(0, len(text)) + struct.pack("<HIH", 0, len(header), 0)
    table = b""
    for number, content in {**tables, PIECES: b"\x02" + numbers(len(piece)) + piece}.items():
        struct.pack_into("<II", header, 0x9A + 8 * number, len(table), len(content))
        table += content
    stream = bytes(header) + text.encode("utf-16-le")
    return files.compound({"WordDocument": stream.ljust(3 * 512, b"\0") + pages, "1Table": table, **streams})


def texts(data: bytes) -> Sequence[str]:
    return text_of(data).split("\n\n")


def test_paragraphs_fields_and_tables() -> None:
    main = "One\x0bline.\rSee \x13HYPERLINK x\x14the site\x15.\ra\x07b\x07\x07c\x07d\x07\x07Last.\r"
    assert texts(old_word(main)) == ["One\nline.", "See the site.", "a\tb\nc\td\nLast."]


def test_a_word_and_its_pronunciation() -> None:
    field = '\x13 EQ \\* jc2 \\* "Font:MS Mincho" \\* hps10 \\o\\ad(\\s\\up 9(とう),東)\x15'
    data = old_word(f"{field}京 \x13 EQ \\f(1,2)\x15\r")
    assert texts(data) == ["東(とう)京"]
    assert notes_of(data) == ["left out: equations in fields (1)"]


def described(main: str, *styles: tuple[int, bytes]) -> bytes:
    """Return the page that describes the paragraphs of a text. `styles`: the style of each, and its properties."""
    bounds = [0, *(at + 1 for at, character in enumerate(main) if character in "\r\x07")]
    page, at = bytearray(512), 500
    struct.pack_into(f"<{len(bounds)}I", page, 0, *(0x400 + 2 * bound for bound in bounds))
    for index, (style, properties) in enumerate(styles):
        data = struct.pack("<H", style) + properties + bytes(len(properties) % 2)
        at -= len(data) + 2
        page[4 * len(bounds) + 13 * index] = at // 2
        page[at : at + 2 + len(data)] = bytes([0, len(data) // 2]) + data
    page[511] = len(styles)
    return bytes(page)


def level(form: int, text: str, start: int = 1) -> bytes:
    return struct.pack("<IB23xH", start, form, len(text)) + text.encode("utf-16-le")


def in_list(level: int) -> bytes:
    return struct.pack("<HBHH", 0x260A, level, 0x460B, 1)


def test_numbers_of_lists() -> None:
    main = "One\rTwo\rSub\rPlain\rOf a style\rcell\x07\x07"
    style = struct.pack("<2xHH4x2H4H", 0xFFF1, 1, 0, 0, 6, 1, 0x460B, 1)
    tables = {
        PARAGRAPHS: numbers(0x400, 0x400 + 2 * len(main), 3), LISTS: struct.pack("<HI24x", 1, 7),
        LEVELS: level(0, "\0.") + level(4, "(\1)") + level(23, "\uf0b7") + level(0, "") * 6,
        LIST_REFERENCES: numbers(1, 7, 0, 0, 0, 0xFFFFFFFF),
        STYLES: struct.pack("<HHH", 4, 2, 10) + bytes(2) + struct.pack("<H", len(style)) + style,
    }  # fmt: skip
    page = described(
        main, (0, in_list(0)), (0, in_list(0)), (0, in_list(1)), (0, b""), (1, b""), (0, in_list(2)), (0, b"")
    )
    data = old_word(main, tables=tables, pages=page)
    assert texts(data) == ["1. One", "2. Two", "(a) Sub", "Plain", "3. Of a style", "• cell"]
    assert notes_of(data) == []
    damaged = old_word(main, tables=tables | {LISTS: struct.pack("<HI24x", 999, 7)}, pages=page)
    assert texts(damaged)[:2] == ["One", "Two"]
    assert notes_of(damaged) == ["the list numbers are damaged and were left out"]


def in_lists(main: str, references: bytes, *paragraphs: tuple[int, int]) -> bytes:
    """Return a file with one list of two levels. `paragraphs`: the reference and the level of each."""
    tables = {
        PARAGRAPHS: numbers(0x400, 0x400 + 2 * len(main), 3), LISTS: struct.pack("<HI24x", 1, 7),
        LEVELS: level(0, "\0.") + level(4, "(\1)") + level(0, "") * 7, LIST_REFERENCES: references,
    }  # fmt: skip
    styles = ((0, struct.pack("<HBHH", 0x260A, depth, 0x460B, reference)) for reference, depth in paragraphs)
    return old_word(main, tables=tables, pages=described(main, *styles))


def test_a_page_break_inside_a_paragraph_of_a_list() -> None:
    data = in_lists("One\rTwo\x0cmore\rThree\r", numbers(1, 7, 0, 0, 0, 0xFFFFFFFF), (1, 0), (1, 0), (1, 0))
    assert texts(data) == ["1. One", "2. Two", "more", "3. Three"]


def test_a_list_that_begins_again_with_other_numbers() -> None:
    references = numbers(2, 7, 0, 0, 0, 7, 0, 0, 2, 0xFFFFFFFF, 0xFFFFFFFF, 5, 0x10, 3, 0x11)
    data = in_lists("One\rAgain\rSub\rSub\r", references, (1, 0), (2, 0), (2, 1), (2, 1))
    assert texts(data) == ["1. One", "5. Again", "(c) Sub", "(d) Sub"]


def test_a_directory_that_contains_itself(tmp_path: Path) -> None:
    data = bytearray(old_word("Some words.\r"))
    root = 512 * (int.from_bytes(data[0x30:0x34], "little") + 1)
    data[root + 66] = 1  # a storage, whose child is itself
    data[root + 76 : root + 80] = bytes(4)
    file = tmp_path / "file.doc"
    file.write_bytes(data)
    assert catalogue.format_of(file, "ole") == "doc", "by the names in the damaged directory"


def test_a_footnote() -> None:
    tables = {FOOTNOTE_PLACES: numbers(4, 99) + b"\1\0", FOOTNOTES: numbers(0, 16, 17)}
    assert texts(old_word("Rent\x02 is due.\rNext.\r", footnotes="\x02 Except March.\r", tables=tables)) == [
        "Rent[1] is due.", "[Footnote 1] Except March.", "Next.",
    ]  # fmt: skip


def test_a_comment_and_its_author() -> None:
    details = bytes(20) + struct.pack("<H", 1) + bytes(8)
    tables = {
        COMMENT_PLACES: numbers(4, 99) + details, COMMENTS: numbers(0, 12, 13),
        AUTHORS: b"\2\0" + "Bo".encode("utf-16-le") + b"\3\0" + "Ada".encode("utf-16-le"),
    }  # fmt: skip
    assert texts(old_word("Rent\x05 is due.\r", comments="\x05late payer\r", tables=tables)) == [
        "Rent is due.", "[Comment by Ada] late payer",
    ]  # fmt: skip


def test_headers_and_footers() -> None:
    # Six separators of notes, then headers of even and odd pages, and their footers.
    tables = {HEADERS: numbers(0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 11, 11, 11)}
    assert texts(old_word("Body.\r", headers="Acme\rPage 1\r", tables=tables)) == [
        "[Header] Acme", "Body.", "[Footer] Page 1",
    ]  # fmt: skip


def test_text_boxes_and_embedded_files() -> None:
    data = old_word(
        "Body.\x01\r",
        boxes="Box words\r",
        streams={
            "ObjectPool/_2/\x01Ole10Native": files.ole_package("b.csv", b"x,y\n"),
            "ObjectPool/_1/Package": files.word(("Normal", "Inner.")),
        },
    )
    assert texts(data) == ["Body.", "Box words", "[Embedded file] _1", "Inner.", "[Embedded file] b.csv", "x,y"]
    assert notes_of(data) == ["left out: pictures and drawings (1)"]


def test_an_encrypted_file_is_refused() -> None:
    with pytest.raises(Unreadable, match="encrypted"):
        text_of(old_word("Secret.\r", flags=0x0300))


def word_6(
    text: bytes, *, lengths: Sequence[int] = (), tables: Mapping[int, bytes] = {}, version: int = 101, magic: int = 0xA5DC,
    flags: int = 0, system: int = 0,
) -> bytes:  # fmt: skip
    """Return the main stream of a file of Word 6 or 95. `lengths`: of the parts of the text. `system`: 0x100 for a Mac."""
    header = bytearray(0x300)
    struct.pack_into("<HH", header, 0, magic, version)
    struct.pack_into("<H", header, 10, flags)
    struct.pack_into("<H2xII", header, 0x14, system, len(header), len(header) + len(text))
    struct.pack_into("<8I", header, 0x34, *[*(lengths or [len(text)]), *[0] * 8][:8])
    at = len(header) + len(text)
    for number, content in tables.items():
        struct.pack_into("<II", header, 0x58 + 8 * number, at, len(content))
        at += len(content)
    return bytes(header) + text + b"".join(tables.values())


def fonts(*charsets: int) -> bytes:
    entries = [bytes([0, 0, 0, charset, 0]) + b"Font\0" for charset in charsets]
    return b"\0\0" + b"".join(bytes([len(entry)]) + entry for entry in entries)


FONTS = 15


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        ("Señor, été.", word_6("Señor, été.\r".encode("cp1252"), tables={FONTS: fonts(0, 2)})),
        ("Скорее всего, мы вас не обнаружим.",
         word_6("Скорее всего, мы вас не обнаружим.\r".encode("cp1251"), tables={FONTS: fonts(0, 2, 204)})),
        ("Une réunion à Évry, le café où nous étions.",
         word_6("Une réunion à Évry, le café où nous étions.\r".encode("cp1252"), tables={FONTS: fonts(0, 128)})),
        ("Une réunion", word_6("Une réunion\r".encode("mac_roman"), tables={FONTS: fonts(77)}, system=0x100)),
        ("東京 and 東京", word_6("東京 and 東京\r".encode("utf-16-le"), lengths=[10], version=104, magic=0xA699, flags=0x1000)),
    ],
)  # fmt: skip
def test_text_of_word_6(text: str, stream: bytes) -> None:
    assert texts(files.compound({"WordDocument": stream})) == [text]


def test_kreuzberg_refuses_word_6() -> None:
    """If a later version does not, our reader may be obsolete."""
    with pytest.raises(kreuzberg.KreuzbergError, match="magic number"):
        kreuzberg.extract_bytes_sync(files.compound({"WordDocument": word_6(b"One.\r")}), "application/msword")


def test_parts_of_word_6() -> None:
    tables = {
        FOOTNOTE_PLACES: numbers(4, 99) + b"\1\0", FOOTNOTES: numbers(0, 16, 17), HEADERS: numbers(0, 5),
        COMMENT_PLACES: numbers(14, 99) + bytes(20), COMMENTS: numbers(0, 12, 13),
    }  # fmt: skip
    text = b"Rent\x02 is due.\r\x05Next.\r" + b"\x02 Except March.\r" + b"Acme\r" + b"\x05late payer\r"
    lengths = [21, 16, 5, 0, 12]
    assert texts(files.compound({"WordDocument": word_6(text, lengths=lengths, tables=tables)})) == [
        "[Header] Acme", "Rent[1] is due.", "[Footnote 1] Except March.", "Next.", "[Comment] late payer",
    ]  # fmt: skip


def test_pieces_of_word_6() -> None:
    places = numbers(0, 4, 8) + struct.pack("<HIHHIH", 0, 0x304, 0, 0, 0x300, 0)
    tables = {PIECES: b"\x01\x02\x00??\x02" + numbers(len(places)) + places}
    assert texts(files.compound({"WordDocument": word_6(b"d\rX.One ", lengths=[8], tables=tables, flags=4)})) == [
        "One d",
        "X.",
    ]


def test_word_2_is_no_compound_file() -> None:
    data = word_6(b"One.\rTwo.\r", version=45, magic=0xA5DB)
    assert texts(data) == ["One.", "Two."]
    assert notes_of(data) == [
        "footnotes, headers and comments of files of Word 2 are not read; save it as .docx to keep them"
    ]


def test_names_of_streams_in_another_case() -> None:
    assert texts(files.compound({"WORDDOCUMENT": word_6(b"One.\r")})) == ["One."]


def test_an_embedded_word_file_does_not_decide_the_format() -> None:
    data = files.compound(
        {"ObjectPool/_1/WordDocument": word_6(b"Inner.\r"), "Contents": b"x"}
    )  # of an unknown program
    with pytest.raises(AssertionError):  # no format
        text_of(data)
