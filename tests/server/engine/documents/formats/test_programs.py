"""Files that other programs made: LibreOffice 7.4, pandoc 3 (`pandoc.*`), Chromium's print to PDF, python-pptx, openpyxl."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

FOLDER = Path(__file__).parents[4] / "data" / "formats"
LEASE = ("Über Lease", "Terms", "Rent is 300 crowns", "naïvely", "Except in August.")
SHEET = ("Rents", "Name\tRent\tDate", "Ada", "300.5\t2024-01-02", "Zweite", "größe\t1", "secret sheet")
SLIDES = (
    "Slide title 2",
    "Bullet alpha 1\nBullet beta 1",
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
HOLDS = {
    "pandoc.docx": (*LEASE, "x^2+a/b", "a\tb\n1\t2", "crowns[1] per month"),
    "pandoc.odt": (*LEASE, "x^2+a/b", "a\tb\n1\t2", "crowns[1] per month"),
    "pandoc.pptx": (*LEASE, "x^2+a/b", "a\tb\n1\t2"),
    "pandoc.epub": (*LEASE, "crowns[1] per month"),
    "pandoc.html": (*LEASE, "crowns[1] per month"),
    "pandoc.rtf": LEASE[:-1],
    "libreoffice.docx": (*LEASE, "x^2+a/b", "a\tb\n1\t2", "[Footer] 1"),
    "libreoffice.pdf": LEASE,
    "libreoffice.doc": ("The rent is due monthly.", "Rent is 300 crowns."),
    "libreoffice.odt": STORY,
    "libreoffice.rtf": STORY,
    "libreoffice.odp": SLIDES,
    "python-pptx.pptx": SLIDES,
    "libreoffice.ppt.xz": ("One", "Hello slide"),
    "libreoffice.ods": (*SHEET, "601", "[Comment] late payer"),
    "libreoffice.xls": (*SHEET, "601"),
    "openpyxl.xlsx": SHEET,
    "chromium.pdf": ("Über Lease", "malfunctioning thermostats", "Ida Roth"),
}  # fmt: skip
LOST = {
    "pandoc.rtf": "left out: footnotes (1)",
    "libreoffice.doc": "footnotes, headers and comments of old Word files are not read; save it as .docx to keep them",
    "openpyxl.xlsx": "left out: comments of a sheet (1)",
}


def content(name: str) -> bytes:
    data = (FOLDER / name).read_bytes()
    return lzma.decompress(data) if name.endswith(".xz") else data


@pytest.mark.parametrize(("name", "texts"), HOLDS.items(), ids=HOLDS)
def test_the_text_of_another_programs_file(name: str, texts: tuple[str, ...]) -> None:
    text = text_of(content(name), name.removesuffix(".xz"))
    assert [each for each in texts if each not in text] == []
    assert "\ufffd" not in text


@pytest.mark.parametrize(("name", "note"), LOST.items(), ids=LOST)
def test_what_the_library_does_not_read_is_noted(name: str, note: str) -> None:
    assert note in notes_of(content(name))


def test_an_outlook_message() -> None:
    assert text_of(files.outlook("Rent für May", "Please pay.")).split("\n\n") == [
        "Subject: Rent für May",
        "Please pay.",
    ]


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
    assert notes_of(MAIL, "a.eml") == ["b.png: its format is not supported; it was left out"]


def test_an_archive_of_documents() -> None:
    packed = files.rezipped(
        files.zipped({"b/note.txt": b"A note.", "a.pdf": files.pdf(["A page."]), "c.bin": b"\0"}), {}
    )
    assert text_of(packed) == "[File] a.pdf\n\nA page.\n\n[File] b/note.txt\n\nA note."
    assert notes_of(packed) == ["c.bin: its format is not supported; it was left out"]


def test_an_archive_inside_archives_is_read_to_a_limit() -> None:
    data = b"Deep."
    for depth in range(6):
        data = files.zipped({f"{depth}.txt" if depth == 0 else f"{depth}.zip": data})
    assert notes_of(data) == ["1.zip: it is a file inside 4 files and was left out"]
