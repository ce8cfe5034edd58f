"""Outlook messages: msg files and winmail.dat, with their attachments, and texts that are only RTF or HTML."""

from __future__ import annotations

import base64
import struct

import pytest

from everlong_server.engine.documents.formats.readers.outlook.compressed_rtf import unpacked
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

ATTACHED = "__attach_version1.0_#00000000/__substg1.0_"
# The example of MS-OXRTFCP, 4.1.1.
COMPRESSED = bytes.fromhex(
    "2d0000002b0000004c5a4675f1c5c7a703000a007263706731323542320af32068656c090020627705b06c647d0a800fa0"
)


def utf16(text: str) -> bytes:
    return text.encode("utf-16-le")


def plain_rtf(text: bytes) -> bytes:
    return struct.pack("<II4sI", len(text) + 12, len(text), b"MELA", 0) + text


def fixed(*properties: tuple[int, int, bytes]) -> bytes:
    """Return the stream of a message's numbers and times."""
    return bytes(32) + b"".join(
        struct.pack("<HHI", kind, id, 6) + value.ljust(8, b"\0") for id, kind, value in properties
    )


def test_a_message() -> None:
    assert text_of(files.outlook("Rent für May", "Please pay.")).split("\n\n") == [
        "Subject: Rent für May",
        "Please pay.",
    ]


def test_the_name_of_another_formats_stream_in_its_text() -> None:
    assert text_of(files.outlook("Workbook", "Book the WordDocument.")).endswith("Book the WordDocument.")


def test_people_and_date() -> None:
    sent = ((1714550400 + 11644473600) * 10_000_000).to_bytes(8, "little")
    names = {"0C1A": "Ada Quill", "5D01": "ada@x.org", "0E04": "Bo", "0E03": "Cy; Di"}
    streams = {f"__substg1.0_{id}001F": utf16(text) for id, text in names.items()}
    text = text_of(files.outlook("Rent", "Pay.", streams | {"__properties_version1.0": fixed((0x39, 0x40, sent))}))
    assert text.splitlines()[:4] == [
        "From: Ada Quill <ada@x.org>", "To: Bo", "Cc: Cy; Di", "Date: Wed, 01 May 2024 08:00:00 +0000",
    ]  # fmt: skip


def test_attachments() -> None:
    message = files.outlook(
        "Rent",
        "See file.",
        {f"{ATTACHED}3707001F": utf16("lease.docx"), f"{ATTACHED}37010102": files.word(("Normal", "Terms."))},
    )
    assert text_of(message).split("\n\n")[1:] == ["See file.", "[Attachment] lease.docx", "Terms."]


def test_a_message_as_an_attachment() -> None:
    inner = {f"{ATTACHED}3701000D/{name}": value for name, value in {
        "__substg1.0_0037001F": utf16("Inner"), "__substg1.0_1000001F": utf16("Forwarded."), "__properties_version1.0": bytes(24),
    }.items()}  # fmt: skip
    assert text_of(files.outlook("Outer", "Below.", inner)).split("\n\n")[1:] == [
        "Below.", "[Attachment] Inner", "Subject: Inner", "Forwarded.",
    ]  # fmt: skip


def test_a_missing_attachment_is_noted() -> None:
    message = files.outlook("Rent", "See file.", {f"{ATTACHED}3707001F": utf16("lease.docx")})
    assert notes_of(message) == ["lease.docx: the message refers to it, but does not contain it"]


BODIES = {
    "HTML": {"10130102": b"<p>Caf\xc3\xa9 <b>now</b></p>"},
    "RTF": {"10090102": plain_rtf(rb"{\rtf1\ansi Caf\'e9 {\b now}\par}")},
    "HTML in RTF": {"10090102": plain_rtf(rb"{\rtf1\ansi\fromhtml1 {\*\htmltag64 <p>}Caf\'e9 now}")},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_text_that_is_not_plain(body: dict[str, bytes]) -> None:
    message = files.outlook("Hot", "", {f"__substg1.0_{id}": value for id, value in body.items()})
    assert text_of(message).split("\n\n")[1:] == ["Café now"]


def test_texts_in_a_code_page() -> None:
    streams = {
        "__substg1.0_0037001E": "Аренда".encode("cp1251"), "__properties_version1.0": fixed((0x3FFD, 3, struct.pack("<I", 1251))),
    }  # fmt: skip
    assert text_of(files.outlook("", "Pay.", streams)).startswith("Subject: Аренда")


@pytest.mark.parametrize(
    ("pages", "encoding"),
    [
        ({0x3FFD: 65001}, "cp1252"),  # Outlook writes it where it knows no better
        ({0x3FFD: 1200, 0x3FDE: 1252}, "cp1252"),
        ({0x3FDE: 28605}, "iso8859_15"),
        ({0x3FFD: 65001}, "utf-8"),
    ],
)
def test_a_code_page_that_is_wrong_or_unknown(pages: dict[int, int], encoding: str) -> None:
    properties = fixed(*((id, 3, struct.pack("<I", number)) for id, number in pages.items()))
    streams = {"__substg1.0_0037001E": "Größe, ärger".encode(encoding), "__properties_version1.0": properties}
    assert text_of(files.outlook("", "Pay.", streams)).startswith("Subject: Größe, ärger")


def test_compressed_rtf() -> None:
    assert unpacked(COMPRESSED) == b"{\\rtf1\\ansi\\ansicpg1252\\pard hello world}\r\n"


def test_winmail_dat() -> None:
    packed = files.tnef("Rent", {(0x1009, 0x102): plain_rtf(rb"{\rtf1\ansi Please {\b pay}.\par}")}, {"a.csv": b"x,y"})
    assert text_of(packed).split("\n\n") == ["Subject: Rent", "Please pay.", "[Attachment] a.csv", "x,y"]


def test_winmail_dat_in_an_email() -> None:
    packed = files.tnef("Rent", {(0x1000, 0x1E): b"Please pay."}, {"a.csv": b"x,y"})
    mail = (
        b"From: a@b.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=B\r\n\r\n--B\r\nContent-Type: text/plain\r\n\r\n"
        b"\r\n--B\r\nContent-Type: application/ms-tnef; name=winmail.dat\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    )

    assert text_of(mail + base64.encodebytes(packed) + b"--B--\r\n", "a.eml").split("\n\n")[1:] == [
        "[Attachment] winmail.dat", "Subject: Rent", "Please pay.", "[Attachment] a.csv", "x,y",
    ]  # fmt: skip
