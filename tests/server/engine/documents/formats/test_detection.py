"""The content of a file decides what it is; its name and declared type decide only between text and formats that are text."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_server.engine.documents.formats.catalogue import FORMATS, detect, format_of, is_accepted
from tests import files

KINDS = [
    (b"%PDF-1.7\n", None, None, "pdf"),
    (b"\r\n%PDF-1.7\n1 0 obj", None, None, "pdf"),
    (b"From a server:\n%PDF-1.7\n", "a.pdf", None, "pdf"),
    (b"A file begins with %PDF-1.7, says the standard.", "a.txt", None, None),
    (b"A file begins with %PDF-1.7 and then has 1 0 obj.", None, None, None),
    (b"# PDF\n\n%PDF-1.4\n1 0 obj\n<< >>", "a.md", None, None),
    (b"A server's words\r\n%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj", None, None, "pdf"),
    (b"PK\x03\x04..a.pdf%PDF-1.4\n1 0 obj", None, None, "zip"),
    (b"a.pdf".ljust(257, b"\0") + b"ustar".ljust(255, b"\0") + b"%PDF-1.4\n1 0 obj", "a.tar", None, "tar"),
    (b"PK\x03\x04", "a.txt", "text/plain", "zip"),
    (b"\xd0\xcf\x11\xe0", "a.docx", None, "ole"),
    (b"{\\rtf1", "a.doc", "application/msword", "rtf"),
    (b"<!doctype html><p>", "a.txt", None, "html"),
    (b"<!doctype html><p>", "a.md", None, None),
    (b"<div align=center>\n# A project", "README.md", "text/html", None),
    (b"<div align=center>", None, "text/html", "html"),
    (b"<div align=center>", None, "text/plain", None),
    (b"<!-- a comment -->\n<html>", None, None, "html"),
    (b"<!-- --> " * 400 + b"Words after comments", "a.md", None, None),
    (b"<!---->" * 500 + b"<html>", None, None, "html"),
    (b"Words without a tag", "a.html", "text/html", None),
    (b"1 < 2 and 3 > 2", "a.html", None, None),
    (b"<template>\n", "a.vue", None, None),
    (b"From: a@b\r\nTo: c@d\r\n\r\nHello", "a.eml", None, "eml"),
    (b"From: a@b\r\nMIME-Version: 1.0\r\nContent-Type: text/plain\r\n\r\nHello", None, None, "eml"),
    (b"From: a@b\nTo: c@d\n\nA letter", None, None, None),
    (b"From: a@b\nMIME-Version: 1.0\nContent-Type: text/plain\n\nA letter", "a.txt", None, "eml"),
    (b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=b\r\n\r\n", None, None, "mhtml"),
    (b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=b\r\n\r\n", "a.mht", None, "mhtml"),
    (b"No headers", "a.eml", "message/rfc822", None),
    ("\ufeff<html>".encode("utf-16"), None, None, "html"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "filename", "media_type", "kind"), KINDS)
def test_what_a_file_is(head: bytes, filename: str | None, media_type: str | None, kind: str | None) -> None:
    assert detect(head, filename, media_type) == kind


PACKED = {
    "a book without its container": ({"OEBPS/content.opf": "", "OEBPS/a.xhtml": ""}, "epub"),
    "a book whose package is not in a folder": ({"content.opf": "", "a.html": ""}, "epub"),
    "the folder of an unpacked book": ({"B/META-INF/container.xml": "", "B/OPS/a.opf": "", "B/OPS/text/a.xhtml": ""}, "epub"),
    "a book of a library with its description": ({"A/B/metadata.opf": "", "A/B/B.epub": "", "A/B/notes.txt": ""}, "zip"),
    "a description beside two forms of a book": ({"metadata.opf": "", "B.epub": "", "B.html": ""}, "zip"),
    "books of a library with pages": ({"A/B/metadata.opf": "", "A/B/B.html": "", "C/D/D.pdf": ""}, "zip"),
    "a folder of presentations": ({"talk.key/index.apxl.gz": "", "notes.docx": ""}, "zip"),
    "a presentation that is a folder": ({"talk.key/index.apxl.gz": "", "talk.key/image.jpg": ""}, "iwork"),
    "a project with a file of this name": ({"P/META-INF/container.xml": "", "P/a.py": ""}, "zip"),
}  # fmt: skip


@pytest.mark.parametrize(("entries", "kind"), PACKED.values(), ids=PACKED)
def test_which_archives_are_books(entries: dict[str, str], kind: str, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(files.zipped(entries))
    assert format_of(file, "zip") == kind


def test_the_declared_types_of_all_formats_and_of_text_are_accepted() -> None:
    for format in FORMATS.values():
        assert all(is_accepted(media_type) for media_type in format.media_types)
    assert is_accepted("application/json")
    assert is_accepted("text/x-anything")
    assert not is_accepted("image/x-icon")
