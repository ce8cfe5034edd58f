"""Reads e-mail (eml) and saved web pages (MHTML), which are MIME messages after RFC 5322 and RFC 2557."""

from __future__ import annotations

import base64
import codecs
import email
import email.policy
import mimetypes
import quopri
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from email.message import EmailMessage, Message
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.catalogue import ENVELOPE
from everlong_server.engine.documents.formats.charset import decode
from everlong_server.engine.documents.formats.labels import encoding_of, japanese
from everlong_server.engine.documents.formats.readers.flowed import join_flowed_lines
from everlong_server.engine.documents.formats.readers.html import render

_HEADERS = ("From", "To", "Cc", "Bcc", "Reply-To", "Date", "Subject")
_ENCRYPTED = ("application/pkcs7-mime", "application/x-pkcs7-mime", "application/pgp-encrypted")
_REPORTS = (
    "message/delivery-status", "message/disposition-notification", "message/feedback-report", "message/global-delivery-status",
    "message/global-disposition-notification", "message/tracking-status",
)  # fmt: skip
"""Reports on a message, such as a receipt. They consist of fields alone."""
_FOLD, _OLD_FOLD = re.compile(rb"\r?\n[ \t]"), re.compile(rb"\r?\n(?=[ \t])")
"""Where a long line of an invitation goes on in the next line, even inside a character (RFC 5545, 3.1). In vCard 2.1, the white space belongs to the text."""
_FOLDED = ("text/calendar", "text/vcard", "text/x-vcard", "text/directory")
"""Invitations and contacts."""
_CALENDAR_ESCAPE = re.compile(r"\\([nN,;\\])")
_ENCODED = re.compile(r"=\?([\w.:-]+)((?:\*[\w-]*)?\?([bq])\?([^?]*)\?=)", re.IGNORECASE)
"""Words of a header: their encoding, how they are written in ASCII, and what is written."""


class _Policy(email.policy.EmailPolicy):
    """Decodes words in headers as browsers would, with more characters than their encodings have by definition."""

    def header_fetch_parse(
        self, name: str, value: Any
    ) -> Any:  # the base class declares `str`, but passes headers, too
        """Return a header with its words decoded."""
        return super().header_fetch_parse(name, _ENCODED.sub(_widened, value) if type(value) is str else value)


def _unfolded(data: bytes, kind: str) -> bytes:
    """Return a part with its folded lines joined if it is an invitation or a contact."""
    if kind not in _FOLDED or b"\0" in data:  # UTF-16
        return data
    return (_OLD_FOLD if b"VERSION:2.1" in data else _FOLD).sub(b"", data)


def _widened(word: re.Match[str]) -> str:
    encoding = encoding_of(word[1])
    if encoding is None or not encoding.startswith("iso2022_jp"):
        return word[0] if encoding is None else f"=?{encoding}{word[2]}"
    with suppress(ValueError):
        data = base64.b64decode(word[4]) if word[3] in "bB" else quopri.decodestring(word[4].encode(), header=True)
        return f"=?utf-8?b?{base64.b64encode(japanese(data).encode()).decode()}?="
    return word[0]


_POLICY = _Policy()
_UNFOLDED = _POLICY.clone(max_line_length=None)
"""Folding a header whose parameter has a longer name than a line never ends."""
_UNSEEN = re.compile(rb"</?(?:style|script)\b[^<>]*>", re.IGNORECASE)
_MARKUP = re.compile(rb"<[^<>]*>|&nbsp;", re.IGNORECASE)
_MIN_SHARE = 3
"""A plain text with fewer words than the HTML has, divided by this, is no alternative to it."""
_GAP = re.compile(rb"\A((?:[^\r\n]+\r?\n)++)(?:\r?\n)++(?=Content-Type:[ \t]*multipart/)", re.IGNORECASE)
"""The first fields of a message, and empty lines before its last field, which would end the fields."""
_DATE = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?[ \t]+(?:[A-Z][a-z]{2}[ \t]+\d{1,2}|\d{1,2}[ \t]+[A-Z][a-z]{2})[ \t]"
_TO_TIME = rb"[^\r\n]{0,256}?\d{1,2}:\d{2}[^\r\n]{0,256}+\r?\n"
"""The rest of a line that has a time. Without the limits, long lines would take quadratic time."""
_ENVELOPE = rb"^From (?:[^\s]+[ \t]+){0,3}" + _DATE + _TO_TIME
_AFTER_EMPTY_LINE, _BEFORE_FIELD = rb"(?:(?<=\n\n)|(?<=\n\r\n))", rb"(?=>?[A-Z][!-9;-~]*:[ \t])"
_SEPARATOR = re.compile(
    rb"|".join((
        _AFTER_EMPTY_LINE + _ENVELOPE,
        _ENVELOPE + _BEFORE_FIELD,
        _AFTER_EMPTY_LINE + rb"^From " + _TO_TIME + _BEFORE_FIELD,
    )),
    re.MULTILINE,
)  # fmt: skip
"""The line before a message in a mailbox (mbox): an address and a date, after an empty line or before the message's fields. Between
both, the date may have any form with a time. Other lines that begin with "From " are text."""
_ESCAPED = re.compile(rb"^>(>*From )", re.MULTILINE)
"""A line of a message in a mailbox that would look like a separator without the mark before it."""
_BOUNDARY = re.compile(r"^--(\S+?)(?:--)?[ \t]*\r?$(?:\r?\n(Content-))?", re.MULTILINE | re.IGNORECASE)
"""A line that begins or ends a part of a message, and the beginning of the part's fields."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the messages of the file: the headers that a reader sees, the text, and the attachments, a section for each."""
    data = file.read_bytes().removeprefix(codecs.BOM_UTF8).lstrip()
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    if data.startswith(b"From "):
        yield from _read_mailbox(data, notes)
        return
    size = ENVELOPE.match(data)
    if size is not None:  # emlx, with properties after the message
        data = data[size.end() :][: int(size[0]) if size[0].strip().isdigit() else None]
    yield from _read_message(data, notes)


def _read_mailbox(data: bytes, notes: Notes) -> Iterator[Block]:
    """Yield the messages of a mailbox. One that cannot be read is left out with a note, unless there is no other."""
    starts = [(0, data.find(b"\n") + 1), *(line.span() for line in _SEPARATOR.finditer(data, 1))]
    first_error, failed = "", 0  # an exception would keep the bytes of its message in memory
    for number, (_, start) in enumerate(starts):
        end = starts[number + 1][0] if number + 1 < len(starts) else len(data)
        try:
            yield from _read_message(_ESCAPED.sub(rb"\1", data[start:end]), notes)
        except Unreadable as error:
            first_error, failed = first_error or str(error), failed + 1
            notes.add(f"it was left out: {error}", part=f"message {number + 1}")
    if failed == len(starts):
        raise Unreadable(first_error)


def _read_message(data: bytes, notes: Notes) -> Iterator[Block]:
    if (gap := _GAP.match(data)) and b"content-type:" not in gap[1].lower():
        closed = gap[1] + data[gap.end() :]
        # Without its boundary, the line is text that speaks of messages.
        data = closed if email.message_from_bytes(closed, policy=_POLICY).is_multipart() else data
    message = _parsed(data)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise Unreadable("the message cannot be read: it has no headers")
    subject = _header(message, "Subject", notes)
    page = message.get_content_type() == "multipart/related" and not message.get("From", "").count("@")
    if not page:
        lines = [f"{name}: {value}" for name in _HEADERS if (value := _header(message, name, notes))]
        yield Block("\n".join(lines), section=subject or None)
    texts = list(_texts(message))
    if not texts and (body := message.get_body(preferencelist=("plain", "html"))) is not None:
        texts = [part for part in _leaves(message) if part is body]
    if not texts:
        notes.add("the message has no text")
    for part in texts:
        yield from _text(part, notes, titled=page)
    yield from _others(message, texts, notes, page=page)


def _parsed(data: bytes) -> Message:
    message = email.message_from_bytes(data, policy=_POLICY)
    if message.get_content_maintype() == "multipart" and not message.is_multipart():
        # Its boundary is missing or wrong.
        payload = message.get_payload()
        body = payload if isinstance(payload, str) else ""
        boundary = _boundary(body)
        if boundary is not None:
            with suppress(UnicodeError):  # damaged fields
                message.set_boundary(boundary)
                message = email.message_from_bytes(message.as_bytes(policy=_UNFOLDED), policy=_POLICY)
        if body.strip() and not message.is_multipart():
            message.replace_header("Content-Type", "text/plain")
    return message


def _boundary(body: str) -> str | None:
    """Return what separates the parts of a body; None if it has no parts. A line such as "--Ada" may be a signature."""
    lines = list(_BOUNDARY.finditer(body))
    counts = Counter(line[1] for line in lines)
    return next((line[1] for line in lines if line[2] or counts[line[1]] > 1), None)


def _others(message: EmailMessage, texts: list[EmailMessage], notes: Notes, *, page: bool) -> Iterator[Block]:
    """Yield the attachments, and note what else is not in the text. `page`: whether the message is a saved web page."""
    shown = set(map(id, texts))
    for part in _leaves(message):
        if id(part) in shown:
            continue
        kind = part.get_content_type()
        if page and kind in ("text/html", "application/xhtml+xml"):
            yield from _text(part, notes)
        elif kind == "message/external-body":
            notes.add("the message refers to a file elsewhere, which was not fetched")
        elif page or (part.get("Content-ID") and part.get_content_maintype() == "image"):
            notes.left_out("pictures and styles of the page")
        elif kind in _ENCRYPTED:
            notes.add("the message, or a part of it, is encrypted or signed in a form that cannot be read")
        elif kind == "message/rfc822" or part.is_attachment() or part.get_filename():
            yield from _attachment(part, notes)
        elif part.get_content_maintype() == "image":
            notes.left_out(f"parts without a name: {kind}")
        elif part.get_content_maintype() != "text":
            yield from _attachment(part, notes)


def _header(message: EmailMessage, name: str, notes: Notes) -> str:
    # Bytes that are not ASCII, which the library reads as surrogates.
    raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
    if isinstance(raw, str) and any("\udc80" <= character <= "\udcff" for character in raw):
        return " ".join(decode(raw.encode("utf-8", "surrogateescape"), notes, part=name).split())
    try:
        return " ".join(str(message.get(name, "")).split())
    except (ValueError, TypeError, IndexError, AttributeError):  # the library fails on some malformed headers
        return ""


def _leaves(part: EmailMessage) -> Iterator[EmailMessage]:
    """Yield the parts that have no parts, and messages inside the message as a whole."""
    if part.is_multipart() and part.get_content_type() not in ("message/rfc822", "message/external-body", *_REPORTS):
        for inner in part.iter_parts():
            if isinstance(inner, EmailMessage):
                yield from _leaves(inner)
    else:
        yield part


def _texts(part: EmailMessage) -> Iterator[EmailMessage]:
    """Yield the texts that a reader sees: of alternatives the plain one, else the HTML one."""
    kind = part.get_content_type()
    inner = [each for each in part.iter_parts() if isinstance(each, EmailMessage)] if part.is_multipart() else []
    if kind in _REPORTS:
        yield part
    elif kind == "message/rfc822" or not inner:
        if part.get_content_maintype() == "text" and not part.is_attachment() and not part.get_filename():
            yield part
    elif kind == "multipart/alternative":
        choices = {texts[0].get_content_subtype(): texts for each in inner if (texts := list(_texts(each)))}
        plain = choices.get("plain", [])
        page = choices.get("html", [])
        # Some programs write only "See the HTML version" as plain text.
        is_short = _MIN_SHARE * sum(map(_word_count, plain)) < sum(map(_word_count, page))
        yield from page if is_short else plain
        yield from choices.get("calendar", ())
    else:
        for each in inner[:1] if kind == "multipart/related" else inner:
            yield from _texts(each)


def _word_count(part: EmailMessage) -> int:
    shown = b" ".join(_UNSEEN.split(_bytes(part))[::2])
    return len(_MARKUP.sub(b" ", shown).split())


def _text(part: EmailMessage, notes: Notes, *, titled: bool = False) -> Iterator[Block]:
    """Yield a text that a reader sees. `titled`: see `render`."""
    kind = part.get_content_type()
    if kind in _REPORTS:
        yield Block("\n\n".join(str(each).strip() for each in part.iter_parts()))
        return
    charset = part.get_content_charset()
    data = _bytes(part)
    if charset == "utf-7":  # which is ASCII, so that it would pass for UTF-8
        data = data.decode("utf-7", "replace").encode()
    data = _unfolded(data, kind)
    text = decode(data, notes, declared=charset)
    if kind in ("text/html", "application/xhtml+xml"):
        yield from render(text, notes, titled=titled)
    elif kind in ("text/rtf", "text/richtext") and text.lstrip().startswith("{\\rtf"):
        yield from notes.nested(data, "text.rtf")
    elif kind == "text/calendar":
        yield Block(_CALENDAR_ESCAPE.sub(lambda code: "\n" if code[1] in "nN" else code[1], text).strip())
    elif _parameter(part, "format") == "flowed":
        yield Block(join_flowed_lines(text, drops_space=_parameter(part, "delsp") == "yes").strip())
    else:
        yield Block(text.strip())


def _parameter(part: EmailMessage, name: str) -> str:
    """Return a parameter of the content type, in lower case; "" if there is none."""
    return str(part.get_param(name, "")).strip().lower()


def _attachment(part: EmailMessage, notes: Notes) -> Iterator[Block]:
    is_message = part.get_content_type() == "message/rfc822"
    suffix = mimetypes.guess_extension(part.get_content_type()) or ""
    name = part.get_filename() or ("message.eml" if is_message else f"attachment{suffix}")
    data = _bytes(part)
    yield from notes.nested(_unfolded(data, part.get_content_type()), name, "Attachment")


def _bytes(part: EmailMessage) -> bytes:
    if part.get_content_type() == "message/rfc822":
        inner = part.iter_parts()
        data = b"".join(message.as_bytes(policy=_UNFOLDED) for message in inner if isinstance(message, EmailMessage))
        # RFC 2046 forbids it, but some programs encode a whole message.
        match str(part.get("Content-Transfer-Encoding", "")).strip().lower():
            case "base64":
                with suppress(ValueError):
                    return base64.b64decode(b"".join(data.split()), validate=True)
            case "quoted-printable":
                return quopri.decodestring(data)
        return data
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""
