"""Files that other programs made: LibreOffice 7.4, pandoc 3, Chromium's print to PDF, Ghostscript, cairo, and libraries of Python."""

from __future__ import annotations

import base64
import lzma
from email.message import EmailMessage
from pathlib import Path

import kreuzberg
import pytest

from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.presentations import PICTURE, presentation, shape, slide

FOLDER = Path(__file__).parents[4] / "data" / "formats"
LEASE = ("Über Lease", "Terms", "Rent is 300 crowns", "naïvely", "Except in August.")
SHEET = ("Rents", "Name\tRent\tDate", "Ada", "300.5\t2024-01-02", "Zweite", "größe\t1", "secret sheet")
SLIDES = (
    "Slide title 2",
    "Bullet alpha 1",
    "Bullet beta 1",
    "cell00\tcell01\ncell10\tcell11",
    "[Speaker notes] Speaker note 2",
)
STORY = (
    "Chapter One",
    "The blue cat sat — naïvely.",
    "cell00\tcell01\ncell10\tcell11",
    "Chapter Two",
    "日本 end.",
    "Running header X",
)
RENTS = {
    "German": ("Über den Mietvertrag", "Die Miete beträgt 300 Kronen, außer im August.", "Größenordnung"),
    "Polish": ("Umowa najmu", "Czynsz wynosi trzysta złotych – z góry.", "Rozdział"),
    "Russian": ("Договор аренды", "Плата составляет триста рублей в месяц.", "Аренда"),
    "Japanese": ("賃貸契約", "家賃は毎月三百円です。", "賃貸"),
    "Arabic": ("عقد الإيجار", "الإيجار ثلاثمائة في الشهر.", "إيجار"),
}
ALL = [words for language in RENTS.values() for words in language]
LATIN = [words for language in ("German", "Polish", "Russian") for words in RENTS[language]]
HOLDS = {
    "python-docx.docx": (*ALL, "[Header] Running header", "1. Größenordnung", "5. إيجار", "Ada\t300", "[Comment by Bo] late payer"),
    "xlsxwriter.xlsx": (
        *ALL, "2024-01-02\t25%\nplain bold\n2", "[Chart] Rent by year", "Box words", "[Comment on A1] late payer",
        "[Header] Confidential",
    ),
    "odfpy.odt": (*ALL, "1. Größenordnung", "im August.[1]\n\n[Footnote 1] Note Größenordnung"),
    "odfpy.ods": (*ALL, "300.5"),
    "ebooklib.epub": (*ALL, "3. Größenordnung"),
    "reportlab.pdf": (*LATIN[:2], *LATIN[3:5], *LATIN[6:8], "tenant: Ida Roth", "Ada 310"),
    "weasyprint.pdf": (*LATIN, "Malfunctioning thermostats overcompensate"),
    "libreoffice.epub": (*ALL, "Ada\t300"),
    "libreoffice.xhtml": ALL,
    "libreoffice-7.rtf": (*ALL, "[Header] Running header", "1.\tGrößenordnung", "[Comment by Bo] late payer"),
    "ghostscript.pdf": (*LATIN, "Malfunctioning thermostats overcompensate"),
    "cairo.pdf": ("Über Lease", "malfunctioning thermostats", "Ida Roth"),
    "xlwt.xls": ("Größe", "Über den Mietvertrag\tДоговор аренды\t賃貸契約", "2024-01-02\t25%\t01234"),
    "pandoc.docx": (*LEASE, "x^2+a/b", "a\tb\n1\t2", "crowns[1] per month"),
    "pandoc.odt": (*LEASE, "x^2+a/b", "a\tb\n1\t2", "crowns[1] per month"),
    "pandoc.pptx": (*LEASE, "x^2+a/b", "a\tb\n1\t2"),
    "pandoc.epub": (*LEASE, "crowns[1] per month"),
    "pandoc.html": (*LEASE, "crowns[1] per month"),
    "pandoc.rtf": (*LEASE, "crowns[1] per month"),
    "libreoffice.docx": (*LEASE, "x^2+a/b", "a\tb\n1\t2", "[Footer] 1"),
    "libreoffice.pdf": LEASE,
    "libreoffice.doc": ("The rent is due monthly.", "Rent is 300 crowns.[1]", "[Footnote 1] Except in August, when no rent is due."),
    "libreoffice.odt": STORY,
    "libreoffice.rtf": STORY,
    "libreoffice.odp": SLIDES,
    "python-pptx.pptx": SLIDES,
    "libreoffice.ppt.xz": ("One", "Hello slide"),
    "libreoffice.ods": (*SHEET, "601", "[Comment on A2] late payer"),
    "libreoffice.xls": (*SHEET, "601", "late payer"),
    "openpyxl.xlsx": (*SHEET, "[Comment by Bo on A2] late payer"),
    "chromium.pdf": ("Über Lease", "malfunctioning thermostats", "Ida Roth"),
}  # fmt: skip


def content(name: str) -> bytes:
    data = (FOLDER / name).read_bytes()
    return lzma.decompress(data) if name.endswith(".xz") else data


@pytest.mark.parametrize(("name", "texts"), HOLDS.items(), ids=HOLDS)
def test_the_text_of_another_programs_file(name: str, texts: tuple[str, ...]) -> None:
    text = text_of(content(name), name.removesuffix(".xz"))
    assert [each for each in texts if each not in text] == []
    assert "\ufffd" not in text


LOST = {
    "python-docx.docx": ("Running header", "late payer"),
    "libreoffice.doc": ("Except in August, when no rent is due.",),
    "libreoffice.xls": ("late payer",),
    "openpyxl.xlsx": ("late payer",),
    "xlsxwriter.xlsx": ("Rent by year", "Box words", "late payer", "Confidential"),
    "odfpy.ods": ("Größenordnung",),
    "pandoc.rtf": ("Except in August.",),
}
"""Texts that kreuzberg does not return."""
RTF = rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}{\f1\fcharset204 Arial Cyr;}}\f1 \'cf\'f0\'e8\'e2\'e5\'f2\f0{\*\annotation late payer}\par}"
OUTLOOK = files.outlook("Rent", "", {"__substg1.0_10130102": b"<p>Only as HTML.</p>"})


# These tests hold for the version of kreuzberg in constraints.txt. Where a later version fails one, our own reader may be obsolete.
@pytest.mark.parametrize(("name", "texts"), LOST.items(), ids=LOST)
def test_kreuzberg_loses_texts_of_another_programs_file(name: str, texts: tuple[str, ...]) -> None:
    theirs, ours = kreuzberg.extract_file_sync(str(FOLDER / name)).content, text_of(content(name), name)
    assert [each for each in texts if each in theirs or each not in ours] == []


@pytest.mark.parametrize(
    ("data", "media_type", "texts"),
    [(RTF, "application/rtf", ("Привет", "late payer")), (OUTLOOK, "application/vnd.ms-outlook", ("Only as HTML.",))],
    ids=["RTF", "Outlook"],
)
def test_kreuzberg_loses_texts(data: bytes, media_type: str, texts: tuple[str, ...]) -> None:
    theirs, ours = kreuzberg.extract_bytes_sync(data, media_type).content, text_of(data)
    assert [each for each in texts if each in theirs or each not in ours] == []


@pytest.mark.parametrize(
    "media_type", ["application/vnd.ms-tnef", "application/ms-tnef", "application/vnd.oasis.opendocument.presentation"]
)
def test_kreuzberg_refuses(media_type: str) -> None:
    with pytest.raises(kreuzberg.ValidationError, match=media_type):
        kreuzberg.extract_bytes_sync(b"", media_type)


MAIL = (
    "From: Ada Quill <ada@x.org>\r\nTo: bo@y.org\r\nSubject: =?utf-8?q?Rent_f=C3=BCr_May?=\r\nMIME-Version: 1.0\r\n"
    "Content-Type: multipart/mixed; boundary=B\r\n\r\n--B\r\nContent-Type: text/plain; charset=windows-1252\r\n"
    "Content-Transfer-Encoding: quoted-printable\r\n\r\ncaf=E9 at noon\r\n--B\r\n"
    'Content-Type: text/csv\r\nContent-Disposition: attachment; filename="a.csv"\r\n\r\nx,y\r\n--B\r\n'
    'Content-Type: image/png\r\nContent-Disposition: attachment; filename="b.png"\r\n\r\n\x89PNG\0\r\n--B--\r\n'
).encode("latin-1")


def test_an_email_with_attachments() -> None:
    assert text_of(MAIL, "a.eml") == (
        "From: Ada Quill <ada@x.org>\nTo: bo@y.org\nSubject: Rent für May\n\ncafé at noon\n\n[Attachment] a.csv\n\nx,y"
    )
    assert notes_of(MAIL, "a.eml") == ["b.png: it was left out: the picture is damaged"]


def test_an_attached_message_in_base64() -> None:
    inner = base64.b64encode(b"Subject: Inner\r\n\r\nInner words.").decode()
    head = "Subject: Outer\r\nMIME-Version: 1.0\r\nContent-Type: message/rfc822\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    assert text_of((head + inner).encode(), "a.eml").endswith("Subject: Inner\n\nInner words.")


def mail(subject: str, text: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["Subject"] = "ada@x.org", subject
    message.set_content(text)
    return message


def test_all_texts_of_an_email_are_read() -> None:
    message = mail("Minutes", "Plain words.")
    message.add_alternative("<p>The same as HTML.</p>", subtype="html")
    message.make_mixed()
    message.attach(part("<p>A footer.</p>", "html"))
    message.attach(part("Unsubscribe here.", "plain"))
    assert text_of(message.as_bytes(), "a.eml").split("\n\n")[1:] == ["Plain words.", "A footer.", "Unsubscribe here."]
    assert notes_of(message.as_bytes(), "a.eml") == []


def part(text: str, subtype: str) -> EmailMessage:
    made = EmailMessage()
    made.set_content(text, subtype=subtype)
    return made


def test_an_email_inside_an_email_is_read_once() -> None:
    inner, outer = mail("Inner", "Forwarded."), mail("Outer", "See below.")
    inner.add_attachment("Attached words.", filename="a.txt")
    outer.add_attachment(inner)
    text = text_of(outer.as_bytes(), "a.eml")
    assert [text.count(words) for words in ("See below.", "Forwarded.", "Attached words.")] == [1, 1, 1]


def test_an_unnamed_part_that_is_no_text_is_noted() -> None:
    message = mail("Picture", "Look.")
    message.add_attachment(b"\x89PNG", "image", "png", disposition="inline")
    assert notes_of(message.as_bytes(), "a.eml") == ["left out: parts without a name: image/png (1)"]


def test_a_damaged_file_in_an_archive_does_not_spoil_the_others() -> None:
    damaged = b"PK\x03\x04 broken"
    packed = files.zipped({"a.txt": "First.", "b.docx": damaged, "c.txt": "Last."})
    assert text_of(packed) == "[File] a.txt\n\nFirst.\n\n[File] c.txt\n\nLast."
    assert notes_of(packed) == ["b.docx: it was left out: it is a damaged ZIP file (File is not a zip file)"]


def test_an_archive_of_documents() -> None:
    packed = files.rezipped(
        files.zipped({"b/note.txt": b"A note.", "a.pdf": files.pdf(["A page."]), "c.bin": b"\0"}), {}
    )
    assert text_of(packed) == "[File] a.pdf\n\nA page.\n\n[File] b/note.txt\n\nA note."
    assert notes_of(packed) == ["c.bin: its format is not supported; it was left out"]


HEADING = '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Map</w:t></w:r></w:p>'
DRAWN = '<w:p><w:r><w:t>x</w:t><w:drawing><a:blip xmlns:a="urn:a"/></w:drawing></w:r></w:p>'
FRAME = "<text:p>x<draw:frame><draw:image/></draw:frame></text:p>"
DECK = presentation(*(slide(shape("x") + picture) for picture in (PICTURE, "", PICTURE, PICTURE)))
PLACES = {
    "slides": (DECK, "left out: pictures without a description (3: pages 1, 3-4)"),
    "one slide": (presentation(slide(shape("x")), slide(shape("x") + PICTURE)), "page 2: left out: pictures without a description (1)"),
    "headings": (files.word_of(DRAWN + HEADING + DRAWN + DRAWN), "left out: pictures without a description (3: Map; elsewhere)"),
    "one heading": (files.word_of(HEADING + DRAWN), "Map: left out: pictures without a description (1)"),
    "slides of OpenDocument": (
        odf(f"<draw:page>{FRAME}</draw:page><draw:page>{FRAME}</draw:page>", "presentation"),
        "left out: pictures without a description (2: pages 1-2)",
    ),
    "headings of OpenDocument": (odf(f"<text:h>Map</text:h>{FRAME}"), "Map: left out: pictures without a description (1)"),
    "a heading of RTF": (rb"{\rtf1\outlinelevel0 Map\par x {\pict\pngblip 8950}\par}", "Map: left out: pictures (1)"),
    "a page of a PDF": (
        files.pdf_of(f"{files.pdf_lines((50, 700, 'Words'))} q 9 0 0 9 0 0 cm BI /W 1 /H 1 /BPC 8 /CS /G ID x EI Q"),
        "page 1: left out: pictures (1)",
    ),
    "files": (
        files.zipped({"a.html": "<html>x<img src=y>", "b.pptx": DECK}),
        "left out: pictures without a description (4: a.html; b.pptx pages 1, 3-4)",
    ),
    "many": (
        files.zipped({f"{n:03}.html": "<html>x<img src=y>" for n in range(99)}),
        "left out: pictures without a description (99: " + "; ".join(f"{n:03}.html" for n in range(9)) + ", …)",
    ),
    "pages": (files.epub(["x<img src='y'/>"]), "OEBPS/text/chapter 0.xhtml: left out: pictures without a description (1)"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "note"), PLACES.values(), ids=PLACES)
def test_a_note_says_where_something_was_left_out(data: bytes, note: str) -> None:
    assert notes_of(data) == [note]


def test_an_archive_inside_archives_is_read_to_a_limit() -> None:
    data = b"Deep."
    for depth in range(6):
        data = files.zipped({f"{depth}.txt" if depth == 0 else f"{depth}.zip": data})
    assert notes_of(data) == ["1.zip: it is a file inside 4 files and was left out"]


@pytest.mark.parametrize("name", [b"X" * 5, b"\0" * 5])
def test_a_cut_archive_with_an_entry_without_a_name(name: bytes) -> None:
    packed = files.zipped({"XXXXX": "Nameless.", "b.txt": "Named."}).replace(b"XXXXX", name)[:-60]
    assert "Named." in text_of(packed)
