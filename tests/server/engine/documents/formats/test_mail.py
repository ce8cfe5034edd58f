"""A message keeps all of its text, also when a line of it, or its own fields, speak of parts that it does not have."""

from __future__ import annotations

import pytest

from everlong_server.engine.documents.formats.catalogue import detect
from tests.server.engine.documents.formats.reading import text_of

HEAD = b"From: ada@x.example\r\nTo: bo@y.example\r\nSubject: Rent\r\n"
FIRST = HEAD + b"\r\n"
LINE = b"Content-Type: multipart/mixed; boundary=B"
BODIES = {
    "first line": (FIRST + LINE + b"\r\n\r\nis what it must say.", ["multipart/mixed", "is what it must say."]),
    "later line": (FIRST + b"Write\r\n" + LINE + b"\r\n\r\nthere.", ["Write", "multipart/mixed", "there."]),
    "fields, no parts": (HEAD + LINE + b"\r\n\r\nJust words.", ["Just words."]),
    "fields, a signature": (HEAD + LINE + b"\r\n\r\nJust words.\r\n--Ada\r\n\r\nP.S. More.", ["Just words.", "--Ada", "P.S. More."]),
    "fields, no boundary": (HEAD + b"Content-Type: multipart/mixed\r\n\r\nJust words.", ["Just words."]),
}  # fmt: skip


@pytest.mark.parametrize(("message", "texts"), BODIES.values(), ids=BODIES)
def test_a_message_without_parts_keeps_its_text(message: bytes, texts: list[str]) -> None:
    text = text_of(message, "a.eml")
    assert "Subject: Rent" in text
    assert [words for words in texts if words not in text] == []


REAL = {
    "a gap": FIRST + LINE + b"\r\n\r\n--B\r\nContent-Type: text/plain\r\n\r\nPart words.\r\n--B--\r\n",
    "a wrong boundary": HEAD + LINE + b"\r\n\r\n--C\r\nContent-Type: text/plain\r\n\r\nPart words.\r\n--C--\r\n",
    "parts without fields": HEAD + LINE + b"\r\n\r\n--C\r\n\r\nPart words.\r\n--C--\r\n",
}


@pytest.mark.parametrize("message", REAL.values(), ids=REAL)
def test_parts_with_a_damaged_beginning_are_still_parts(message: bytes) -> None:
    assert text_of(message, "a.eml").endswith("Subject: Rent\n\nPart words.")


def test_a_text_about_messages_is_no_message() -> None:
    assert detect(b"How to write mail\n\n" + LINE + b"\n\n--B\n", "a.txt") is None
    assert detect(b"How to write mail\n\nMIME-Version: 1.0\n" + LINE + b"\n\n--B\n") is None
