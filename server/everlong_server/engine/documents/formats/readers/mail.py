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
    texts = list(_texts(message))
    if not texts and (body := message.get_body(preferencelist=("plain", "html"))) is not None:
        texts = [part for part in _leaves(message) if part is body]
    if not texts:
        notes.add("the message has no text")
    for part in texts:
        yield from _text(part, notes)
    for part in _leaves(message):
        if any(part is text for text in texts):
            continue
        if page or (part.get("Content-ID") and part.get_content_maintype() == "image"):
            notes.left_out("pictures and styles of the page")
        elif part.get_content_type() == "message/rfc822" or part.is_attachment() or part.get_filename():
            yield from _attachment(part, notes)
        elif part.get_content_maintype() != "text":
            notes.left_out(f"parts without a name: {part.get_content_type()}")


def _header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except (ValueError, TypeError, IndexError, AttributeError):  # the library fails on some malformed headers
        return ""


def _leaves(part: EmailMessage) -> Iterator[EmailMessage]:
    """Yield the parts that have no parts, and messages inside the message as a whole."""
    if part.is_multipart() and part.get_content_type() != "message/rfc822":
        for inner in part.iter_parts():
            if isinstance(inner, EmailMessage):
                yield from _leaves(inner)
    else:
        yield part


def _texts(part: EmailMessage) -> Iterator[EmailMessage]:
    """Yield the texts that a reader sees: of alternatives the plain one, else the HTML one."""
    kind = part.get_content_type()
    inner = [each for each in part.iter_parts() if isinstance(each, EmailMessage)] if part.is_multipart() else []
    if kind == "message/rfc822" or not inner:
        if part.get_content_maintype() == "text" and not part.is_attachment() and not part.get_filename():
            yield part
    elif kind == "multipart/alternative":
        choices = {texts[0].get_content_subtype(): texts for each in inner if (texts := list(_texts(each)))}
        yield from choices.get("plain") or choices.get("html") or ()
    else:
        for each in inner[:1] if kind == "multipart/related" else inner:
            yield from _texts(each)


def _text(part: EmailMessage, notes: Notes) -> Iterator[Block]:
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
