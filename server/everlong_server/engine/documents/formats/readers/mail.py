"""Reads e-mail (eml) and saved web pages (MHTML), which are MIME messages after RFC 5322 and RFC 2557."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.charset import decode
from everlong_server.engine.documents.formats.readers.html import render

_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the headers that a reader sees, the text, and the attachments, a section for each."""
    message = email.message_from_bytes(file.read_bytes(), policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise Unreadable("the message cannot be read: it has no headers")
    subject = _header(message, "Subject")
    page = message.get_content_type() == "multipart/related" and not message.get("From", "").count("@")
    if not page:
        lines = [f"{name}: {value}" for name in _HEADERS if (value := _header(message, name))]
        yield Block("\n".join(lines), section=subject or None)
    yield from _body(message, notes)
    for part in message.walk():
        if part.get_content_type() == "message/rfc822" and part is not message:
            yield from _attachment(part, notes)
        elif not part.is_multipart() and (part.is_attachment() or part.get_filename()):
            if page or (part.get("Content-ID") and part.get_content_maintype() == "image"):
                notes.left_out("pictures and styles of the page")
            else:
                yield from _attachment(part, notes)


def _header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except (ValueError, TypeError, IndexError, AttributeError):  # the library fails on some malformed headers
        return ""


def _body(message: EmailMessage, notes: Notes) -> Iterator[Block]:
    """Yield the text of the message: the plain one, else the HTML one, of all its parts."""
    body = message.get_body(preferencelist=("plain", "html"))
    if body is None:
        notes.add("the message has no text")
        return
    part = body if isinstance(body, EmailMessage) else message
    text = decode(_bytes(part), notes, declared=part.get_content_charset())
    if part.get_content_type() == "text/html":
        yield from render(text, notes)
    else:
        yield Block(text.strip())


def _attachment(part: EmailMessage, notes: Notes) -> Iterator[Block]:
    name = part.get_filename() or ("message.eml" if part.get_content_type() == "message/rfc822" else "attachment")
    yield from notes.nested(_bytes(part), name, "Attachment")


def _bytes(part: EmailMessage) -> bytes:
    if part.get_content_type() == "message/rfc822":
        inner = part.iter_parts()
        return b"".join(message.as_bytes() for message in inner if isinstance(message, EmailMessage))
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""
