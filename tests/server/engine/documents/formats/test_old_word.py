"""Word files of 1997 to 2003: the parts of their text are told apart."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pytest

from everlong_server.engine.documents.formats.blocks import Unreadable
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

FOOTNOTE_PLACES, FOOTNOTES, COMMENT_PLACES, COMMENTS, HEADERS, PIECES, AUTHORS = 2, 3, 4, 5, 11, 33, 36


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def old_word(
    main: str, *, footnotes: str = "", headers: str = "", comments: str = "", boxes: str = "", tables: Mapping[int, bytes] = {},
    flags: int = 0x0200, streams: Mapping[str, bytes] = {},
) -> bytes:  # fmt: skip
    """Return a file (MS-DOC) with these parts of the text. `tables`: by their number in the list of places."""
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
    return files.compound({"WordDocument": bytes(header) + text.encode("utf-16-le"), "1Table": table, **streams})


def texts(data: bytes) -> Sequence[str]:
    return text_of(data).split("\n\n")


def test_paragraphs_fields_and_tables() -> None:
    main = "One\x0bline.\rSee \x13HYPERLINK x\x14the site\x15.\ra\x07b\x07\x07c\x07d\x07\x07Last.\r"
    assert texts(old_word(main)) == ["One\nline.", "See the site.", "a\tb\nc\td\nLast."]


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
