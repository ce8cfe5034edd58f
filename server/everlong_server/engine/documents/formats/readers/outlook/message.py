"""`Message`: the properties of an Outlook message (MS-OXPROPS), and the blocks that they become."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.charset import best_encoding, decode, is_utf8
from everlong_server.engine.documents.formats.readers.html import render
from everlong_server.engine.documents.formats.readers.outlook.compressed_rtf import unpacked
from everlong_server.engine.documents.formats.readers.rich_text import rtf

SUBJECT, SENDER, ADDRESS, SMTP_ADDRESS, TO, CC, BCC = 0x0037, 0x0C1A, 0x0C1F, 0x5D01, 0x0E04, 0x0E03, 0x0E02
SENT, RECEIVED, BODY, RTF, HTML, CODE_PAGE, INTERNET_CODE_PAGE = 0x0039, 0x0E06, 0x1000, 0x1009, 0x1013, 0x3FFD, 0x3FDE
DATA, FILE_NAME, LONG_FILE_NAME, DISPLAY_NAME, CONTENT_ID = 0x3701, 0x3704, 0x3707, 0x3001, 0x3712
ANSI, UNICODE, BINARY, OBJECT, TIME, NUMBER = 0x001E, 0x001F, 0x0102, 0x000D, 0x0040, 0x0003
_CODE_PAGES = {
    65001: "utf-8", 28591: "cp1252", 20127: "cp1252", 936: "gb18030", 54936: "gb18030", 20866: "koi8_r", 21866: "koi8_u",
    50220: "iso2022_jp", 50221: "iso2022_jp", 50222: "iso2022_jp", 51932: "euc_jp", 51949: "euc_kr",
    **{28590 + number: f"iso8859_{number}" for number in range(2, 16)},
}  # fmt: skip
"""Encodings by the numbers that Windows gives them, except those of the form "cp1251"."""
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".emf", ".wmf")


@dataclass(slots=True)
class Properties:
    """The properties of a message or an attachment. Keys: the property's id and type."""

    values: dict[tuple[int, int], bytes] = field(default_factory=dict)
    code_page: str = "cp1252"

    def text(self, *ids: int) -> str:
        """Return the first of these properties that has a text; "" if none has."""
        for id in ids:
            for kind, codec in ((UNICODE, "utf-16-le"), (ANSI, self.code_page)):
                if text := _decoded(self.values.get((id, kind), b""), codec).rstrip("\0").strip():
                    return text
        return ""

    def number(self, *ids: int) -> int:
        """Return the first of these properties that is a number; 0 if none is."""
        return next((int.from_bytes(v[:4], "little") for id in ids if (v := self.values.get((id, NUMBER)))), 0)

    def find_code_page(self) -> None:
        """Set the encoding of texts that are not Unicode."""
        for number in (self.number(CODE_PAGE), self.number(INTERNET_CODE_PAGE)):
            with suppress(LookupError):
                self.code_page = codecs.lookup(_CODE_PAGES.get(number, f"cp{number}")).name
                return


def _decoded(data: bytes, encoding: str) -> str:
    """Return a text. Some programs declare UTF-8, and write another encoding."""
    if encoding == "utf-8" and not is_utf8(data):
        encoding = best_encoding(data) or "cp1252"
    return data.decode(encoding, "replace")


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attachment: a file, or another message. `is_inline`: a picture in the text."""

    name: str
    content: bytes | Message
    is_inline: bool = False


@dataclass(slots=True)
class Message:
    """A message with its attachments."""

    properties: Properties
    attachments: list[Attachment]

    def blocks(self, notes: Notes) -> Iterator[Block]:
        """Yield the headers that a reader sees, the text, and the attachments, a section for each."""
        subject = self.properties.text(SUBJECT)
        lines = [f"{name}: {value}" for name, value in self._headers(subject) if value]
        yield Block("\n".join(lines), section=subject or None)
        yield from self._body(notes)
        for attachment in self.attachments:
            if isinstance(attachment.content, Message):
                name = attachment.content.properties.text(SUBJECT) or attachment.name
                yield Block(f"[Attachment] {name}", section=name)
                yield from attachment.content.blocks(notes)
            elif attachment.is_inline and attachment.name.lower().endswith(_PICTURES):
                notes.left_out("pictures in the text of the message")
            else:
                yield from notes.nested(attachment.content, attachment.name, "Attachment")

    def _headers(self, subject: str) -> Iterator[tuple[str, str]]:
        properties = self.properties
        name, address = properties.text(SENDER), properties.text(SMTP_ADDRESS, ADDRESS)
        shown = f"{name} <{address}>" if name and "@" in address and name != address else name or address
        yield "From", shown
        yield from zip(("To", "Cc", "Bcc"), map(properties.text, (TO, CC, BCC)), strict=True)
        times = [properties.values.get((id, TIME), b"") for id in (SENT, RECEIVED)]
        yield "Date", next((_date(time) for time in times if len(time) >= 8), "")
        yield "Subject", subject

    def _body(self, notes: Notes) -> Iterator[Block]:
        properties = self.properties
        if text := properties.text(BODY):
            yield Block(text.replace("\r\n", "\n"))
        elif page := properties.values.get((HTML, BINARY)):
            yield from render(decode(page, notes, declared=properties.code_page), notes)
        elif page_text := properties.text(HTML):
            yield from render(page_text, notes)
        elif packed := properties.values.get((RTF, BINARY)):
            try:
                yield from rtf.blocks_of(unpacked(packed), notes)
            except ValueError:
                notes.add("the text of the message is damaged and was left out")
        else:
            notes.add("the message has no text")


def _date(filetime: bytes) -> str:
    """Return a time in UTC, which is stored in tenths of microseconds since 1601."""
    try:
        moment = datetime(1601, 1, 1, tzinfo=UTC) + timedelta(microseconds=int.from_bytes(filetime[:8], "little") // 10)
    except OverflowError:
        return ""
    return f"{moment:%a, %d %b %Y %H:%M:%S} +0000"
