"""A message keeps all of its text, also when a line of it, or its own fields, speak of parts that it does not have."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from everlong_server.engine.documents.formats.blocks import Notes, Unreadable
from everlong_server.engine.documents.formats.catalogue import detect
from everlong_server.engine.documents.formats.readers import mail
from everlong_server.engine.documents.formats.worker import read_nested
from tests.server.engine.documents.formats.reading import notes_of, text_of

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


def envelope(sender: str) -> bytes:
    return f"From {sender} Mon Jan  1 00:00:00 2024\n".encode()


ONE = envelope("ada@x.example") + b"From: ada@x.example\nSubject: one\n\n"
TWO = envelope("bo@y.example") + b"From: bo@y.example\nSubject: two\n\nBye\n"
PROSE = {
    "a line": b"Hi,\nFrom here on we go.\n\n",
    "a paragraph": b"Hi,\n\nFrom Monday we work from home.\n\n",
    "quoted fields": b"Hi,\n\nFrom: Cy\nTo: Di\n\n",
    "a time": b"Hi,\n\nFrom 10:00 we work from home.\n\n",
    "a time before a field": b"Hi,\nFrom 10:00 we work from home.\nWhere: here.\n\n",
    "a date": b"Hi,\nFrom Mon Jan 1 at 10:00 we go.\n\n",
}


@pytest.mark.parametrize("body", PROSE.values(), ids=PROSE)
def test_a_line_of_a_message_in_a_mailbox_begins_no_message(body: bytes) -> None:
    text = text_of(ONE + body + TWO, "a.mbox")
    assert text == f"From: ada@x.example\nSubject: one\n\n{body.decode()}From: bo@y.example\nSubject: two\n\nBye"


SEPARATORS = {
    "no empty line before it": (b"Hi\n", envelope("bo@y.example")),
    "two words for the sender": (b"Hi\n\n", envelope("bo at y.example")),
    "a time zone": (b"Hi\n\n", b"From 17@xxx Mon Jan 01 00:00:00 +0000 2024\n"),
    "no address": (b"Hi\n\n", b"From - Mon Jan 01 00:00:00 2024\n"),
    "a date in digits": (b"Hi\n\n", b"From bo@y.example 2024-01-01 00:00:00\n"),
    "a date in another language": (b"Hi\n\n", b"From bo@y.example Mo Jan  1 0:00:00 2024\n"),
    "line ends of Windows": (b"Hi\r\n\r\n", b"From bo@y.example Mon Jan  1 00:00:00 2024\r\n"),
}  # fmt: skip


@pytest.mark.parametrize(("end", "separator"), SEPARATORS.values(), ids=SEPARATORS)
def test_what_separates_the_messages_of_a_mailbox(end: bytes, separator: bytes) -> None:
    text = text_of(ONE + end + separator + b"Subject: two\n\nBye\n", "a.mbox")
    assert text == "From: ada@x.example\nSubject: one\n\nHi\n\nSubject: two\n\nBye"


def test_a_mark_before_from_in_a_mailbox_is_dropped() -> None:
    assert text_of(ONE + b">From here\n>>From there\n", "a.mbox").endswith("one\n\nFrom here\n>From there")


def test_a_message_in_a_mailbox_that_cannot_be_read_is_left_out() -> None:
    box = ONE + b"Hi\n\n" + envelope("cy@z.example") + b"\n" + TWO
    assert text_of(box, "a.mbox").split("\n\n") == [
        "From: ada@x.example\nSubject: one", "Hi", "From: bo@y.example\nSubject: two", "Bye",
    ]  # fmt: skip
    assert notes_of(box, "a.mbox") == ["message 2: it was left out: the message cannot be read: it has no headers"]


def test_messages_in_a_mailbox_that_cannot_be_read_do_not_stay_in_memory(tmp_path: Path) -> None:
    alive = []

    class Counted(Notes):
        def add(self, text: str, *, page: int | None = None, part: str | None = None) -> None:
            alive.append(count())

    def count() -> int:
        return sum(type(each) is Unreadable for each in gc.get_objects())

    file = tmp_path / "a.mbox"
    file.write_bytes((envelope("cy@z.example") + b"\n\n") * 5)
    before = count()
    with pytest.raises(Unreadable, match="it has no headers"):
        list(mail.read(file, Counted(read_nested)))
    assert alive == [before + 1] * 5


FLOWED = {
    "paragraph": ("flowed", "One \ntwo \nthree.\n\nFour.", "One two three.\n\nFour."),
    "spaces that are dropped": ("flowed; delsp=yes", "Win \nter, and \n so", "Winter, andso"),
    "a space before a line": ("flowed", "One\n From there\n > two", "One\nFrom there\n> two"),
    "quoted lines": ("flowed", "> a \n> b\n>> c \n>> d\ne \n> f", "> a b\n>> c d\ne \n> f"),
    "a signature": ("flowed", "Words\n-- \nAda", "Words\n-- \nAda"),
    "a signature after a line that goes on": ("flowed", "Words \n-- \nAda", "Words \n-- \nAda"),
    "an empty first line": ("flowed; delsp=yes", "\n> a \n> b \n\nc", "> ab\n\nc"),
    "fixed lines": ("fixed", "One \ntwo", "One \ntwo"),
}


@pytest.mark.parametrize(("format", "body", "text"), FLOWED.values(), ids=FLOWED)
def test_lines_that_go_on_are_joined(format: str, body: str, text: str) -> None:
    fields = f"Content-Type: text/plain; charset=utf-8; format={format}\n\n".encode()
    assert text_of(HEAD + fields + body.encode(), "a.eml").partition("Rent\n\n")[2] == text


def parts(*bodies: str) -> bytes:
    """Return a message with these parts, each with its fields."""
    inside = "".join(f"--b\r\nContent-Type: {body}\r\n" for body in bodies)
    head = "From: a@x.org\r\nSubject: Rent\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    return f"{head}{inside}--b--\r\n".encode()


OTHER_PARTS = {
    "receipt": (
        "message/disposition-notification\r\n\r\nFinal-Recipient: rfc822; bo@x.org\r\nDisposition: manual-action; displayed\r\n",
        "Final-Recipient: rfc822; bo@x.org\nDisposition: manual-action; displayed",
    ),
    "complaint": ("message/feedback-report\r\n\r\nFeedback-Type: abuse\r\n", "Feedback-Type: abuse"),
    "rich text": ("text/rtf\r\n\r\n{\\rtf1\\ansi The \\b rent\\b0  is due.\\par}\r\n", "The rent is due."),
    "invitation": (
        "text/calendar\r\n\r\nBEGIN:VEVENT\r\nSUMMARY:The rent is d\r\n ue\\, as agreed\\n(C:\\\\rent)\r\nEND:VEVENT\r\n",
        "BEGIN:VEVENT\nSUMMARY:The rent is due, as agreed\n(C:\\rent)\nEND:VEVENT",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("part", "text"), OTHER_PARTS.values(), ids=OTHER_PARTS)
def test_a_part_of_a_message_that_is_a(part: str, text: str) -> None:
    data = parts("text/plain\r\n\r\nHello.\r\n", part)
    assert text_of(data, "a.eml").replace("\r", "") == f"From: a@x.org\nSubject: Rent\n\nHello.\n\n{text}"
    assert notes_of(data, "a.eml") == []


def test_a_saved_page_begins_with_its_title() -> None:
    page = (
        b"From: <Saved by Blink>\r\nSubject: Terms\r\nMIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=B\r\n\r\n"
        b"--B\r\nContent-Type: text/html\r\n\r\n<title>Terms of the loan</title><p>Ten years.</p>\r\n--B--\r\n"
    )
    assert text_of(page, "a.mhtml") == "Terms of the loan\n\nTen years."


@pytest.mark.parametrize("kind", ["text/calendar", "text/vcard"])
def test_the_folded_lines_of_an_attachment(kind: str) -> None:
    attached = f'\r\n\r\n--B\r\nContent-Type: {kind}; charset=utf-8; name="a.txt"\r\n\r\nNOTE:The me\r\n eting is mov\r\n ed.\r\n--B--\r\n'
    mail = (
        "From: a@x.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=B\r\n\r\n--B\r\n\r\nHello."
        + attached
    )
    assert "NOTE:The meeting is moved." in text_of(mail.encode(), "a.eml")


def test_a_folded_line_of_an_old_contact_keeps_its_space() -> None:
    mail = (
        "From: a@x.org\r\nMIME-Version: 1.0\r\nContent-Type: text/x-vcard\r\n\r\n"
        "BEGIN:VCARD\r\nVERSION:2.1\r\nNOTE:call before\r\n noon\r\nEND:VCARD\r\n"
    )
    assert "NOTE:call before noon" in text_of(mail.encode(), "a.eml")
